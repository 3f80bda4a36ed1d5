// KL against keys read, both logarithmic, a curve for each method of reading fewer keys, on the
// same windows of one text.

// Colours are those of the quality view where it has one for each.
const kMethodStyles = {
  __proto__: null,
  refine: ['s3', 'diamond'],
  'refine, strict': ['s3 dashed hollow', 'circle'],
  keys: ['s0', 'circle'],
  'baseline:window': ['s1', 'square'],
  'baseline:quest': ['s2', 'triangle'],
  'baseline:pooled': ['s4', 'square'],
  'baseline:oracle': ['s5', 'diamond'],
  copy: ['s2', 'circle'],
  paper: ['s4', 'triangle'],
};
const kOtherStyles = ['circle', 'square', 'triangle', 'diamond', 'cross'].flatMap(
    (form) => ['s0', 's2', 's3', 's4', 's1', 's5'].map((cls) => [cls, form]));

const keysRead = (run) => run.metrics.keys_read_fraction;
const klOf = (run) => run.metrics.kl_mean;

// Tiles let queries decide together, so a strict run (tile 1) is another method.
function methodName(data, {settings}) {
  if (settings.plan) return 'plan ' + fileName(settings.plan);
  const strict = settings.attention === 'refine' && settings.tile === 1;
  const asides = asideOf(data, settings).filter((text) => !(strict && text.startsWith('tile ')));
  const mode = safeText(settings.attention) + (strict ? ', strict' : '');
  return [mode, ...asides].join(', ') + linearName(settings);
}

// Our own methods first.
const kMethodRanks =
    [(mode) => mode === 'refine', (mode) => !String(mode).startsWith('baseline:'), () => true];

// The runs of one method differ in one figure alone and stand in its order.
function methodsOf(data, runs) {
  const taken = new Set(), rank = (r) => kMethodRanks.findIndex((f) => f(r.settings.attention));
  const ranked = [...runs].sort((a, b) => rank(a) - rank(b));
  return groupsOf(
             ranked,
             (r) => [settingKey(r.settings, stepOf(r)), r.settings.plan, stepOf(r)].join('\n'))
      .map((group) => {
        const name = methodName(data, group[0]);
        const own = kMethodStyles[name] || kMethodStyles[group[0].settings.attention];
        const free = (style) => style && !taken.has(style.join());
        const style = [own, ...kOtherStyles].find(free) || kOtherStyles[0];
        taken.add(style.join());
        const sorted = [...group].sort((a, b) => stepped(a) - stepped(b));
        return {name, cls: style[0], form: style[1], runs: sorted, off: false};
      });
}

// The runs that can be compared: of one model, text, machine and length; those without keys read
// are left out.
function methodGroups(data) {
  const runs = comparedRuns(data).filter(
      (r) => keysRead(r) > 0 && modeOf(r) === r.settings.attention && modeOf(r) !== 'dense');
  return groupsOf(runs, (r) => placeKey(r.part) + '\n' + r.context)
      .filter((group) => group.length > 1)
      .map((group) => ({title: groupTitle(group[0]), methods: methodsOf(data, group)}));
}

// `gpt2-nano · bf16, windows of 2,048 tokens`.
function groupTitle({part, prefix, context}) {
  const told = prefix.split(' · ').filter(Boolean), model = modelName(part);
  const names = told.some((name) => name.startsWith(model)) ? told : [model, ...told];
  return names.join(' · ') + (isNumber(context) ? `, windows of ${plural(context, 'token')}` : '');
}

// A run as its point and its row say it.
const runWords = (method, run) => method.name + (stepName(run) ? ', ' + stepName(run) : '');

// Axes stay as they are while methods are hidden.
function methodsChart(width, title, methods) {
  const shown = methods.filter((m) => !m.off);
  const runs = methods.flatMap((m) => m.runs);
  const read = runs.map(keysRead), losses = runs.map(klOf).filter((kl) => kl > 0);
  const loss = [...losses, kSmallLoss];
  const plot = makePlot(width, {
    title: `${title}: KL against keys read, ${plural(runs.length, 'run')}`,
    height: Math.round(Math.min(480, Math.max(320, 0.6 * width))),
    left: 62,
    top: 12,
    right: 24,
    x: {
      domain: [Math.min(...read) / 1.15, Math.max(1, ...read) * 1.04],
      label: 'keys read, of dense',
      log: true,
      format: shareText
    },
    y: {
      domain: [Math.max(1e-7, Math.min(...loss) / 1.6), Math.max(...loss) * 1.6],
      label: 'KL from dense, nats',
      log: true
    },
  });
  const y = plot.Y(kSmallLoss);
  plot.svg.append(
      draw('line', {class: 'contract', x1: plot.left, x2: plot.right, y1: y, y2: y}),
      draw(
          'text', {x: plot.right, y: y - 5, 'text-anchor': 'end', 'aria-hidden': 'true'},
          `KL ${kSmallLoss}`));
  for (const {runs: points, cls} of shown)
    addLine(plot, points.map((r) => [keysRead(r), klOf(r)]), cls);
  for (const method of shown)
    for (const run of method.runs) addMethodPoint(plot, method, run);
  if (width > 560) nameCurves(plot, shown);
  return plot.svg;
}

function addMethodPoint(plot, method, run) {
  const m = run.metrics, below = !(klOf(run) > 0);
  addPoint(
      plot, keysRead(run), klOf(run), method.form, method.cls + (below ? ' hollow' : ''),
      [
        runWords(method, run), `keys read ${shareText(keysRead(run))}`,
        `KL ${withError(m.kl_mean, m.kl_stderr)}` + (below ? ' (0 or less: on the axis)' : ''),
        isNumber(m.top1_agreement) ? `same first choice ${percent(m.top1_agreement, 1)}` : ''
      ].filter(Boolean),
      4.4);
}

// Each curve's name to the right of its point of most keys, moved up or down where another name is.
// One that finds no room is left to the legend.
function nameCurves(plot, methods) {
  const placed = [];
  for (const {name, cls, runs} of methods) {
    const end = runs.reduce((a, b) => (keysRead(b) > keysRead(a) ? b : a));
    const x = plot.X(keysRead(end)) + 10, y = plot.Y(klOf(end)) + 4, room = 6.8 * name.length;
    if (x + room > plot.right) continue;
    const at =
        [0, 14, -14, 28]
            .map((step) => y + step)
            .find(
                (line) => line > plot.top && line < plot.bottom - 4 &&
                    placed.every((p) => Math.abs(p.y - line) > 12 || p.x > x + room || p.end < x));
    if (at === undefined) continue;
    placed.push({x, end: x + room, y: at});
    plot.svg.append(
        draw('text', {class: 'curve-name ' + cls, x, y: at, 'aria-hidden': 'true'}, name));
  }
}

// The least that each method reads within a small loss, of the settings measured; the best first.
function methodsSentence(methods) {
  const least = methods.map(({name, runs}) => {
    const within = runs.filter((r) => klOf(r) <= kSmallLoss).map(keysRead);
    return {name, read: within.length ? Math.min(...within) : null};
  });
  const reached = least.filter((m) => m.read !== null).sort((a, b) => a.read - b.read);
  const missed = least.filter((m) => m.read === null).map((m) => m.name);
  const lists = (names) => names.join('; ');
  if (!reached.length) return `No setting stays within KL ${kSmallLoss} of dense.`;
  return `Least read within KL ${kSmallLoss} of dense: ` +
      lists(reached.map((m) => `${m.name}: ${shareText(m.read)}`)) + '.' +
      (missed.length ? ` Not within it with the settings measured: ${lists(missed)}.` : '');
}

function methodsTable(title, methods) {
  const rows = methods.flatMap((method) => method.runs.map((run) => ({method, run})));
  const figureOf = (name, key, error) =>
      ({name, get: ({run}) => run.metrics[key], sd: ({run}) => run.metrics[error], error: true});
  return makeTable(
      title,
      [
        {name: 'method', get: ({method}) => method.name, text: true},
        {name: 'setting', get: ({run}) => stepName(run), text: true},
        {name: 'keys read', get: ({run}) => keysRead(run)}, figureOf('KL', 'kl_mean', 'kl_stderr'),
        figureOf('perplexity ratio', 'ppl_ratio', 'ppl_ratio_stderr'),
        figureOf('same first choice', 'top1_agreement', 'top1_agreement_stderr')
      ],
      rows);
}

function methodsView(data, section) {
  for (const {title, methods} of methodGroups(data)) {
    const host = make('div', {class: 'plot'});
    const redraw = keepDrawn(host, (width) => methodsChart(width, title, methods));
    section.append(
        make('h3', {class: 'place'}, title),
        make('p', {class: 'decision', 'data-role': 'methods-words'}, methodsSentence(methods)),
        legend(methods, redraw), host,
        folded('The figures', () => methodsTable(`${title}: KL and keys read`, methods)));
  }
  section.append(make(
      'p', {class: 'caption'},
      'Down and to the left is better: fewer keys read, predictions nearer to those of the dense ' +
          'model. Both axes are logarithmic. A curve joins the settings of one method; a button ' +
          'of the legend hides one. Keys read leave out what it takes to choose them or to form ' +
          'clusters. KL is the mean over every predicted token.'));
}
