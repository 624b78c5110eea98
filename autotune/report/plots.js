// Scales, axes, marks, and the plots of one spec. A plot is an SVG of as many pixels as its place has, so text keeps its size.

function scale(values, from, to, {log = false, room = 0.06, gap = 40} = {}) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) [low, high] = [Math.log(low), Math.log(high)];
  const extra = high > low ? (high - low) * room : log ? 0.1 : Math.abs(high) * 0.1 || 1;
  [low, high] = [low - extra, high + extra];
  const place = value => from + ((log ? Math.log(value) : value) - low) / (high - low) * (to - from);
  const ends = log ? [Math.exp(low), Math.exp(high)] : [low, high];
  // The roundest numbers first; a tick is taken where it stays `gap` pixels away from those before it.
  const wanted = [];
  if (log && ends[1] / ends[0] > 8) {
    for (const digit of [1, 3, 2, 5]) {
      for (let power = Math.floor(Math.log10(ends[0])); power <= Math.log10(ends[1]); ++power) wanted.push(digit * 10 ** power);
    }
  } else {
    const rough = (ends[1] - ends[0]) / Math.max(2, Math.abs(to - from) / gap);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(digit => digit * power >= rough);
    for (let i = Math.ceil(ends[0] / step); i * step <= ends[1]; ++i) wanted.push(Number((i * step).toPrecision(12)));
  }
  const ticks = [];
  for (const tick of wanted.filter(tick => tick >= ends[0] && tick <= ends[1])) {
    if (ticks.every(other => Math.abs(place(other) - place(tick)) >= gap)) ticks.push(tick);
  }
  return {place, ticks, ends};
}

const text = (x, y, anchor, content, more = {}) => svg('text', {x, y, 'text-anchor': anchor, ...more}, content);
const line = (kind, x1, y1, x2, y2) => svg('line', {class: kind, x1, y1, x2, y2});
const corners = points => 'M' + points.map(point => point.join(' ')).join('L');

// Grid, ticks and the names of both axes; `area` is where the data goes, x and y are scales or null.
function axes(width, height, area, x, y, xName, yName) {
  const {left, right, top, bottom} = area;
  const plot = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`});
  for (const tick of y.ticks) {
    const at = y.place(tick);
    plot.append(line('grid', left, at, right, at), text(left - 6, at + 4, 'end', plain(tick)));
  }
  for (const tick of x?.ticks ?? []) {
    const at = x.place(tick);
    plot.append(line('grid', at, top, at, bottom), text(at, bottom + 16, 'middle', plain(tick)));
  }
  plot.append(line('axis', left, bottom, right, bottom), line('axis', left, top, left, bottom));
  if (xName) plot.append(text((left + right) / 2, height - 4, 'middle', xName, {class: 'strong'}));
  plot.append(text(0, 12, 'start', yName, {class: 'strong'}));
  return plot;
}

// ---- marks: a family has a colour and a shape, what was stopped early is hollow, the best is a diamond, no time is a cross

function mark(kind, shape, x, y, r = 4.5) {
  if (shape === 0) return svg('circle', {class: kind, cx: x, cy: y, r});
  const s = r * 1.25, d = r * 1.75;
  const outline = {
    1: [[x, y - s], [x + s, y + r], [x - s, y + r]],
    2: [[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]],
    best: [[x, y - d], [x + d, y], [x, y + d], [x - d, y]],
    cross: [[x - r, y - r], [x, y], [x + r, y - r], [x, y], [x + r, y + r], [x, y], [x - r, y + r], [x, y]],
  }[shape];
  return svg('path', {class: kind, d: corners(outline) + 'Z'});
}

function candidateMark(view, candidate, x, y) {
  const family = Math.max(0, view.families.indexOf(field(candidate, 'family'))) % 3;
  if (candidate === view.best) return mark('mark best', 'best', x, y);
  if (!time(candidate)) return mark(`mark open family-${family}`, 'cross', x, y);
  return mark(`mark ${candidate.status === 'measured' ? '' : 'open'} family-${family}`, family, x, y);
}

function legend(view) {
  const entries = view.families.map((family, i) => [mark(`mark family-${i % 3}`, i % 3, 8, 8), family]);
  if (view.best) entries.push([mark('mark best', 'best', 8, 8), 'best']);
  const open = shape => mark('mark open family-0', shape, 8, 8);
  if (view.timed.length > view.measured.length) entries.push([open(0), 'stopped early: too slow']);
  if (view.candidates.length > view.timed.length) entries.push([open('cross'), 'no time: see its status']);
  const item = ([symbol, label]) => html('li', {}, svg('svg', {width: 16, height: 16, 'aria-hidden': 'true'}, symbol), label);
  return html('ul', {class: 'legend', 'aria-label': 'Marks'}, entries.map(item));
}

// Puts the points into the plot, the best on top, and lets pointer and arrow keys choose among them.
function addPoints(view, plot, name, points) {
  points.sort((a, b) => (a.candidate === view.best) - (b.candidate === view.best));
  const ring = svg('circle', {class: 'ring', r: 9, visibility: 'hidden'});
  plot.append(...points.map(point => candidateMark(view, point.candidate, point.x, point.y)), ring);
  view.onChoose.push(chosen => {
    const point = points.find(point => point.candidate === chosen);
    set(ring, point ? {visibility: 'visible', cx: point.x, cy: point.y} : {visibility: 'hidden'});
  });
  set(plot, {tabindex: 0, role: 'group', 'aria-roledescription': 'plot',
    'aria-label': `${name}, ${points.length} candidates; the arrow keys go from one to the next`});
  const inOrder = [...points].sort((a, b) => a.x - b.x || b.y - a.y);
  plot.addEventListener('keydown', event => {
    const step = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity}[event.key];
    if (!step) return;
    event.preventDefault();
    const next = inOrder.findIndex(point => point.candidate === view.chosen) + step;
    view.choose(inOrder[Math.min(Math.max(next, 0), inOrder.length - 1)].candidate);
  });
  const chooseNear = (event, reach) => {
    const box = plot.getBoundingClientRect();
    const away = point => Math.hypot(point.x - (event.clientX - box.left), point.y - (event.clientY - box.top));
    const nearest = points.reduce((a, b) => away(a) <= away(b) ? a : b);
    if (away(nearest) < reach) view.choose(nearest.candidate);
  };
  plot.addEventListener('click', event => chooseNear(event, 40));
  plot.addEventListener('pointermove', event => event.pointerType === 'mouse' && chooseNear(event, 12));
}

// ---- the plots; each gets the width it may fill

const figure = (title, ...content) => html('figure', {}, html('h3', {}, title), ...content);
const caption = (...content) => html('figcaption', {}, ...content);

const cut = label => label.length > 16 ? label.slice(0, 15) + '\u2026' : label;

// The line joins the best time of each value: what is lost when the field is pinned to another.
function fieldPlot(view, name, width) {
  const timed = view.timed.filter(candidate => field(candidate, name) !== null);
  const labels = [...new Set(timed.map(candidate => field(candidate, name)))].sort(byText);
  const left = 48, band = (width - left - 8) / labels.length;
  const longest = Math.max(...labels.map(label => cut(label).length)) * 6.6;
  const upright = longest > band - 6;
  const area = {left, right: width - 8, top: 24, bottom: 150};
  const base = positive(view.spec.default_us), us = [...view.timed.map(time), ...known([base])];
  const y = scale(us, area.bottom, area.top, {log: Math.max(...us) / Math.min(...us) > 3, gap: 24});
  const plot = axes(width, area.bottom + (upright ? longest + 12 : 22), area, null, y, null, `${MICROSECONDS} by ${name}`);
  if (base) plot.append(line('guide', area.left, y.place(base), area.right, y.place(base)));
  const middle = label => left + band * (labels.indexOf(label) + 0.5);
  const least = label => Math.min(...timed.filter(candidate => field(candidate, name) === label).map(time));
  for (const label of labels) {
    const x = middle(label) + (upright ? 4 : 0), low = area.bottom + (upright ? 8 : 16);
    plot.append(text(x, low, upright ? 'end' : 'middle', cut(label), {transform: upright ? `rotate(-90 ${x} ${low})` : null}));
  }
  plot.append(svg('path', {class: 'profile', d: corners(labels.map(label => [middle(label), y.place(least(label))]))}));
  // Spread by the rank, so that equal times do not hide each other; the best of each value is on the line.
  addPoints(view, plot, `Time by ${name}`, timed.map((candidate, i) => {
    const label = field(candidate, name);
    const aside = time(candidate) === least(label) ? 0 : ((i * 0.618) % 1 - 0.5) * Math.min(band * 0.6, 40);
    return {candidate, x: middle(label) + aside, y: y.place(time(candidate))};
  }));
  return html('figure', {}, plot);
}

function predictionPlot(view, width) {
  const title = 'Predicted against measured';
  const predicted = candidate => positive(candidate.predicted_us);
  const both = view.timed.filter(predicted);
  const failed = view.candidates.filter(candidate => !time(candidate) && predicted(candidate));
  if (!both.length) return figure(title, caption('Not drawn: no candidate has both times.'));
  const area = {left: 52, right: width - 12, top: failed.length ? 42 : 24, bottom: 270};
  const all = [...both.map(time), ...[...both, ...failed].map(predicted)];
  const x = scale(all, area.left, area.right, {log: true, gap: 44});
  const y = scale(all, area.bottom, area.top, {log: true, gap: 26});
  const plot = axes(width, 310, area, x, y, `predicted, ${MICROSECONDS}`, `measured, ${MICROSECONDS}`);
  plot.append(svg('path', {class: 'guide', d: corners(x.ends.map(end => [x.place(end), y.place(end)]))}));
  if (failed.length) plot.append(text(area.right, 12, 'end', `${TIMES} no time`));
  addPoints(view, plot, title, [
    ...both.map(candidate => ({candidate, x: x.place(predicted(candidate)), y: y.place(time(candidate))})),
    ...failed.map(candidate => ({candidate, x: x.place(predicted(candidate)), y: 28})),
  ]);
  // A time from a run that was stopped is too uncertain to judge the model by.
  const fair = both.filter(candidate => candidate.status === 'measured').sort((a, b) => predicted(a) - predicted(b));
  const squares = fair.map(candidate => Math.log(predicted(candidate) / time(candidate)) ** 2);
  const off = squares.length ? Math.sqrt(mean(squares)) : null;
  const rank = fair.indexOf(view.best) + 1;
  return figure(title, plot, caption('On the dashed line: as predicted; above it: slower. ',
    html('b', {}, `Error ${percent(off)}`), ' (root mean square)',
    rank ? `; the best was number ${rank} of ${fair.length} in the model's order.` : '.'));
}

function rooflinePlot(view, width) {
  const {flops, bytes, peak_tflops: compute, peak_tbs: memory} = view.spec;
  const absent = Object.entries({flops, bytes, peak_tflops: compute, peak_tbs: memory}).filter(([, value]) => !positive(value));
  if (absent.length) return figure('Roofline', caption(`Not drawn: ${absent.map(([name]) => name).join(', ')} not known.`));
  if (!view.timed.length) return figure('Roofline', caption('Not drawn: no candidate has a time.'));
  const intensity = flops / bytes, ridge = compute / memory;
  const rate = candidate => flops / time(candidate) / 1e6, roof = at => Math.min(compute, memory * at);
  const area = {left: 52, right: width - 12, top: 24, bottom: 270};
  const across = [Math.min(intensity, ridge) / 8, Math.max(intensity, ridge) * 8];
  const x = scale(across, area.left, area.right, {log: true, room: 0, gap: 44});
  const rates = view.timed.map(rate), lowest = Math.min(...rates, roof(intensity) / 8) / 1.5;
  const y = scale([lowest, Math.max(...rates, compute) * 2], area.bottom, area.top, {log: true, room: 0, gap: 26});
  const plot = axes(width, 310, area, x, y, 'FLOP per byte of memory', 'TFLOP/s');
  const foot = Math.max(across[0], lowest / memory);
  const [x1, y1, x2, y2] = [x.place(foot), y.place(memory * foot), x.place(ridge), y.place(compute)];
  plot.append(svg('path', {class: 'roof', d: corners([[x1, y1], [x2, y2], [area.right, y2]])}));
  plot.append(text(area.right, y2 - 7, 'end', `${plain(compute)} TFLOP/s`));
  if (Math.hypot(x2 - x1, y2 - y1) > 90) {  // long enough to write on
    const [cx, cy, angle] = [(x1 + x2) / 2, (y1 + y2) / 2, Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI];
    plot.append(text(cx, cy - 7, 'middle', `${plain(memory)} TB/s`, {transform: `rotate(${angle} ${cx} ${cy})`}));
  }
  const point = candidate => ({candidate, x: x.place(intensity), y: y.place(rate(candidate))});
  addPoints(view, plot, 'Roofline', view.timed.map(point));
  const reached = view.best && time(view.best) ? rate(view.best) : null;
  return figure('Roofline', plot, caption(
    `${plain(intensity)} FLOP per byte: ${intensity > ridge ? 'arithmetic' : 'memory'} is the limit. `,
    reached && html('b', {}, `The best reaches ${plain(reached)} TFLOP/s, `, `${percent(reached / roof(intensity))} of the roof.`),
    view.spec.peak_how ? ` The roof: ${view.spec.peak_how}.` : null));
}

function bars(view) {
  const title = 'Speed-up over default', base = positive(view.spec.default_us);
  if (!base) return figure(title, caption('Not drawn: the default has no time.'));
  if (!view.measured.length) return figure(title, caption('Not drawn: no candidate was measured.'));
  const shown = view.measured.slice(0, 8), rest = view.measured.slice(8);
  const most = Math.max(1, ...shown.map(candidate => base / (positive(candidate.us_low) ?? time(candidate)))) * 1.02;
  const across = value => `${(value / most * 100).toFixed(2)}%`;
  const rows = shown.map(candidate => {
    const gain = base / time(candidate), low = ratio(base, candidate.us_high), high = ratio(base, candidate.us_low);
    const button = html('button', {type: 'button'},
      html('code', {}, differs(view, candidate)), html('span', {class: 'value'}, times(gain)),
      html('span', {class: 'track'},
        html('span', {class: candidate === view.best ? 'bar best' : 'bar', style: `width:${across(gain)}`}),
        low && high && html('span', {class: 'range', style: `left:${across(low)};width:${across(high - low)}`}),
        html('span', {class: 'one', style: `left:${across(1)}`})));
    button.addEventListener('click', () => view.choose(candidate));
    view.onChoose.push(chosen => button.classList.toggle('chosen', chosen === candidate));
    return html('li', {}, button);
  });
  return figure(title, html('ol', {class: 'bars'}, rows), caption(
    'The upright line is the default, thin lines are intervals; named is what differs from the best.',
    rest.length ? ` ${rest.length} more are slower, down to ${times(base / time(rest.at(-1)))}.` : ''));
}
