// What refined attention reads along the text: near keys, means and opened clusters as stacked
// areas. A share is that of a whole segment of positions, so areas are steps.

// The mean of the layers' shares from each position on where one of them changes:
// {begin, end, near, clusters, opened}, ascending. `length` is that of a window.
function readsAlong(layers, length) {
  const sorted = layers.map((l) => [...l.positions].sort((a, b) => a.begin - b.begin))
                     .filter((segments) => segments.length);
  const begins = [...new Set(sorted.flat().map((s) => s.begin))].sort((a, b) => a - b);
  const at = sorted.map(() => 0);  // of each layer, the segment that `begin` is in
  const rows = begins.map((begin) => {
    const here = sorted.map((segments, i) => {
      while (at[i] + 1 < segments.length && segments[at[i] + 1].begin <= begin) ++at[i];
      return segments[at[i]];
    });
    return {begin, ...meanReads(here)};
  });
  return rows.map(
      (row, i) =>
          ({...row, end: i + 1 < rows.length ? rows[i + 1].begin : lastEnd(begins, length)}));
}

// Where the last segment ends: it is as long as the one before, unless the window ends first.
function lastEnd(begins, length) {
  const [before, last] = [begins[begins.length - 2], begins[begins.length - 1]];
  const whole = isNumber(before) ? 2 * last - before : Infinity;
  const end = Math.min(whole, length > last ? length : Infinity);
  return Number.isFinite(end) ? end : last + 1;
}

function readsChart(width, entry, layers) {
  const rows = readsAlong(layers, entry.context);
  if (!rows.length) return make('p', {class: 'hint'}, 'No positions were counted.');
  const most = rows.reduce((y, row) => Math.max(y, readInAll(row)), 1);
  const plot = makePlot(width, {
    title: `Read along the text, of what dense attention scores, ${plural(rows.length, 'segment')}`,
    height: Math.round(Math.min(360, Math.max(260, 0.6 * width))),
    x: {domain: [rows[0].begin, rows[rows.length - 1].end], label: 'position, tokens'},
    y: {domain: [0, most], label: 'keys read, of dense', format: (v) => percent(v)},
  });
  const below = rows.map(() => 0);
  for (const {key, cls} of kReads) {
    const above = rows.map((row, i) => below[i] + row[key]);
    plot.inner.append(draw('path', {class: 'area ' + cls, d: stepArea(plot, rows, below, above)}));
    above.forEach((y, i) => {
      below[i] = y;
    });
  }
  addColumns(plot, rows);
  return plot.svg;
}

function stepArea(plot, rows, below, above) {
  const at = (x, y) => `${plot.X(x).toFixed(1)} ${plot.Y(y).toFixed(1)}`;
  const up = rows.flatMap((r, i) => [at(r.begin, above[i]), at(r.end, above[i])]);
  const down = rows.flatMap((r, i) => [at(r.begin, below[i]), at(r.end, below[i])]).reverse();
  return 'M' + up.concat(down).join('L') + 'Z';
}

// Invisible columns that tell their segment's figures; of segments too narrow to point at, some.
const kColumnWidth = 6;
function addColumns(plot, rows) {
  const each = Math.ceil(kColumnWidth * rows.length / (plot.right - plot.left));
  for (let i = 0; i < rows.length; i += each) {
    const row = rows[i], x = plot.X(row.begin);
    const end = plot.X(rows[Math.min(i + each, rows.length) - 1].end);
    const column = draw('rect', {
      class: 'column',
      x,
      y: plot.top,
      width: Math.max(1, end - x),
      height: plot.bottom - plot.top
    });
    plot.svg.append(tellsOf(draw('g', {class: 'point'}, column), [
      `Positions ${figure(row.begin)} to ${figure(row.end - 1)}`,
      ...kReads.map(({key, name}) => `${name} ${shareText(row[key])}`),
      `read in all ${shareText(readInAll(row))}`
    ]));
  }
}
