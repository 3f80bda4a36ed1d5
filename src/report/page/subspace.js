// The hidden axis: how much of the energy few directions hold, how many they are at each layer, how
// far neighbouring layers share them (and token sets), and what share of the pairs of a
// selection they decide.

const kInputStyles = {
  attention_input: {name: 'attention input', cls: 's0', form: 'circle'},
  attention_output: {name: 'attention output', cls: 's2', form: 'square'},
  mlp_input: {name: 'MLP input', cls: 's3', form: 'triangle'},
  mlp_inner: {name: 'MLP inner', cls: 's4', form: 'diamond'},
  selection_normed: {name: 'selection, normed', cls: 's1', form: 'circle'},
  selection_residual: {name: 'selection, residual', cls: 's5', form: 'square'},
};
const inputStyle = (input) =>
    (Object.hasOwn(kInputStyles, input) ? kInputStyles[input] :
                                          {name: words(String(input)), cls: 's5', form: 'cross'});

const inputLegend = (groups) =>
    legend(groupsOf(groups, (g) => g.input).map((some) => inputStyle(some[0].input)));

// Lines over layers. series: {name, cls, form, points: [layer, value, lines to tell]}.
function layersChart(width, title, series, y) {
  const layers = series.flatMap((s) => s.points.map(([layer]) => layer));
  const [first, last] = [Math.min(...layers), Math.max(...layers)];
  const plot = makePlot(width, {
    title: `${title} by layer`,
    height: 250,
    left: 48,
    top: 18,
    x: {
      domain: [first, last],
      label: 'layer',
      ticks: linearTicks(first, last, Math.min(12, width / 44)).filter(Number.isInteger)
    },
    y,
  });
  for (const s of series) addLine(plot, s.points, s.cls);
  for (const s of series.filter((each) => each.form)) {
    for (const [layer, value, lines] of s.points)
      if (isNumber(value)) addPoint(plot, layer, value, s.form, s.cls, lines, 2.8);
  }
  return plot.svg;
}

// One line per input; tell(group) -> lines behind the first.
function seriesOfInputs(groups, valueOf, tell) {
  return groupsOf(groups, (g) => g.input).map((some) => {
    const style = inputStyle(some[0].input);
    return {
      ...style,
      points:
          some.map((g) => [g.layer, valueOf(g), [`${style.name}, layer ${g.layer}`, ...tell(g)]])
    };
  });
}

function curveChart(width, groups) {
  const most = Math.max(...groups.map((g) => g.d));
  const plot = makePlot(width, {
    title: 'Energy held by the first directions',
    height: 250,
    left: 48,
    top: 18,
    x: {domain: [1, most], label: 'directions', log: true},
    y: {domain: [0, 1], label: 'energy held', format: (v) => percent(v)},
  });
  for (const g of groups) addLine(plot, g.energy_curve, inputStyle(g.input).cls);
  for (const g of groups) {
    const style = inputStyle(g.input);
    for (const share of [90, 95, 99]) {
      const k = g[`effective_rank_${share}`];
      if (!isNumber(k)) continue;
      addPoint(
          plot, k, share / 100, style.form, style.cls,
          [`${style.name}, layer ${g.layer}`, `${share} % in ${figure(k)} of ${figure(g.d)}`], 3.4);
    }
  }
  return plot.svg;
}

// parts: what stands between the title and the note.
function figureOf(title, note, ...parts) {
  return make('figure', {}, make('h4', {}, title), parts, make('figcaption', {}, note));
}

const controlRow = (...children) => make('div', {class: 'controls'}, children);

// The spectrum of one layer, where there are curves.
function curveFigure(entry) {
  const groups = entry.groups.filter((g) => asList(g.energy_curve).length);
  if (!groups.length) return null;
  const layers = groupsOf(groups, (g) => g.layer);
  let shown = layers[0];
  const host = make('div', {class: 'plot'});
  const redraw = keepDrawn(host, (width) => curveChart(width, shown));
  const choose = (i) => {
    shown = layers[i];
    redraw();
  };
  return figureOf(
      'Energy held by the first directions',
      'The sooner a line is up, the fewer directions do. Marks: 90, 95 and 99 %.',
      controlRow(chooser(
          'Layer', layers.map((some) => String(some[0].layer)), choose,
          {'data-role': 'spectrum-layer'})),
      host);
}

function rankFigure(entry) {
  const shares = [90, 95, 99];
  let share = shares[0];
  const host = make('div', {class: 'plot'});
  const key = () => `effective_rank_${share}`;
  const redraw = keepDrawn(
      host,
      (width) => layersChart(
          width, `Directions for ${share} %`,
          seriesOfInputs(
              entry.groups, (g) => (isNumber(g[key()]) ? g[key()] / g.d : null),
              (g) => [`${share} % in ${figure(g[key()])} of ${figure(g.d)}`]),
          {domain: [0, 1], label: 'directions, of all', format: (v) => percent(v)}));
  const choose = (i) => {
    share = shares[i];
    redraw();
  };
  return figureOf(
      'Directions needed, of all there are',
      'Effective rank over the width of the rows; missing where the spectrum ends before.',
      controlRow(choiceButtons('Share of the energy', shares.map((x) => x + ' %'), choose)), host);
}

function energyBlock(data) {
  const charts = make('div', {class: 'small-multiples'});
  const key = make('div', {});
  const hasCurves = (entry) => entry.groups.some((g) => asList(g.energy_curve).length);
  const entries =
      [true, false].flatMap((want) => data.directions.filter((e) => hasCurves(e) === want));
  const show = (i) => {
    const entry = entries[i];
    key.replaceChildren(inputLegend(entry.groups));
    charts.replaceChildren(...[curveFigure(entry), rankFigure(entry)].filter(Boolean));
  };
  show(0);
  return [
    make('h3', {class: 'block-name'}, 'Energy'),
    controlRow(chooser('Bases', entries.map((e) => e.name), show, {'data-role': 'bases'})), key,
    charts
  ];
}

// Directions shared with the layer before, and what chance would share.
function coherenceFigure(entry) {
  const host = make('div', {class: 'plot'});
  const series = seriesOfInputs(
      entry.groups, (g) => g.coherence_prev,
      (g) =>
          [`mean cos² ${fixed(g.coherence_prev, 3)}, chance ${fixed(entry.rank / g.d, 3)}`,
           `smallest cosine ${fixed(g.smallest_cosine_prev, 3)}`]);
  const chance =
      groupsOf(entry.groups, (g) => g.d).map((some) => ({
                                               cls: 's5 faint dashed',
                                               points: some.map((g) => [g.layer, entry.rank / g.d])
                                             }));
  keepDrawn(
      host, (width) => layersChart(width, 'Mean cos²', [...chance, ...series], {
        domain: [0, 1],
        label: 'mean cos²'
      }));
  return figureOf(
      'Directions shared with the layer before',
      `Mean cos² of the principal angles between subspaces of ${
          plural(entry.rank, 'direction')}: 1 is the same subspace. Dashed: by chance.`,
      host, inputLegend(entry.groups));
}

// Token sets of the same analysis.
function sharedTokensFigure(data, entry) {
  const profile = data.profiles.find((p) => p.part === entry.part);
  if (!profile) return null;
  const sets = profileSets(profile.run).filter((s) => !s.cls.includes('dashed'));
  const host = make('div', {class: 'plot'});
  const chart = kProfileCharts.find((c) => c.key === 'jaccard_prev');
  const redraw = keepDrawn(host, (width) => profileChart(width, profile, chart, sets));
  return figureOf(
      'Tokens shared with the layer before',
      `Jaccard of the sets (${profile.name}): 1 is the same set.`, host, legend(sets, redraw));
}

function cascadesBlock(data) {
  const charts = make('div', {class: 'small-multiples'});
  const show = (i) => {
    const entry = data.coherence[i];
    charts.replaceChildren(
        ...[coherenceFigure(entry), sharedTokensFigure(data, entry)].filter(Boolean));
  };
  show(0);
  return [
    make('h3', {class: 'block-name'}, 'The two cascades'),
    controlRow(
        chooser('Analysis', data.coherence.map((e) => e.name), show, {'data-role': 'coherence'})),
    charts
  ];
}

// One line per rank.
function seriesOfRanks(joint, valueOf) {
  const styles = ['s0', 's2', 's3', 's4', 's1', 's5'];
  const forms = ['circle', 'square', 'triangle', 'diamond'];
  const rows =
      asList(joint.layers).flatMap((layer) => asList(layer.ranks).map((r) => ({...r, of: layer})));
  return groupsOf(rows, (r) => r.rank)
      .map((some, i) => ({
             name: `k ${figure(some[0].rank)}`,
             cls: styles[i % styles.length],
             form: forms[i % forms.length],
             points: some.map(
                 (r) =>
                     [r.of.layer, valueOf(r),
                      [
                        `k ${figure(r.rank)}, layer ${r.of.layer}`,
                        `${percent(r.dropped_fraction, 1)} of ${figure(r.pairs, 3)} pairs dropped`,
                        `${milliseconds(1000 * r.of.seconds)} without, ${
                            milliseconds(1000 * r.seconds)} with, ${
                            milliseconds(1000 * r.seconds_where_pays)} if judged to pay`
                      ]])
           }));
}

function jointFigures({joint}) {
  const dropped = seriesOfRanks(joint, (r) => r.dropped_fraction);
  const time = seriesOfRanks(
      joint,
      (r) => (
          isNumber(r.seconds_where_pays) && r.of.seconds > 0 ? r.seconds_where_pays / r.of.seconds :
                                                               null));
  const most = Math.max(1, ...time.flatMap((s) => s.points.map(([, v]) => v || 0)));
  const hosts = [make('div', {class: 'plot'}), make('div', {class: 'plot'})];
  keepDrawn(
      hosts[0],
      (width) => layersChart(
          width, 'Pairs dropped', dropped,
          {domain: [0, 1], label: 'pairs dropped', format: (v) => percent(v)}));
  keepDrawn(
      hosts[1], (width) => layersChart(width, 'Time, relative', time, {
                  domain: [0, 1.05 * most],
                  label: 'time, of that without a basis'
                }));
  const bases = asObject(joint.bases);
  const text = asObject(bases.text);
  const origin = bases.path ? fileName(text.path) : 'the text after the windows';
  return {
    key: legend(dropped),
    figures: [
      figureOf(
          'Pairs dropped in k dimensions',
          `Share of the pairs considered whose cosine needs no full product; bases from ${
              origin} (${plural(text.n_tokens, 'token')}).`,
          hosts[0]),
      figureOf(
          'Time of selection over that without a basis',
          'With the basis as long as it is judged to pay; 1 is no change. Sets and owners are the same.',
          hosts[1])
    ]
  };
}

function jointBlock(data) {
  const charts = make('div', {class: 'small-multiples'});
  const key = make('div', {});
  const show = (i) => {
    const drawn = jointFigures(data.joint[i]);
    key.replaceChildren(drawn.key);
    charts.replaceChildren(...drawn.figures);
  };
  show(0);
  return [
    make('h3', {class: 'block-name'}, 'Joint selection'),
    controlRow(chooser('Setting', data.joint.map((e) => e.name), show, {'data-role': 'joint'})),
    key, charts
  ];
}

function subspaceView(data, section) {
  if (data.directions.length) append(section, energyBlock(data));
  if (data.coherence.length) append(section, cascadesBlock(data));
  if (data.joint.length) append(section, jointBlock(data));
}
