// This formats numbers as text, times in the unit that suits their size, and scales whose ticks enclose the data.

// ---- numbers: a number that is missing or impossible is null and prints as a dash

const DASH = '\u2013', MINUS = '\u2212', TIMES = '\u00d7';
const some = value => Number.isFinite(value) ? value : null;
const positive = value => Number.isFinite(value) && value > 0 ? value : null;
const known = list => list.filter(value => value !== null);
const ratio = (a, b) => positive(a) && positive(b) ? a / b : null;
const excess = (a, b) => ratio(a, b) === null ? null : a / b - 1;
const mean = list => list.length ? list.reduce((sum, value) => sum + value, 0) / list.length : null;
const plain = value => value === null ? DASH : value.toLocaleString('en',
  Math.abs(value) >= 1000 ? {maximumFractionDigits: 0} : {maximumSignificantDigits: 3});
const times = value => value === null ? DASH : value.toFixed(2) + TIMES;
const percent = value => value === null ? DASH
  : (value * 100).toFixed(Math.abs(value) < 0.0995 ? 1 : 0).replace('-', MINUS) + ' %';
const byText = (a, b) => a.localeCompare(b, 'en', {numeric: true});

// ---- units: `size` is how much of the data's unit makes one

const TIME_UNITS = [{name: 's', size: 1e6}, {name: 'ms', size: 1e3}, {name: '\u00b5s', size: 1}, {name: 'ns', size: 1e-3}];
const COMPUTE_UNITS = [{name: 'PFLOP/s', size: 1e3}, {name: 'TFLOP/s', size: 1}, {name: 'GFLOP/s', size: 1e-3}];
const MEMORY_UNITS = [{name: 'TB/s', size: 1}, {name: 'GB/s', size: 1e-3}];
const unitOf = (value, units = TIME_UNITS) => units.find(unit => value >= unit.size) ?? units.at(-1);
const inUnit = (value, units) => `${plain(value / unitOf(value, units).size)} ${unitOf(value, units).name}`;

// Four digits tell times apart that differ by a tenth of a percent.
function timeText(us, unit) {
  if (!positive(us)) return DASH;
  const value = us / unit.size, digits = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
  return value.toLocaleString('en', {minimumFractionDigits: digits, maximumFractionDigits: digits});
}
const duration = us => positive(us) ? `${timeText(us, unitOf(us))} ${unitOf(us).name}` : DASH;

// ---- scales

const tidy = value => Number(value.toPrecision(12));

// Returns multiples of 1, 2 or 5 times a power of ten, at most `most` steps from the one below `low` to the one above
// `high`.
function evenTicks(low, high, most) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const edges = step => [Math.floor(tidy(low / step)), Math.ceil(tidy(high / step))];
  const step = [1, 2, 5, 10, 20, 50].map(digit => digit * power).find(step => edges(step)[1] - edges(step)[0] <= most) ?? 100 * power;
  const [first, last] = edges(step);
  return Array.from({length: last - first + 1}, (_, i) => tidy((first + i) * step));
}

// A logarithmic axis has even ticks, too, while they are above zero and their distances much alike.
function logTicks(low, high, most) {
  if (high / low < 4) {
    for (let more = most; more < most + 20; ++more) {
      const ticks = evenTicks(low, high, more);
      if (ticks[0] > 0) return ticks;
    }
  }
  const ticks = [], digits = high / low < 30 ? [1, 1.5, 2, 3, 5, 7] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    ticks.push(...digits.map(digit => tidy(digit * 10 ** power)));
  }
  return ticks.slice(ticks.findLastIndex(tick => tick <= low), ticks.findIndex(tick => tick >= high) + 1);
}

const roundness = tick => ({1: 0, 2: 1, 5: 1})[Number(tick.toExponential().split('e')[0])] ?? 2;

// The first tick is at or below the least value and the last at or above the largest. Between them stand ticks that are
// `gap` pixels apart, the roundest first. Values are divided by the unit's size in the labels only.
function scale(values, from, to, {log = false, gap = 40, unit = {size: 1}} = {}) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = log ? [low * 0.9, high * 1.1] : [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  const all = (log ? logTicks : evenTicks)(low, high, Math.max(2, Math.floor(Math.abs(to - from) / gap)));
  const ends = [all[0], all.at(-1)], on = log ? Math.log : value => value;
  const pixel = value => from + (on(value) - on(ends[0])) / (on(ends[1]) - on(ends[0])) * (to - from);
  const ticks = [...ends];
  for (const tick of all.slice(1, -1).sort((a, b) => log ? roundness(a) - roundness(b) : 0)) {
    if (ticks.every(other => Math.abs(pixel(other) - pixel(tick)) >= gap)) ticks.push(tick);
  }
  ticks.sort((a, b) => a - b);
  const label = tick => tidy(tick / unit.size).toLocaleString('en', {maximumSignificantDigits: 12});
  return {pixel, ticks, ends, label};
}
// The middle of what an axis shows decides its unit.
const axisUnit = (values, units) => unitOf(Math.sqrt(Math.min(...values) * Math.max(...values)), units);
