// This draws the gains of all specs side by side: best over default, each with its interval, the largest first.

const gainText = view => times(view.gain)
  + (view.gainRange ? ` (${view.gainRange.map(gain => gain.toFixed(2)).join(DASH)})` : '');

// Returns whether the best is another schedule than the default, and can be told apart from it.
const gained = view => view.best !== view.base && !(view.best && untold(view, view.best));

function gainMark(_, view, x, y) {
  if (view.base && view.best === view.base) return mark('mark default', 'default', x, y, 4);
  return mark(`mark best${gained(view) ? '' : ' untold'}`, 'best', x, y, 3.6);
}

function gainReadout(chooser) {
  const readout = html('p', {class: 'note strip-readout', 'aria-live': 'polite'});
  chooser.onChoose.push(view => {
    const how = view.base && view.best === view.base ? ', the default is the best'
      : gained(view) ? '' : ', not told apart from the default';
    readout.replaceChildren(html('b', {}, gainText(view)),
      `${how}: ${duration(view.spec.default_us)} to ${duration(view.spec.best_us)}, `,
      html('a', {href: `#spec-${view.number}`}, `${view.number}  `, html('code', {}, view.spec.spec)), ` ${view.spec.shape ?? ''}`);
  });
  return readout;
}

// Draws an SVG as wide as `width` allows; `sorted` has the views from left to right.
function gainPlot(chooser, sorted, width) {
  const band = Math.min(64, (width - 72) / sorted.length), numbered = band >= 24;
  const area = {left: 52, right: 52 + band * sorted.length, top: 26, bottom: 150};
  const all = [1, ...sorted.flatMap(view => [view.gain, ...view.gainRange ?? []])];
  const y = scale(all, area.bottom, area.top, {log: Math.max(...all) / Math.min(...all) > 4, gap: 24});
  y.label = tick => tick + TIMES;
  const plot = axes(width, area.bottom + (numbered ? 30 : 10), area, null, y, null, 'best over default');
  plot.append(line('guide', area.left, y.pixel(1), area.right, y.pixel(1)));
  const points = sorted.map((view, i) => ({candidate: view, x: area.left + band * (i + 0.5), y: y.pixel(view.gain)}));
  for (const {candidate: view, x} of points) {
    if (view.gainRange) {
      const [low, high] = view.gainRange.map(y.pixel);
      plot.append(line(`whisker ${gained(view) ? 'gained' : 'untold'}`, x, low, x, high));
    }
    if (numbered) plot.append(text(x, area.bottom + 23, 'middle', String(view.number)));
  }
  addPoints(chooser, plot, 'Gains', points, {kind: 'specs', draw: gainMark});
  return plot;
}

function gainLegend(sorted) {
  const entries = [];
  const add = (some, symbol, label) => some && entries.push(html('li', {},
    svg('svg', {width: 16, height: 16, 'aria-hidden': 'true'}, symbol), label));
  add(sorted.some(gained), mark('mark best', 'best', 8, 8, 3.6), 'faster than the default');
  add(sorted.some(view => !gained(view) && view.best !== view.base), mark('mark best untold', 'best', 8, 8, 3.6), 'not told apart from the default');
  add(sorted.some(view => view.base && view.best === view.base), mark('mark default', 'default', 8, 8, 4), 'the default is the best');
  return html('ul', {class: 'legend', 'aria-label': 'Marks'}, entries);
}

// Returns the markup for the page and the function that draws it there, or neither if there are not two gains.
function gainStrip(views) {
  const sorted = views.filter(view => view.gain).sort((a, b) => b.gain - a.gain);
  if (sorted.length < 2) return {nodes: [], fill: () => {}};
  const frame = html('div', {class: 'strip'}), chooser = {base: null, best: null, onChoose: []};
  const readout = gainReadout(chooser), tellReadout = chooser.onChoose[0];
  chooser.choose = view => {
    chooser.chosen = view;
    chooser.onChoose.forEach(tell => tell(view));
  };
  let drawn = 0;
  const fill = () => {
    if (!frame.clientWidth || frame.clientWidth === drawn) return;
    drawn = frame.clientWidth;
    chooser.onChoose = [tellReadout];
    frame.replaceChildren(gainPlot(chooser, sorted, drawn));
    chooser.choose(chooser.chosen ?? sorted[0]);
  };
  window.addEventListener('resize', fill);
  const nodes = [html('figure', {id: 'gains'}, frame, gainLegend(sorted), readout, html('figcaption', {},
    'Each spec by its number, the largest gain first; upright lines are intervals, dashed is the default.'))];
  return {nodes, fill};
}
