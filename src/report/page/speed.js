// Speed: time of each test, of dense and of the accelerated modes. Bars are relative to dense of
// the same test, so a prompt of 4096 tokens and a single generated token share one picture.

const kTimeParts = [
  ['select', 'selection', 's2'], ['attend', 'attention', 's0'], ['linear', 'matrices', 's1'],
  ['rest', 'everything else', 's5']
];

// What the others of a test are compared with: dense along both axes.
const isBaseline = (c) =>
    c.mode === 'dense' && (c.linear ?? asObject(c.settings).linear ?? 'dense') === 'dense';

function timeGroups(cases) {
  const timed = cases.filter((c) => isNumber(c.median_ms) && c.median_ms > 0);
  const place = ({part}) => placeKey(part) + (part.file || '');
  return groupsOf(timed, (c) => place(c) + '\n' + c.name).map((group) => {
    const dense = group.find(isBaseline);
    const slowest = group.reduce((a, b) => (b.median_ms > a.median_ms ? b : a));
    return {
      place: place(group[0]),
      file: group[0].part.file,
      prefix: group[0].prefix,
      name: String(group[0].name),
      cases: group,
      dense,
      unit: (dense || slowest).median_ms
    };
  });
}

const speedup = (x) => (isNumber(x) ? fixed(x, 2) + '×' : kDash);

function speedChart(width, groups) {
  const rowHeight = 26, headHeight = 34;
  const narrow = width < 560;
  const longest = Math.max(...groups.flatMap((g) => g.cases.map((c) => c.title.length)));
  const left = narrow ? 8 : Math.min(280, Math.max(90, 7.4 * longest + 16)),
        right = narrow ? 8 : 172;
  const row = rowHeight + (narrow ? 16 : 0);
  const height = groups.reduce((h, g) => h + headHeight + g.cases.length * row, 0) + 6;
  const most = Math.max(...groups.flatMap(
      (g) => g.cases.map((c) => Math.max(c.median_ms, ...asList(c.samples_ms)) / g.unit)));
  const X = scale([0, most], [left, width - right - 4]);
  const svg = drawingOf(width, height, 'Time of each test relative to dense');
  let y = 0;
  for (const g of groups) {
    svg.append(draw('text', {class: 'group-name', x: narrow ? left : 0, y: y + 24}, g.name));
    const begin = y + headHeight;
    g.cases.forEach(
        (c, i) =>
            addBar(svg, c, g, X, {y: begin + i * row, rowHeight, narrow, left, width, right}));
    y = begin + g.cases.length * row;
  }
  return svg;
}

function addBar(svg, c, group, X, at) {
  const x0 = X(0), y = at.y + (at.narrow ? 16 : 0), thick = at.rowHeight - 9;
  const parts = asObject(c.parts_ms);
  const bar = draw('g', {class: 'point'});
  let from = 0;
  const add = (value, cls) => {
    if (!(value > 0)) return;
    bar.append(draw('rect', {
      class: 'fill ' + cls,
      x: X(from / group.unit),
      y,
      height: thick,
      width: Math.max(0.5, X((from + value) / group.unit) - X(from / group.unit))
    }));
    from += value;
  };
  if (kTimeParts.some(([key]) => isNumber(parts[key])))
    kTimeParts.forEach(([key, , cls]) => add(parts[key], cls));
  else
    add(c.median_ms, 's5');
  const samples = asList(c.samples_ms).filter(isNumber);
  if (samples.length > 1) {
    const lo = X(Math.min(...samples) / group.unit), hi = X(Math.max(...samples) / group.unit),
          mid = y + thick / 2;
    bar.append(draw('path', {
      class: 'whisker',
      d: `M${lo} ${mid}H${hi}M${lo} ${mid - 4}V${mid + 4}M${hi} ${mid - 4}V${mid + 4}`
    }));
  }
  if (group.dense) {
    svg.append(draw('line', {
      class: 'contract',
      x1: X(1),
      x2: X(1),
      y1: y - (at.narrow ? 2 : 5),
      y2: y + thick + (at.narrow ? 2 : 4)
    }));
  }
  const isDense = c === group.dense;
  const text = `${milliseconds(c.median_ms)}` +
      (isDense || !isNumber(c.speedup_vs_dense) ?
           '' :
           ` · ${speedWords(c.speedup_vs_dense, c.speedup_low, c.speedup_high)}`);
  const labels = draw(
      'g', {'aria-hidden': 'true'},
      draw(
          'text', {
            x: at.narrow ? at.left : x0 - 10,
            y: at.narrow ? y - 4 : y + thick - 4,
            'text-anchor': at.narrow ? 'start' : 'end'
          },
          oneLine(c.title, Math.floor((at.narrow ? at.width - 165 : at.left - 10) / 6.8))),
      draw(
          'text', {
            class: isDense ? null : 'strong',
            x: at.narrow ? at.width - at.right : at.width - at.right + 8,
            y: at.narrow ? y - 4 : y + thick - 4,
            'text-anchor': at.narrow ? 'end' : 'start'
          },
          text));
  const lines = [
    `${group.prefix}${group.name}, ${c.title}`,
    `median ${milliseconds(c.median_ms)}` +
        (samples.length > 1 ?
             `, ${milliseconds(Math.min(...samples))} to ${milliseconds(Math.max(...samples))} in ${
                 plural(samples.length, 'run')}` :
             ''),
    ...kTimeParts.filter(([key]) => isNumber(parts[key]))
        .map(([key, name]) => `${name} ${milliseconds(parts[key])}`)
  ];
  if (isNumber(c.tokens_per_s)) lines.push(`${figure(c.tokens_per_s, 3)} tokens/s`);
  if (!isDense && isNumber(c.speedup_vs_dense))
    lines.push(speedRange(c.speedup_vs_dense, c.speedup_low, c.speedup_high));
  svg.append(labels, tellsOf(bar, lines));
}

function speedView(data, section) {
  // One picture for each model, number format, text and machine.
  const places = groupsOf(timeGroups(data.speed), (g) => g.place);
  const pictures = places.map((groups) => {
    const host = make('div', {class: 'plot'});
    keepDrawn(host, (width) => speedChart(width, groups));
    // Files of the same place are told apart by their names.
    const alike = places.filter((p) => p[0].prefix === groups[0].prefix).length > 1;
    const name = groups[0].prefix.replace(/ · $/, '') || (alike ? fileName(groups[0].file) : '');
    return [name ? make('h3', {class: 'place'}, name) : '', host];
  });
  const stacked = data.speed.some((c) => c.parts_ms);
  section.append(
      stacked ? legend(kTimeParts.map(([, name, cls]) => ({name, cls, box: true, line: false}))) :
                '',
      pictured(
          make('div', {}, pictures),
          'Shorter is faster. The dashed line is the dense model’s time for the same test; ' +
              'whiskers reach from the fastest to the slowest run. × is dense time over this ' +
              'time, taken within each round and then the median over rounds, so it need not be ' +
              'the ratio of the medians; where its range over the rounds spans 1, there is no ' +
              'difference. ' +
              'pp N reads a prompt of N tokens; tg @ N generates after N tokens.'));
}
