// Quality against work: how far predictions move (KL, perplexity) for how much is still read.

const kSmallLoss = 0.02;  // what the headline and comparisons of methods allow
const kContracts = [0.002, 0.005, 0.01, 0.02, 0.05];
const kModeStyles = {
  keys: ['s0', 'circle'],
  refine: ['s3', 'diamond'],
  copy: ['s2', 'triangle'],
  paper: ['s4', 'diamond'],
  plan: ['s3', 'square'],
  gsi: ['s1', 'square'],
  graded: ['s3', 'triangle'],
  'baseline:window': ['s5', 'diamond'],
  'baseline:quest': ['s5', 'square'],
  'baseline:pooled': ['s5', 'triangle'],
  'baseline:oracle': ['s5', 'circle']
};
const modeStyle = (mode) => kModeStyles[mode] || ['s5', 'cross'];

// Attention, or the linear layers where that alone is dense.
function modeOf({settings}) {
  if (settings.attention !== 'dense') return settings.attention;
  return typeof settings.linear === 'string' ? settings.linear : 'dense';
}

const kWorkAxes = [
  {key: 'keys_read_fraction', label: 'keys read, of dense', button: 'keys read'},
  {key: 'clusters_fraction', label: 'clusters, of tokens', button: 'clusters'},
  {key: 'weight_bytes_fraction', label: 'weights read, of dense', button: 'weights read'},
];
const kQualityAxes = [
  {key: 'kl_mean', error: 'kl_stderr', label: 'KL from dense, nats', button: 'KL'},
  {
    key: 'ppl_ratio',
    error: 'ppl_ratio_stderr',
    label: 'perplexity, of dense',
    button: 'perplexity'
  },
];

function qualityDomain(axis, values) {
  if (axis.key === 'ppl_ratio') {
    const lo = Math.min(1, ...values), hi = Math.max(1.01, ...values), pad = (hi / lo) ** 0.1;
    return [lo / pad, hi * pad];
  }
  const above = values.filter((v) => v > 0);
  const lo = Math.min(0.001, ...above), hi = Math.max(0.1, ...above);
  return [Math.max(1e-7, lo / 2), hi * 1.8];
}

function qualityChart(width, runs, work, quality) {
  const values = runs.map((r) => r.metrics[quality.key]);
  const most = Math.max(1, ...runs.map((r) => r.metrics[work.key]));
  const contracts = quality.key === 'kl_mean', roomy = width > 460;
  const plot = makePlot(width, {
    title: `${quality.label} against ${work.label}, ${plural(runs.length, 'run')}`,
    height: Math.round(Math.min(420, Math.max(300, width * 0.5))),
    left: roomy ? 64 : 54,
    top: 12,
    right: !contracts ? 20 :
        roomy         ? 76 :
                        44,
    x: {domain: [0, most], label: work.label, format: (v) => percent(v)},
    y: {domain: qualityDomain(quality, values), label: quality.label, log: true},
  });
  for (const kl of contracts ? kContracts : []) {
    plot.svg.append(
        draw(
            'line',
            {class: 'contract', x1: plot.left, x2: plot.right, y1: plot.Y(kl), y2: plot.Y(kl)}),
        draw('text', {x: plot.right + 6, y: plot.Y(kl) + 4}, (roomy ? 'KL ' : '') + kl));
  }
  connectRuns(plot, runs, work, quality);
  const labels = [];
  for (const run of runs) addRun(plot, run, work, quality, labels);
  return plot.svg;
}

// What steps from run to run of a series: epsilon where attention is dense, delta where it is
// refined, keep of baselines, else tau.
const kSteps = {
  __proto__: null,
  dense: 'epsilon',
  refine: 'delta'
};
const stepOf = ({settings}) =>
    kSteps[settings.attention] || (isNumber(settings.keep) ? 'keep' : 'tau');
const kStepNames = {
  tau: 'τ ',
  epsilon: 'ε ',
  keep: 'keep '
};
function stepped(run) {
  const {settings} = run, key = stepOf(run);
  return key === 'delta' && settings.delta !== undefined ? deltaOf(settings) : settings[key];
}

// A run as a label says it: `τ 0.3`; nothing where no figure steps.
function stepName(run) {
  const value = stepped(run);
  if (!isNumber(value) && value !== Infinity) return '';
  return stepOf(run) === 'delta' ? deltaName(value) : kStepNames[stepOf(run)] + figure(value);
}

// Runs that differ in that alone.
const seriesOf = (runs) => groupsOf(
    runs,
    (r) => [placeKey(r.part), r.context, stepOf(r), settingKey(r.settings, stepOf(r))].join('\n'));

// A thin line joins the runs of a series in their order.
function connectRuns(plot, runs, work, quality) {
  for (const group of seriesOf(runs)) {
    if (group.length < 2) continue;
    const sorted = [...group].sort((a, b) => stepped(a) - stepped(b));
    addLine(
        plot, sorted.map((r) => [r.metrics[work.key], r.metrics[quality.key]]),
        modeStyle(modeOf(group[0]))[0] + ' thin');
  }
}

// What is read, or what choosing it takes; nothing of baselines.
function choosingWords(run) {
  if (run.reads) return [readsWords(run.reads)];
  if (stepOf(run) === 'keep') return [];
  return [`choosing: products of token rows, ${percent(run.metrics.selection_products, 1)} of T²`];
}

function addRun(plot, run, work, quality, labels) {
  const m = run.metrics, [cls, form] = modeStyle(modeOf(run));
  const x = m[work.key], y = m[quality.key], error = m[quality.error];
  if (isNumber(error) && error > 0) {
    plot.inner.append(draw('line', {
      class: 'error ' + cls,
      x1: plot.X(x),
      x2: plot.X(x),
      y1: plot.Y(y - error),
      y2: plot.Y(y + error)
    }));
  }
  const below = quality.key === 'kl_mean' && !(y > 0);
  addPoint(
      plot, x, y, form, cls + (below ? ' hollow' : ''),
      [
        run.name,
        `KL ${withError(m.kl_mean, m.kl_stderr)}` + (below ? ' (0 or less: on the axis)' : ''),
        `perplexity ${figure(m.ppl_ratio, 5)} of dense`,
        `keys read ${percent(m.keys_read_fraction, 1)}, clusters ${
            percent(m.clusters_fraction, 1)}`,
        ...choosingWords(run), `same first choice ${percent(m.top1_agreement, 1)}`
      ],
      4.6);
  const text = stepName(run);
  if (!text) return;
  // To the right of the mark, unless another label is there already.
  const at = {x: plot.X(x) + 9, y: plot.Y(y) - 7};
  const room = Math.max(44, 6.6 * text.length);
  if (labels.some((l) => Math.abs(l.x - at.x) < room && Math.abs(l.y - at.y) < 13)) return;
  labels.push(at);
  const whole = run.whose ? `${text} · ${run.whose.replace(/ · $/, '')}` : text;
  const fits = (label) => 6.6 * label.length < Math.max(plot.right - at.x, at.x - 18 - plot.left);
  const label = fits(whole) ? whole : text;
  const flip = at.x + 6.6 * label.length > plot.right;
  plot.svg.append(draw(
      'text', {
        class: 'point-label ' + cls,
        x: flip ? at.x - 18 : at.x,
        y: at.y,
        'text-anchor': flip ? 'end' : 'start',
        'aria-hidden': 'true'
      },
      label));
}

const comparedRuns = (data) => data.quality.filter((r) => isNumber(r.metrics.kl_mean));

// What keys read leave out.
function workWords(runs) {
  const choosing = 'Keys read leave out what it takes to choose representatives: that comes on ' +
      'top, and is told at each point and in the table as selection products, the products of ' +
      'token rows over T², mean over the layers that choose. ';
  const refined = 'Keys read of refine are near keys, means of clusters and members of opened ' +
      'clusters; they leave out what it takes to form clusters.';
  const modes = new Set(runs.filter((r) => stepOf(r) !== 'keep').map(modeOf));
  const refines = modes.delete('refine');
  return (modes.size ? choosing : '') + (refines ? refined : '');
}

function qualityView(data, section) {
  const runs = comparedRuns(data);
  for (const series of seriesOf(runs)) {  // what tells it apart is said once, where it begins
    const first = series.reduce((a, b) => (stepped(b) < stepped(a) ? b : a));
    first.whose = first.prefix + asideOf(data, first.settings).join(', ');
  }
  // What no run saves is no axis.
  const saved =
      kWorkAxes.filter(({key}) => runs.some((r) => isNumber(r.metrics[key]) && r.metrics[key] < 1));
  const axes = saved.length ? saved : kWorkAxes.slice(0, 1);
  let work = axes[0], quality = kQualityAxes[0];
  const host = make('div', {class: 'plot'});
  const modes = [...new Set(runs.map(modeOf))];
  const redraw = keepDrawn(
      host,
      (width) => qualityChart(
          width,
          runs.filter((r) => isNumber(r.metrics[work.key]) && isNumber(r.metrics[quality.key])),
          work, quality));
  section.append(
      make(
          'div', {class: 'controls'},
          make(
              'div', {class: 'chooser'}, make('span', {}, 'Loss'),
              choiceButtons(
                  'Loss', kQualityAxes.map((a) => a.button),
                  (i) => {
                    quality = kQualityAxes[i];
                    redraw();
                  })),
          make(
              'div', {class: 'chooser'}, make('span', {}, 'Work'),
              choiceButtons(
                  'Work', axes.map((a) => a.button),
                  (i) => {
                    work = axes[i];
                    redraw();
                  })),
          legend(modes.map(
              (mode) =>
                  ({name: mode, cls: modeStyle(mode)[0], form: modeStyle(mode)[1], line: false})))),
      pictured(
          host,
          'Down and to the left is better: less read, predictions nearer to those of ' +
              'the dense model. Bars are standard errors; dashed lines are losses ' +
              'one might agree to beforehand. ' +
              'KL is the mean over every predicted token. ' + workWords(runs)));
}
