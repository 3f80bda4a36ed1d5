// Heads: layers x key/value heads. What a plan does with each head, and, where the key space was
// analysed, how many tokens each head keeps.

// One hue from pale to dark in three stops; null leaves the colour to the class.
function levelStyle(level) {
  if (level === null) return null;
  const [from, to, share] =
      level < 0.5 ? ['low', 'mid', 2 * level] : ['mid', 'high', 2 * level - 1];
  return `fill: color-mix(in oklab, var(--seq-${from}), var(--seq-${to}) ${
      Math.round(100 * share)}%)`;
}

// cells: (rows of) {level in 0..1 or null, pattern, lines}; a level is a step of one colour.
// Columns have numbers, or names of two words that stand one above the other.
function headGrid(width, rows, columnsLabel, names) {
  const n = Math.max(...rows.map((r) => r.cells.length));
  const left = 40, top = 22, bottom = names ? 36 : 40;
  const cell = Math.max(4, Math.min(names ? 110 : 34, (width - left - 8) / n));
  const height = Math.max(11, Math.min(22, 420 / rows.length));
  const total = top + rows.length * height + bottom;
  const inner = left + n * cell;
  const svg = draw('svg', {
    class: 'chart',
    viewBox: `0 0 ${Math.max(inner + 8, 150)} ${total}`,
    width: Math.max(inner + 8, 150),
    height: total,
    role: 'group',
    'aria-label': `${plural(rows.length, 'layer')} by ${plural(n, columnsLabel)}`
  });
  svg.append(draw('text', {class: 'axis-label', x: 0, y: 12, 'aria-hidden': 'true'}, 'layer'));
  rows.forEach((row, i) => {
    const y = top + i * height;
    if (i % Math.max(1, Math.ceil(13 / height)) === 0) {
      svg.append(draw(
          'text', {x: left - 8, y: y + height / 2 + 4, 'text-anchor': 'end', 'aria-hidden': 'true'},
          row.layer));
    }
    row.cells.forEach((c, h) => {
      const box = {
        x: left + h * cell + 1,
        y: y + 1,
        width: Math.max(1, cell - 2),
        height: height - 2,
        rx: 2
      };
      const group = draw(
          'g', {class: 'point'},
          draw('rect', {...box, class: 'head ' + c.kind, style: levelStyle(c.level)}));
      if (c.kind === 'window') {
        group.append(draw('path', {
          class: 'hatch',
          d: `M${box.x + 2} ${box.y + box.height - 2}L${
              box.x + Math.min(box.width - 2, 2 + box.height)} ${box.y + 2}`
        }));
      }
      svg.append(tellsOf(group, c.lines));
    });
  });
  if (names) {
    const label = (text, h, y) => draw(
        'text', {x: left + (h + 0.5) * cell, y, 'text-anchor': 'middle', 'aria-hidden': 'true'},
        text);
    names.forEach((name, h) => {
      const at = name.lastIndexOf(' ');
      svg.append(
          label(name.slice(0, Math.max(0, at)), h, total - bottom + 14),
          label(name.slice(at + 1), h, total - bottom + 29));
    });
    return svg;
  }
  const every = Math.max(1, Math.ceil(24 / cell));
  for (let h = 0; h < n; h += every) {
    svg.append(draw(
        'text', {
          x: left + (h + 0.5) * cell,
          y: total - bottom + 16,
          'text-anchor': 'middle',
          'aria-hidden': 'true'
        },
        h));
  }
  svg.append(draw('text', {class: 'axis-label', x: left, y: total - 6}, columnsLabel));
  return svg;
}

const kindWords = {
  clusters: 'clusters',
  window: 'window only',
  dense: 'dense'
};

// What a head of clusters is given: a threshold of similarity, or delta where it refines. Each has
// a colour scale of its own.
const kHeadScales = [
  {
    kind: 'clusters',
    has: (layer) => layer.mode !== 'refine',
    value: (head) => head.tau,
    name: (tau) => 'τ ' + figure(tau),
    words: 'from small to large τ: the larger, the more tokens are merged'
  },
  {
    kind: 'clusters refined',
    has: (layer) => layer.mode === 'refine',
    value: deltaOf,
    name: deltaName,
    words: 'from small to large delta: the larger, the fewer clusters are opened'
  },
];

// The scales of a plan with the values they have there, ascending.
function headScales(plan) {
  return kHeadScales
      .map((scale) => {
        const heads = plan.layers.filter(scale.has).flatMap((layer) => layer.heads);
        const values = new Set(heads.filter((h) => h.kind === 'clusters').map(scale.value));
        const steps = [...values].sort((a, b) => a - b);
        const level = (value) =>
            (steps.length < 2 ? 0.6 : steps.indexOf(value) / (steps.length - 1));
        return {...scale, steps, level};
      })
      .filter(({steps}) => steps.length);
}

const layerWords = (layer) => `${layer.mode}, window ${figure(layer.window)}, ` +
    (layer.mode === 'refine' ? `segment ${figure(layer.segment)}, page ${
                                   figure(layer.page)}, tile ${figure(layer.tile)}` :
                               `block ${figure(layer.block)}`) +
    (layer.reuse ? ', set of the layer before' : '');

function planRows(plan) {
  const scales = headScales(plan);
  return plan.layers.map(
      (layer) => ({
        layer: String(layer.layer),
        cells: layer.heads.map((head, h) => {
          const of = head.kind === 'clusters' && scales.find((scale) => scale.has(layer));
          return {
            kind: of ? of.kind : head.kind,
            level: of ? of.level(of.value(head)) : null,
            lines: [
              `Layer ${layer.layer}, head ${h}`, kindWords[head.kind] || head.kind,
              of ? of.name(of.value(head)) +
                      (layer.mode === 'refine' ? '' : `, far ${head.far || kDash}`) :
                                                 '',
              layerWords(layer)
            ].filter(Boolean)
          };
        })
      }));
}

function swatch(kind, level, text) {
  const rect = draw(
      'rect',
      {class: 'head ' + kind, x: 1, y: 1, width: 16, height: 12, rx: 2, style: levelStyle(level)});
  return make(
      'span', {class: 'legend-item'},
      draw(
          'svg', {width: 18, height: 14, 'aria-hidden': 'true'}, rect,
          kind === 'window' ? draw('path', {class: 'hatch', d: 'M3 12L13 2'}) : null),
      text);
}

function planPicture(data) {
  const host = make(
      'div', {class: 'plot scroll', tabindex: 0, role: 'region', 'aria-label': 'Plan by head'});
  const key = make('div', {class: 'legend'});
  const drawn = pictured(host, '');
  const box = make(
      'div', {class: 'heads-part'}, make('h3', {}, 'Plan'),
      make(
          'div', {class: 'controls'},
          chooser('Plan', data.plans.map((p) => p.name), show, {'data-role': 'plan'})),
      key, drawn);
  let index = 0;
  const redraw =
      keepDrawn(host, (width) => headGrid(width, planRows(data.plans[index]), 'key/value head'));
  function show(i) {
    index = i;
    const plan = data.plans[i];
    const heads = plan.layers.flatMap((l) => l.heads), scales = headScales(plan);
    drawn.lastChild.textContent = 'One cell per key/value head, the first layer on top. ' +
        (scales.length ? `The legend goes ${scales.map((s) => s.words).join(', and ')}. ` : '') +
        'Struck cells read the window alone, open cells everything.';
    key.replaceChildren(
        ...scales.flatMap(
            ({kind, steps, level, name}) =>
                steps.map((value) => swatch(kind, level(value), name(value)))),
        ...['window', 'dense']
            .filter((k) => heads.some((h) => h.kind === k))
            .map((k) => swatch(k, null, kindWords[k])));
    redraw();
  }
  show(0);
  return box;
}

function keptPicture(data) {
  const host = make(
      'div', {class: 'plot scroll', tabindex: 0, role: 'region', 'aria-label': 'Kept by head'});
  let entry = data.heads[0];
  const redraw = keepDrawn(
      host,
      (width) => headGrid(
          width,
          asList(entry.run.layers).map((layer, i) => ({
                                         layer: String(layer.layer ?? i),
                                         cells: asList(layer.heads).map((head, h) => {
                                           const share = isNumber(head.n_reps_cascade) ?
                                               head.n_reps_cascade / entry.run.n_tokens :
                                               null;
                                           return {
                                             kind: 'clusters',
                                             level: share,
                                             lines: [
                                               `Layer ${layer.layer}, head ${h}`,
                                               `kept ${percent(share, 1)} (${
                                                   figure(head.n_reps_cascade)} of ${
                                                   figure(entry.run.n_tokens)})`,
                                               `independent ${figure(head.n_reps_independent)}`
                                             ]
                                           };
                                         })
                                       })),
          'key/value head'));
  return make(
      'div', {class: 'heads-part'}, make('h3', {}, 'Kept, r / T, in each head’s own keys'),
      make(
          'div', {class: 'controls'},
          chooser(
              'Setting', data.heads.map((p) => p.name),
              (i) => {
                entry = data.heads[i];
                redraw();
              })),
      make(
          'div', {class: 'legend'},
          [0, 0.25, 0.5, 0.75, 1].map((v) => swatch('clusters', v, percent(v)))),
      pictured(
          host,
          'Each head compares its own keys. Where few tokens are kept, keys are much alike.'));
}

function headsView(data, section) {
  section.append(make(
      'div', {class: 'heads'}, data.plans.length ? planPicture(data) : null,
      data.heads.length ? keptPicture(data) : null));
}
