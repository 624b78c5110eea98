// This draws axes, marks, and the plots of one spec. A plot is an SVG of as many pixels as its frame has, so text keeps
// its size.

const text = (x, y, anchor, content, more = {}) => svg('text', {x, y, 'text-anchor': anchor, ...more}, content);
const line = (kind, x1, y1, x2, y2) => svg('line', {class: kind, x1, y1, x2, y2});
const corners = points => 'M' + points.map(point => point.join(' ')).join('L');

// Draws the grid, ticks and the names of both axes. The data goes into `area`; x and y are scales or null.
function axes(width, height, area, x, y, xName, yName) {
  const {left, right, top, bottom} = area;
  const plot = svg('svg', {width, height, viewBox: `0 0 ${width} ${height}`});
  for (const tick of y.ticks) {
    const at = y.pixel(tick);
    plot.append(line('grid', left, at, right, at), text(left - 6, at + 4, 'end', y.label(tick)));
  }
  for (const tick of x?.ticks ?? []) {
    const at = x.pixel(tick);
    plot.append(line('grid', at, top, at, bottom), text(at, bottom + 16, 'middle', x.label(tick)));
  }
  plot.append(line('axis', left, bottom, right, bottom), line('axis', left, top, left, bottom));
  if (xName) plot.append(text((left + right) / 2, height - 4, 'middle', xName, {class: 'strong'}));
  plot.append(text(0, 12, 'start', yName, {class: 'strong'}));
  return plot;
}

// ---- marks: a family has a colour and a shape, the default is a star, the best is a diamond; a grey mark cannot be
// told apart from the default, a hollow one was stopped early, a cross has no time

function mark(kind, shape, x, y, r = 4.5) {
  if (shape === 0) return svg('circle', {class: kind, cx: x, cy: y, r});
  const s = r * 1.25, d = r * 1.75;
  const outline = {
    1: [[x, y - s], [x + s, y + r], [x - s, y + r]],
    2: [[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]],
    best: [[x, y - d], [x + d, y], [x, y + d], [x - d, y]],
    default: Array.from({length: 10}, (_, i) => {
      const angle = i * Math.PI / 5, reach = i % 2 ? d * 0.5 : d * 1.15;
      return [x + reach * Math.sin(angle), y - reach * Math.cos(angle)];
    }),
    cross: [[x - r, y - r], [x, y], [x + r, y - r], [x, y], [x + r, y + r], [x, y], [x - r, y + r], [x, y]],
  }[shape];
  return svg('path', {class: kind, d: corners(outline) + 'Z'});
}

const familyOf = (view, candidate) => Math.max(0, view.families.indexOf(field(candidate, 'family'))) % 3;
const colourOf = (view, candidate) => untold(view, candidate) ? 'untold' : `family-${familyOf(view, candidate)}`;

function candidateMark(view, candidate, x, y) {
  if (candidate === view.base) return mark(`mark default${candidate === view.best ? ' best' : ''}`, 'default', x, y);
  if (candidate === view.best) return mark(`mark best${untold(view, candidate) ? ' untold' : ''}`, 'best', x, y);
  const family = familyOf(view, candidate);
  if (!time(candidate)) return mark(`mark open family-${family}`, 'cross', x, y);
  return mark(`mark ${candidate.status === 'measured' ? '' : 'open'} ${colourOf(view, candidate)}`, family, x, y);
}

function legend(view) {
  const entries = view.families.map((family, i) => [mark(`mark family-${i % 3}`, i % 3, 8, 8), family]);
  const {base, best} = view;
  if (base) entries.push([candidateMark(view, base, 8, 8), base === best ? 'default, which is also the best' : 'default']);
  if (best && best !== base) entries.push([candidateMark(view, best, 8, 8), 'best']);
  if (view.candidates.some(candidate => untold(view, candidate))) {
    entries.push([mark('mark untold', 0, 8, 8), 'not told apart from the default: their intervals meet']);
  }
  const open = shape => mark('mark open family-0', shape, 8, 8);
  if (view.timed.length > view.measured.length) entries.push([open(0), 'stopped early: too slow']);
  if (view.candidates.length > view.timed.length) entries.push([open('cross'), 'no time: see its status']);
  const item = ([symbol, label]) => html('li', {}, svg('svg', {width: 16, height: 16, 'aria-hidden': 'true'}, symbol), label);
  return html('ul', {class: 'legend', 'aria-label': 'Marks'}, entries.map(item));
}

// Puts the points into the plot, the best on top and grey ones below, and lets pointer and arrow keys choose among them.
function addPoints(view, plot, name, points, {kind = 'candidates', draw = candidateMark} = {}) {
  const rank = ({candidate}) => candidate === view.best ? 3 : candidate === view.base ? 2 : untold(view, candidate) ? 0 : 1;
  points.sort((a, b) => rank(a) - rank(b));
  const ring = svg('circle', {class: 'ring', r: 9, visibility: 'hidden'});
  plot.append(...points.map(point => draw(view, point.candidate, point.x, point.y)), ring);
  view.onChoose.push(chosen => {
    const point = points.find(point => point.candidate === chosen);
    set(ring, point ? {visibility: 'visible', cx: point.x, cy: point.y} : {visibility: 'hidden'});
  });
  set(plot, {tabindex: 0, role: 'group', 'aria-roledescription': 'plot',
    'aria-label': `${name}, ${points.length} ${kind}; the arrow keys go from one to the next`});
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

// This name stands on the marks, on the side of `x` that has more room.
function nameAt(area, x, y, name) {
  const leftwards = x > (area.left + area.right) / 2;
  return text(leftwards ? x - 10 : x + 10, y + 4, leftwards ? 'end' : 'start', name, {class: 'name'});
}

// The line joins the best time of each value: it shows what is lost when the field is pinned to another.
function fieldPlot(view, name, width) {
  const timed = view.timed.filter(candidate => field(candidate, name) !== null);
  const labels = [...new Set(timed.map(candidate => field(candidate, name)))].sort(byText);
  const left = 48, band = (width - left - 8) / labels.length;
  const longest = Math.max(...labels.map(label => cut(label).length)) * 6.6;
  const upright = longest > band - 6;
  const area = {left, right: width - 8, top: 24, bottom: 150};
  const base = positive(view.spec.default_us), us = [...view.timed.map(time), ...known([base])];
  const unit = axisUnit(us);
  const y = scale(us, area.bottom, area.top, {log: Math.max(...us) / Math.min(...us) > 3, gap: 24, unit});
  const plot = axes(width, area.bottom + (upright ? longest + 12 : 22), area, null, y, null, `${unit.name} by ${name}`);
  if (base) plot.append(line('guide', area.left, y.pixel(base), area.right, y.pixel(base)));
  const middle = label => left + band * (labels.indexOf(label) + 0.5);
  const least = label => Math.min(...timed.filter(candidate => field(candidate, name) === label).map(time));
  for (const label of labels) {
    const x = middle(label) + (upright ? 4 : 0), low = area.bottom + (upright ? 8 : 16);
    plot.append(text(x, low, upright ? 'end' : 'middle', cut(label), {transform: upright ? `rotate(-90 ${x} ${low})` : null}));
  }
  plot.append(svg('path', {class: 'profile', d: corners(labels.map(label => [middle(label), y.pixel(least(label))]))}));
  // Points are spread by their rank, so that equal times do not hide each other. The best of each value is on the line.
  addPoints(view, plot, `Time by ${name}`, timed.map((candidate, i) => {
    const label = field(candidate, name);
    const aside = time(candidate) === least(label) ? 0 : ((i * 0.618) % 1 - 0.5) * Math.min(band * 0.6, 40);
    return {candidate, x: middle(label) + aside, y: y.pixel(time(candidate))};
  }));
  if (base) {  // It stands away from its mark.
    const rightwards = view.base && labels.indexOf(field(view.base, name)) < labels.length / 2;
    plot.append(text(rightwards ? area.right : area.left + 4, y.pixel(base) - 5, rightwards ? 'end' : 'start', 'default', {class: 'name'}));
  }
  return html('figure', {}, plot);
}

function predictionPlot(view, width) {
  const title = 'Predicted against measured';
  const predicted = candidate => positive(candidate.predicted_us);
  const both = view.timed.filter(predicted);
  const failed = view.candidates.filter(candidate => !time(candidate) && predicted(candidate));
  if (!both.length) return figure(title, caption('Not drawn: no candidate has both times.'));
  const area = {left: 56, right: width - 20, top: failed.length ? 42 : 24, bottom: 270};
  const xs = [...both, ...failed].map(predicted), ranged = both.filter(hasInterval);
  const ys = [...both.map(time), ...ranged.flatMap(candidate => [candidate.us_low, candidate.us_high])];
  const [xUnit, yUnit] = [axisUnit(xs), axisUnit(ys)];
  const x = scale(xs, area.left, area.right, {log: true, gap: 48, unit: xUnit});
  const y = scale(ys, area.bottom, area.top, {log: true, gap: 26, unit: yUnit});
  const plot = axes(width, 310, area, x, y, `predicted, ${xUnit.name}`, `measured, ${yUnit.name}`);
  const [from, to] = [Math.max(x.ends[0], y.ends[0]), Math.min(x.ends[1], y.ends[1])];
  if (from < to) plot.append(svg('path', {class: 'guide', d: corners([from, to].map(end => [x.pixel(end), y.pixel(end)]))}));
  plot.append(...ranged.map(candidate => {
    const at = x.pixel(predicted(candidate));
    return line(`whisker ${colourOf(view, candidate)}`, at, y.pixel(candidate.us_low), at, y.pixel(candidate.us_high));
  }));
  if (failed.length) plot.append(text(area.right, 12, 'end', `${TIMES} no time`));
  addPoints(view, plot, title, [
    ...both.map(candidate => ({candidate, x: x.pixel(predicted(candidate)), y: y.pixel(time(candidate))})),
    ...failed.map(candidate => ({candidate, x: x.pixel(predicted(candidate)), y: 28})),
  ]);
  if (both.includes(view.base)) {
    plot.append(nameAt(area, x.pixel(predicted(view.base)), y.pixel(time(view.base)), 'default'));
  }
  // A time from a run that was stopped is too uncertain to judge the model by.
  const fair = both.filter(candidate => candidate.status === 'measured').sort((a, b) => predicted(a) - predicted(b));
  const squares = fair.map(candidate => Math.log(predicted(candidate) / time(candidate)) ** 2);
  const off = squares.length ? Math.sqrt(mean(squares)) : null;
  const rank = fair.indexOf(view.best) + 1;
  const line45 = from < to ? 'On the dashed line: as predicted; above it: slower. '
    : `All were ${y.ends[0] >= x.ends[1] ? 'slower' : 'faster'} than predicted. `;
  return figure(title, plot, caption(line45, ranged.length ? 'Upright lines are intervals. ' : null,
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
  const area = {left: 56, right: width - 20, top: 24, bottom: 270};
  const across = [Math.min(intensity, ridge) / 8, Math.max(intensity, ridge) * 8];
  const x = scale(across, area.left, area.right, {log: true, gap: 48});
  const rates = view.timed.map(rate), lowest = Math.min(...rates, roof(intensity) / 8) / 1.5;
  const heights = [lowest, Math.max(...rates, compute) * 2], unit = axisUnit(heights, COMPUTE_UNITS);
  const y = scale(heights, area.bottom, area.top, {log: true, gap: 26, unit});
  const plot = axes(width, 310, area, x, y, 'FLOP per byte of memory', unit.name);
  const foot = Math.max(x.ends[0], y.ends[0] / memory);
  const [x1, y1, x2, y2] = [x.pixel(foot), y.pixel(memory * foot), x.pixel(ridge), y.pixel(compute)];
  plot.append(svg('path', {class: 'roof', d: corners([[x1, y1], [x2, y2], [area.right, y2]])}));
  plot.append(text(area.right, y2 - 7, 'end', inUnit(compute, COMPUTE_UNITS)));
  if (Math.hypot(x2 - x1, y2 - y1) > 90) {  // The line is long enough to write on.
    const [cx, cy, angle] = [(x1 + x2) / 2, (y1 + y2) / 2, Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI];
    plot.append(text(cx, cy - 7, 'middle', inUnit(memory, MEMORY_UNITS), {transform: `rotate(${angle} ${cx} ${cy})`}));
  }
  const point = candidate => ({candidate, x: x.pixel(intensity), y: y.pixel(rate(candidate))});
  addPoints(view, plot, 'Roofline', view.timed.map(point));
  const reached = view.best && time(view.best) ? rate(view.best) : null;
  return figure('Roofline', plot, caption(
    `${plain(intensity)} FLOP per byte: ${intensity > ridge ? 'arithmetic' : 'memory'} is the limit. `,
    reached && html('b', {}, `The best reaches ${inUnit(reached, COMPUTE_UNITS)}, `, `${percent(reached / roof(intensity))} of the roof.`),
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
      html('code', {}, (candidate === view.base ? 'the default: ' : '') + differs(view, candidate)),
      html('span', {class: 'value'}, times(gain)),
      html('span', {class: 'track'},
        html('span', {class: `bar ${untold(view, candidate) ? 'untold' : candidate === view.best ? 'best' : ''}`, style: `width:${across(gain)}`}),
        low && high && html('span', {class: 'range', style: `left:${across(low)};width:${across(high - low)}`}),
        html('span', {class: 'one', style: `left:${across(1)}`})));
    button.addEventListener('click', () => view.choose(candidate));
    view.onChoose.push(chosen => button.classList.toggle('chosen', chosen === candidate));
    return html('li', {}, button);
  });
  return figure(title, html('ol', {class: 'bars'}, rows), caption(
    'The upright line is the default, thin lines are intervals, grey is not told apart from the default; named is what differs from the best.',
    rest.length ? ` ${rest.length} more are slower, down to ${times(base / time(rest.at(-1)))}.` : ''));
}
