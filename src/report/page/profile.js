// The profile over layers: how many tokens are kept, how much of the set stays from layer to layer,
// for every rule together; with the paper's printed figures where they are of this model.

// The sets of a run in drawing order: {name, cls, form, get(layer) -> figures}.
function profileSets(run) {
  const layers = asList(run.layers).map(asObject);
  const first = layers[0] || {};
  const rule = (set) => asObject(set).rule;
  const sets = [];
  const add = (name, style, get) => {
    if (layers.some((layer) => isNumber(asObject(get(layer)).n_reps)))
      sets.push({name, ...style, get});
  };
  add('independent', {cls: 's1', form: 'square'}, (l) => l.independent);
  add('greedy', {cls: 's2', form: 'triangle'}, (l) => l.greedy);
  asList(first.cascades).forEach((set, i) => {
    add(rule(set) || 'cascade', {cls: i % 2 ? 's4' : 's3', form: 'diamond'},
        (l) => asList(l.cascades).find((c) => rule(c) === rule(set)));
  });
  const leading = rule(first.cascade) || asObject(run.summary).rule || 'cascade';
  const own = sets.find((s) => s.name === leading);
  if (own)
    own.leading = true;
  else
    add(leading, {cls: 's0', form: 'circle', leading: true}, (l) => l.cascade);
  add('random control', {cls: 's5 faint'}, (l) => asObject(l.controls).random);
  add('unvalidated control', {cls: 's5 faint dashed'}, (l) => asObject(l.controls).unvalidated);
  return sets;
}

// Turnover is over the set before, so a small set before makes it huge: what is above this is drawn
// at the edge, the largest with its number.
const kTurnoverTop = 2;

const kProfileCharts = [
  {
    key: 'n_reps',
    title: 'Kept, r / T',
    axis: 'tokens kept, of all',
    perToken: true,
    note: 'Lower is less work.'
  },
  {
    key: 'jaccard_prev',
    title: 'Jaccard with the layer before',
    axis: 'Jaccard',
    note: '1 is the same set, 0 nothing in common.'
  },
  {
    key: 'turnover',
    title: 'Turnover from the layer before',
    axis: 'turnover',
    note: `Tokens joined and left, over the set before; above ${kTurnoverTop} at the edge.`,
    free: true
  },
];

// The paper's points for a chart: lists of {name, cls, form, points}. Only for its own setting.
function paperPoints(entry, key) {
  const paper = entry.part.paper, run = entry.run;
  const same = paper && Math.abs(paper.tau - run.tau) < 1e-9 && paper.n_tokens === run.n_tokens &&
      paper.space === run.space;
  if (!same) return [];
  const layers = asList(paper.layers), T = paper.n_tokens;
  const merged =
      (list, value) => [...new Map(
                            list.filter((p) => isNumber(value(p))).map((p) => [p.layer, value(p)]))]
                           .sort((a, b) => a[0] - b[0]);
  const out = [];
  const add = (name, cls, form, points) => {
    if (points.length)
      out.push({name: `${paper.name || 'the paper'}, ${name} (printed)`, cls, form, points});
  };
  if (key === 'n_reps') {
    add('independent', 's1', 'square',
        merged(
            [...asList(paper.counts), ...layers], (p) => (p.n_reps ?? p.n_reps_independent) / T));
    add('cascade', 's0', 'circle', merged(layers, (p) => p.n_reps_cascade / T));
  } else if (key === 'jaccard_prev') {
    add('independent', 's1', 'square',
        merged([...asList(paper.coherence), ...layers], (p) => p.jaccard ?? p.jaccard_prev));
  } else {
    add('cascade', 's0', 'circle', merged(layers, (p) => p.turnover));
  }
  return out;
}

// The figures of a chart: {numbers of layers, at(set, i, suffix)}, per token where the chart says
// so.
function chartFigures(run, chart) {
  const layers = asList(run.layers).map(asObject);
  const unit = chart.perToken ? run.n_tokens : 1;
  return {
    numbers: layers.map((l, i) => (isNumber(l.layer) ? l.layer : i)),
    at(set, i, suffix = '') {
      const v = asObject(set.get(layers[i]))[chart.key + suffix];
      return isNumber(v) ? v / unit : null;
    }
  };
}

function profileChart(width, entry, chart, sets) {
  const {numbers, at} = chartFigures(entry.run, chart);
  const paper = paperPoints(entry, chart.key);
  const shown = sets.filter((s) => !s.off);
  const all = shown.flatMap((s) => numbers.map((_, i) => at(s, i)))
                  .concat(paper.flatMap((p) => p.points.map(([, y]) => y)));
  const most = 1.1 * Math.max(0, ...all);
  const [first, last] = [numbers[0], numbers[numbers.length - 1]];
  const plot = makePlot(width, {
    title: `${chart.title} by layer`,
    height: 250,
    left: 44,
    top: 18,
    x: {
      domain: [first, last],
      label: 'layer',
      ticks: linearTicks(first, last, Math.min(12, width / 44)).filter(Number.isInteger)
    },
    y: {
      domain: [0, chart.free ? Math.max(0.1, Math.min(kTurnoverTop, most)) : 1],
      label: chart.axis
    },
  });
  for (const set of shown.filter((s) => s.form)) {
    addBand(
        plot, numbers.map((x, i) => {
          const v = at(set, i), sd = at(set, i, '_sd');
          return [x, v === null || sd === null ? null : v - sd, v + sd];
        }),
        set.cls);
  }
  for (const set of shown) addLine(plot, numbers.map((x, i) => [x, at(set, i)]), set.cls);
  // Controls lie below: the random one keeps as many tokens as the leading set.
  const below = [...shown.filter((s) => !s.form), ...shown.filter((s) => s.form)];
  for (const set of below) addProfilePoints(plot, set, chart, numbers, at);
  if (chart.free) nameThoseAbove(plot, shown, numbers, at);
  for (const series of paper) {
    for (const [x, y] of series.points.filter(([l]) => l >= first && l <= last)) {
      addPoint(
          plot, x, y, series.form, series.cls + ' hollow',
          [series.name, `layer ${x}: ${fixed(y, 3)}`], 4.6);
    }
  }
  return plot.svg;
}

function addProfilePoints(plot, set, chart, numbers, at) {
  numbers.forEach((x, i) => {
    const v = at(set, i);
    if (v === null) return;
    addPoint(
        plot, x, Math.min(v, plot.yMost), set.form, set.cls,
        [`${set.name}, layer ${x}`, `${chart.title}: ${withError(v, at(set, i, '_sd'))}`],
        set.form ? 2.6 : 1.4);
  });
}

// Of neighbours too close for two numbers the larger has its own.
function nameThoseAbove(plot, sets, numbers, at) {
  const above =
      numbers.map((x, i) => ({x: plot.X(x), most: Math.max(...sets.map((s) => at(s, i)))}))
          .filter((p) => p.most > plot.yMost);
  for (const p of above) {
    if (above.some((q) => q.most > p.most && Math.abs(q.x - p.x) < 44)) continue;
    plot.svg.append(draw(
        'text', {x: p.x, y: plot.top - 8, 'text-anchor': 'middle', 'aria-hidden': 'true'},
        '↑ ' + figure(p.most, 2)));
  }
}

function profileView(data, section) {
  const charts = make('div', {class: 'small-multiples'});
  const key = make('div', {});
  const caption = make('p', {class: 'caption'});
  section.append(
      make(
          'div', {class: 'controls'},
          chooser('Setting', data.profiles.map((p) => p.name), show, {'data-role': 'profile'})),
      key, charts, caption);

  function show(index) {
    const entry = data.profiles[index];
    const sets = profileSets(entry.run);
    const papers = kProfileCharts.flatMap((c) => paperPoints(entry, c.key));
    const redraws = [];
    charts.replaceChildren(
        ...kProfileCharts
            .filter(
                (chart) => sets.some(
                    (s) => asList(entry.run.layers)
                               .some((l) => isNumber(asObject(s.get(asObject(l)))[chart.key]))))
            .map((chart) => {
              const host = make('div', {class: 'plot'});
              redraws.push(keepDrawn(host, (width) => profileChart(width, entry, chart, sets)));
              return make(
                  'figure', {}, make('h3', {}, chart.title), host,
                  make('figcaption', {}, chart.note));
            }));
    const paperItems = [
      ...new Map(papers.map((p) => [p.name, {...p, cls: p.cls + ' hollow', line: false}])).values()
    ];
    key.replaceChildren(
        legend(sets, () => redraws.forEach((f) => f())),
        paperItems.length ? legend(paperItems) : '');
    const n = entry.run.n_windows;
    caption.textContent =
        (n === 1 ? 'Lines are of one window of the text. ' :
                   `Lines are means over ${
                       isNumber(n) ? plural(n, 'window') : 'the windows'} of the text, ` +
                 'bands their standard deviation. ') +
        'A legend entry switches its line. ' +
        'The random control has as many tokens as the leading set, drawn anew at every layer: ' +
        'what it shares with itself is chance.' +
        (papers.length ? ' Hollow marks are the paper’s printed figures.' : '');
  }
  show(0);
}
