// What queries of refined attention open: layers x query heads, and how near keys, means and opened
// clusters share the reading. docs/results.md, `refine_reads`.

// What is read, in the order in which it is stacked.
const kReads = [
  {key: 'near', name: 'near keys', cls: 's5'},
  {key: 'clusters', name: 'means of clusters', cls: 's2'},
  {key: 'opened', name: 'members of opened clusters', cls: 's0'},
];
const readInAll = (reads) => kReads.reduce((sum, {key}) => sum + reads[key], 0);

// A share to two or three digits, however small.
const shareText = (x) => figure(100 * x, x < 0.1 ? 2 : 3) + ' %';

// Means of what some objects say of each kind.
const meanReads = (list) =>
    Object.fromEntries(kReads.map(({key}) => [key, meanOf(list.map((reads) => reads[key]))]));

// The layers of a run that refine, and the means over them; null where none does.
function refinedReads(run) {
  const plans = asList(asObject(run.plan).layers);
  const layers = asList(run.refine_reads)
                     .map((reads, layer) => reads && {
                       ...reads,
                       layer,
                       heads: asList(asObject(plans.find((l) => l.layer === layer)).heads)
                     })
                     .filter(Boolean);
  return layers.length ? {layers, mean: meanReads(layers)} : null;
}

const readsWords = ({mean}) =>
    kReads.map(({key, name}) => `${name} ${shareText(mean[key])}`).join(', ');

// The heads of a run: {layer, head, opened}.
const openedHeads = ({layers}) => layers.flatMap(
    ({layer, opened_by_head}) => opened_by_head.map((opened, head) => ({layer, head, opened})));

// Share -> step of the colour, logarithmic, over all runs, so that colours of two runs compare.
// Spans one decade at least and four at most.
function openedScale(runs) {
  let least = Infinity, most = 0;
  for (const {opened} of runs.flatMap(openedHeads)) {
    if (opened > 0) least = Math.min(least, opened);
    most = Math.max(most, opened);
  }
  if (!most) return null;
  const domain = [Math.max(most / 1e4, Math.min(least, most / 10)), most];
  return {ticks: logTicks(...domain), level: scale(domain, [0, 1], true)};
}

// What the plan does with a query head: that of its key/value head.
function headChoice({heads, opened_by_head}, h) {
  const head = heads[Math.floor(h * heads.length / opened_by_head.length)];
  if (!head) return '';
  return head.kind === 'clusters' ? deltaName(deltaOf(head)) : kindWords[head.kind] || head.kind;
}

function openedRows(entry, colours) {
  return entry.layers.map(
      (layer) => ({
        layer: String(layer.layer),
        cells: layer.opened_by_head.map((opened, h) => ({
                                          kind: opened ? 'clusters' : 'dense',
                                          level: opened ? colours.level(opened) : null,
                                          lines: [
                                            `Layer ${layer.layer}, head ${h}`,
                                            `opens ${shareText(opened)}`, headChoice(layer, h)
                                          ].filter(Boolean)
                                        }))
      }));
}

// What one sees, in words.
function openedSentence(entry) {
  const heads = openedHeads(entry).sort((a, b) => a.opened - b.opened);
  const most = heads[heads.length - 1], middle = heads[Math.ceil(heads.length / 2) - 1];
  const closed = heads.filter((h) => !h.opened).length;
  const read = `${entry.name}: in ${plural(entry.layers.length, 'layer')} queries read ${
      shareText(
          readInAll(entry.mean))} of the keys that dense attention scores: ${readsWords(entry)}.`;
  if (!most) return read;
  if (!most.opened) return `${read} No head opens anything.`;
  if (heads[0].opened === most.opened) return `${read} Every head opens ${shareText(most.opened)}.`;
  const others = middle.opened ? `half of the heads open ${shareText(middle.opened)} or less` :
                                 `${closed} of ${heads.length} heads open nothing`;
  return `${read} Head ${most.head} of layer ${most.layer} opens most, ${shareText(most.opened)}; ${
      others}.`;
}

function openedView(data, section) {
  const colours = openedScale(data.refined);
  const [grid, along] = ['Opened by head', 'Read along the text'].map(
      (name) =>
          make('div', {class: 'plot scroll', tabindex: 0, role: 'region', 'aria-label': name}));
  const sentence = make('p', {'data-role': 'opened-words', 'aria-live': 'polite'});
  const layerChoice = make('div', {class: 'controls'});
  const alongName = make('h3', {});
  let entry = null, shown = [];
  const drawGrid =
      keepDrawn(grid, (width) => headGrid(width, openedRows(entry, colours), 'query head'));
  const drawAlong = keepDrawn(along, (width) => readsChart(width, entry, shown));
  function showLayers(layers) {
    shown = layers;
    alongName.textContent = 'Along the text, ' +
        (layers.length > 1 ? `mean of ${plural(layers.length, 'layer')}` :
                             `layer ${layers[0].layer}`);
    drawAlong();
  }
  function show(i) {
    entry = data.refined[i];
    const {layers} = entry;
    sentence.textContent = openedSentence(entry);
    const choices = layers.length > 1 ? [layers, ...layers.map((l) => [l])] : [layers];
    const names = choices.map((l) => (l === layers ? 'all' : String(l[0].layer)));
    layerChoice.replaceChildren(
        ...[chooser('Layer', names, (k) => showLayers(choices[k]), {'data-role': 'opened-layer'})]
            .filter(Boolean));
    drawGrid();
    showLayers(layers);
  }
  show(0);
  section.append(
      controlRow(
          chooser('Run', data.refined.map((e) => e.name), show, {'data-role': 'opened-run'})),
      make('div', {class: 'decision'}, sentence),
      make(
          'div', {class: 'heads'},
          make(
              'div', {class: 'heads-part'}, make('h3', {}, 'Opened, by layer and query head'),
              make(
                  'div', {class: 'legend'}, swatch('dense', null, 'nothing'),
                  colours ?
                      colours.ticks.map((v) => swatch('clusters', colours.level(v), shareText(v))) :
                      null),
              pictured(
                  grid,
                  'Members of opened clusters, over the keys that dense attention scores in that ' +
                      'head. One cell per query head, the first refined layer on top. Colours ' +
                      'step by factors and mean the same for every run.')),
          make(
              'div', {class: 'heads-part'}, alongName, layerChoice,
              legend(kReads.map(({name, cls}) => ({name, cls, box: true, line: false}))),
              pictured(
                  along,
                  'What the queries of a segment of positions read, over what dense attention ' +
                      'scores for them.'))));
}

const readColumns =
    [...kReads.map(({key, name}) => ({name, get: (r) => r[key]})), {name: 'read', get: readInAll}];

// Rows of positions have the mean of the layers; what single layers open there is a column each.
function refinedTables({name, layers, context}) {
  const layer = {name: 'layer', get: (r) => r.layer};
  const from = {name: 'from position', get: (r) => r.begin};
  const n = layers.reduce((most, l) => Math.max(most, l.opened_by_head.length), 0);
  const heads =
      Array.from({length: n}, (_, h) => ({name: `head ${h}`, get: (r) => r.opened_by_head[h]}));
  const ofLayers = layers.map((l) => {
    const opened = new Map(l.positions.map((at) => [at.begin, at.opened]));
    return {name: `layer ${l.layer}`, get: (r) => opened.get(r.begin)};
  });
  const rows = readsAlong(layers, context);
  return [
    makeTable(
        `${name}: read by layer, of what dense attention scores`, [layer, ...readColumns], layers),
    makeTable(`${name}: opened by query head`, [layer, ...heads], layers),
    makeTable(`${name}: read by position, mean of the layers`, [from, ...readColumns], rows),
    makeTable(`${name}: opened by position`, [from, ...ofLayers], rows)
  ];
}
