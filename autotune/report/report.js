// Draws the page from the JSON in #data. Text from it becomes text nodes and attribute values, never HTML.

const byId = id => document.getElementById(id);
function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
}
function make(node, attributes, children) {
  set(node, attributes);
  node.append(...children.flat().filter(child => child !== null));
  return node;
}
const html = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const SVG = 'http://www.w3.org/2000/svg';
const svg = (tag, attributes, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// ---- candidates

const time = candidate => positive(candidate.us);
const field = (candidate, name) => Object.hasOwn(candidate.fields ?? {}, name) ? String(candidate.fields[name]) : null;
const fieldNames = candidate => Object.keys(candidate.fields ?? {});
const hasInterval = candidate => Boolean(positive(candidate.us_low) && positive(candidate.us_high));
const interval = (candidate, unit) => hasInterval(candidate)
  ? `${timeText(candidate.us_low, unit)}${DASH}${timeText(candidate.us_high, unit)}` : '';
// Returns whether the interval of a candidate reaches that of the default, because they may be equally fast then.
const untold = ({base}, candidate) => Boolean(base && candidate !== base && hasInterval(base) && hasInterval(candidate)
  && candidate.us_low <= base.us_high && base.us_low <= candidate.us_high);
const fieldText = (candidate, wanted) =>
  fieldNames(candidate).filter(wanted).map(name => `${name}=${field(candidate, name)}`).join(' ');
// Fields that all candidates share do not tell them apart.
const shortText = (view, candidate) => fieldText(candidate, name => view.varying.includes(name)) || candidate.schedule;
const differs = (view, candidate) => candidate === view.best ? 'the best'
  : fieldText(candidate, name => !view.best || field(view.best, name) !== field(candidate, name)) || candidate.schedule;
// A schedule may break after each comma.
const code = (schedule, attributes = {}) =>
  html('code', attributes, schedule.split(',').flatMap((field, i) => i ? [',', html('wbr', {}), field] : [field]));

// Schedules beyond the compiler's list are not a part of it.
const triedText = (tried, space, unlisted) =>
  `${plain(unlisted ? tried - unlisted : tried)} of ${plain(space)}${unlisted ? ` + ${plain(unlisted)}` : ''}`;

function gainRange(spec, best) {
  const low = ratio(spec.default_us, spec.best_high ?? best?.us_high), high = ratio(spec.default_us, spec.best_low ?? best?.us_low);
  return low && high ? [low, high] : null;
}

function prepare(spec, index) {
  const candidates = spec.candidates ?? [];
  const timed = candidates.filter(time).sort((a, b) => time(a) - time(b));
  const measured = timed.filter(candidate => candidate.status === 'measured');
  const values = new Map();  // values of each field
  for (const candidate of candidates) {
    for (const name of fieldNames(candidate)) values.set(name, (values.get(name) ?? new Set()).add(field(candidate, name)));
  }
  const named = schedule => candidates.find(candidate => candidate.schedule === schedule) ?? null;
  const base = named(spec.default_schedule), best = named(spec.best_schedule) ?? measured[0] ?? null;
  return {
    spec, candidates, timed, measured, values, base, best, number: index + 1,
    unit: unitOf(positive(spec.best_us) ?? positive(spec.default_us) ?? 1),
    varying: [...values.keys()].filter(name => values.get(name).size > 1),
    families: [...values.get('family') ?? []],
    gain: ratio(spec.default_us, spec.best_us),
    // There is nothing to show if the best is the default itself, or if no interval is known.
    gainRange: base && base === best ? null : gainRange(spec, best),
    regret: some(spec.regret) ?? excess(spec.first_choice_us, spec.best_us),
    tried: triedText(some(spec.tried), some(spec.space), some(spec.tried_unlisted)),
  };
}

// ---- tables that sort by their heads; a missing value comes last, whichever way

// A column has a name, value(row) to sort by, and cell(row, value) to show. `words` are put left, `wide` takes the line
// on a phone.
function sortable(name, columns, rows, {shown = Infinity, onRow = () => {}} = {}) {
  const body = html('tbody', {role: 'rowgroup'});
  const made = new Map();
  const rowOf = row => {
    if (made.has(row)) return made.get(row);
    const line = html('tr', {role: 'row'}, columns.map(column => {
      const value = column.value(row);
      const kind = column.wide ? 'wide' : column.words ? 'words' : 'number';
      return html('td', {role: 'cell', class: kind, 'data-label': column.name}, column.cell(row, value));
    }));
    made.set(row, line);
    onRow(row, line);
    return line;
  };
  let sorted = rows, by = null, up = true;
  const fill = () => body.replaceChildren(...sorted.slice(0, shown).map(rowOf));
  const heads = columns.map(column => {
    const button = html('button', {type: 'button'}, column.name);
    const kind = column.words || column.wide ? 'words' : 'number';
    const head = html('th', {role: 'columnheader', scope: 'col', class: kind}, button);
    button.addEventListener('click', () => {
      [up, by] = [by === column ? !up : true, column];
      heads.forEach(other => other.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      const order = (a, b) => typeof a === 'string' ? byText(a, b) : a - b;
      const present = rows.filter(row => column.value(row) !== null);
      present.sort((a, b) => (up ? 1 : -1) * order(column.value(a), column.value(b)));
      sorted = [...present, ...rows.filter(row => column.value(row) === null)];
      fill();
    });
    return head;
  });
  fill();
  const top = html('thead', {role: 'rowgroup'}, html('tr', {role: 'row'}, heads));
  const table = html('table', {role: 'table', 'aria-label': name}, top, body);
  if (rows.length <= shown) return [table];
  const more = html('button', {type: 'button', class: 'more'}, `Show all ${rows.length}`);
  more.addEventListener('click', () => {
    shown = Infinity;
    more.remove();
    fill();
  });
  return [table, more];
}

function candidateTable(view) {
  const {unit} = view;
  const number = (name, value, cell) => ({name, value, cell: (row, value) => cell(value)});
  const relation = row => row === view.base ? 'the default' : untold(view, row) ? 'not told apart from the default' : null;
  const small = words => words ? html('span', {class: 'why'}, words) : null;
  const columns = [
    {name: 'schedule', wide: true, value: row => row.schedule,
      cell: row => [html('code', {}, shortText(view, row)), code(row.schedule, {class: 'whole'})]},
    number(unit.name, time, us => timeText(us, unit)),
    {name: 'interval', value: row => positive(row.us_low), cell: row => interval(row, unit) || DASH},
    number('predicted', row => positive(row.predicted_us), us => timeText(us, unit)),
    number('off by', row => excess(row.predicted_us, row.us), percent),
    number('speed-up', row => ratio(view.spec.default_us, row.us), times),
    number('registers', row => positive(row.registers), plain),
    number('shared kB', row => ratio(row.smem_bytes, 1000), plain),
    {name: 'status', words: true, value: row => row.status ?? null,
      cell: (row, value) => [value ?? DASH, small(relation(row)), small(row.why)]},
  ].filter(column => column.wide || view.candidates.some(row => column.value(row) !== null));
  return sortable('Candidates', columns, view.candidates, {shown: 10, onRow: (row, line) => {
    line.addEventListener('click', () => view.choose(row));
    line.classList.toggle('chosen', view.chosen === row);
    view.onChoose.push(chosen => line.classList.toggle('chosen', chosen === row));
  }});
}

// ---- a spec: drawn when it is opened, and again when the width changes

const figures = (list, kind = '') => html('dl', {class: `figures ${kind}`},
  list.map(([name, value]) => html('div', {}, html('dt', {}, name), html('dd', {}, value))));
const note = (...content) => html('p', {class: 'note'}, ...content);
const heading = content => html('h3', {}, content);

function readoutOf(view) {
  const readout = html('p', {class: 'readout', 'aria-live': 'polite'});
  view.onChoose.push(chosen => {
    const unit = unitOf(time(chosen) ?? 1), range = hasInterval(chosen) ? ` (${interval(chosen, unit)})` : '';
    const relation = chosen === view.base ? ', the default' : untold(view, chosen) ? ', not told apart from the default' : '';
    const same = view.best && chosen !== view.best ? 'as the best, but ' : '';
    readout.replaceChildren(
      html('b', {}, duration(chosen.us) + range), `, predicted ${duration(chosen.predicted_us)}, `,
      chosen.status ?? 'no status', relation, chosen.why ? `: ${chosen.why}` : '', html('br', {}),
      html('code', {}, same + differs(view, chosen)));
  });
  return readout;
}

function cutList(view) {
  const cut = [...view.spec.cut ?? []].sort((a, b) => (b.count ?? 0) - (a.count ?? 0));
  if (!cut.length) return note('Nothing was cut.');
  return html('ul', {class: 'cut'}, cut.map(({count, why}) =>
    html('li', {}, html('b', {}, plain(some(count))), html('span', {}, why ?? ''))));
}

function draw(view) {
  const {spec, box} = view;
  if (!box.clientWidth || view.width === box.clientWidth) return;
  view.width = box.clientWidth;
  view.onChoose = [];
  view.choose = candidate => {
    view.chosen = candidate;
    view.onChoose.forEach(tell => tell(candidate));
  };
  const constant = [...view.values].filter(([, values]) => values.size === 1).map(([name, [value]]) => `${name}=${value}`);
  const wide = html('div', {class: 'plots'}), small = html('div', {class: 'plots small'});
  box.replaceChildren(
    figures([['default', duration(spec.default_us)], ['best', duration(spec.best_us)], ['gain', gainText(view)],
      ["model's first choice", duration(spec.first_choice_us)], ['its regret', percent(view.regret)],
      ['tried', view.tried]], 'large'),
    note('Best schedule: ', code(spec.best_schedule ?? DASH), spec.best_why ? `, ${spec.best_why}` : null), legend(view), wide,
    heading('Time by field'), note('The line joins the best time of each value; dashed is the default. ',
      constant.length ? `The same in all: ${constant.join(', ')}.` : ''), small,
    heading('Cut before measuring'), cutList(view), heading('Candidates'), ...candidateTable(view), readoutOf(view));
  // The grid decides how wide a frame is.
  const fill = (grid, plots) => {
    grid.append(...plots.map(() => html('div', {})));
    const width = grid.firstChild?.clientWidth;
    grid.replaceChildren(...plots.map(plot => plot(width)));
  };
  fill(wide, [width => predictionPlot(view, width), width => rooflinePlot(view, width), () => bars(view)]);
  const timedValues = name => new Set(known(view.timed.map(candidate => field(candidate, name))));
  const drawn = view.varying.filter(name => timedValues(name).size > 1);
  fill(small, drawn.map(name => width => fieldPlot(view, name, width)));
  if (!drawn.length) small.replaceWith(note('Not drawn: there are no two values of a field with a time.'));
  const chosen = view.chosen ?? view.best ?? view.candidates[0];
  if (chosen) view.choose(chosen);
  else box.lastChild.remove();
}

function specSection(view, index) {
  view.box = html('div', {});
  const short = `${view.spec.shape ?? ''} best ${duration(view.spec.best_us)}, gain ${times(view.gain)}`;
  view.section = html('details', {class: 'spec', id: `spec-${index + 1}`},
    html('summary', {}, html('span', {}, `${view.number}  `), html('code', {}, view.spec.spec), html('span', {class: 'note'}, short)), view.box);
  view.section.addEventListener('toggle', () => view.section.open && draw(view));
  return view.section;
}

// ---- the page

function summary(views) {
  const gains = known(views.map(view => view.gain)), regrets = known(views.map(view => view.regret));
  const most = Math.max(1, ...gains);
  const total = key => views.reduce((sum, view) => sum + (some(view.spec[key]) ?? 0), 0);
  const columns = [
    {name: 'spec', wide: true, value: view => view.spec.spec, cell: view => [
      `${view.number}  `, html('a', {href: `#${view.section.id}`}, html('code', {}, view.spec.spec)), ' ',
      html('span', {class: 'note'}, view.spec.shape ?? '')]},
    {name: 'default', value: view => positive(view.spec.default_us), cell: (view, value) => duration(value)},
    {name: 'best', value: view => positive(view.spec.best_us), cell: (view, value) => duration(value)},
    {name: 'gain', value: view => view.gain, cell: (view, value) => [
      times(value), value && html('span', {class: 'gain', style: `width:${(value / most * 72).toFixed(1)}px`})]},
    {name: 'regret', value: view => view.regret, cell: (view, value) => percent(value)},
    {name: 'tried', value: view => some(view.spec.tried), cell: view => view.tried},
  ];
  const lines = new Map();
  const table = sortable('Specs', columns, views, {onRow: (view, line) => lines.set(view, line)});
  const filter = html('input', {type: 'search', autocomplete: 'off'});
  filter.addEventListener('input', () => {
    const wanted = filter.value.toLowerCase();
    for (const view of views) {
      const absent = !`${view.spec.spec} ${view.spec.shape ?? ''}`.toLowerCase().includes(wanted);
      view.section.hidden = lines.get(view).hidden = absent;
    }
  });
  const strip = gainStrip(views);
  byId('summary').append(
    figures([['specs', plain(views.length)],
      ['gain, geometric mean', times(gains.length ? Math.exp(mean(gains.map(Math.log))) : null)],
      ['regret, mean', percent(mean(regrets))], ['worst', percent(regrets.length ? Math.max(...regrets) : null)],
      ['tried', triedText(total('tried'), total('space'), total('tried_unlisted'))]], 'large'),
    note("Gain: default over best. Regret: how much slower the cost model's first choice is than the best. "
      + (total('tried_unlisted') ? 'Tried: of the list of the compiler + beyond it.' : '')),
    ...strip.nodes,
    ...views.length > 8 ? [html('label', {}, 'Only specs with ', filter)] : [], ...table);
  strip.fill();
}

function machine(found) {
  const names = {gpu: 'GPU', sms: 'SMs', clock_mhz: 'clock, MHz', temperature: 'temperature, \u00b0C'};
  const shown = (name, value) => typeof value !== 'number' ? String(value) : name === 'noise' ? percent(value) : plain(value);
  byId('machine').replaceWith(figures(Object.entries(found).filter(([, value]) => value !== null)
    .map(([name, value]) => [Object.hasOwn(names, name) ? names[name] : name, shown(name, value)])));
}

function start() {
  const report = JSON.parse(byId('data').textContent);
  machine(report.machine ?? {});
  const views = report.specs.map(prepare);
  if (report.command) {
    byId('made').hidden = false;
    byId('command').textContent = report.command;
  }
  byId('specs').append(...views.map(specSection));
  summary(views);
  const openNamed = () => {
    const view = views.find(view => `#${view.section.id}` === location.hash);
    if (!view) return;
    view.section.open = true;
    view.section.scrollIntoView();
  };
  window.addEventListener('hashchange', openNamed);
  window.addEventListener('resize', () => views.filter(view => view.section.open).forEach(draw));
  if (views.length === 1) views[0].section.open = true;
  openNamed();
  document.documentElement.dataset.state = 'drawn';
}

window.addEventListener('error', event => {
  document.documentElement.dataset.state = 'failed';
  byId('error').hidden = false;
  byId('error').textContent = `This page could not be drawn: ${event.message}`;
});
start();
