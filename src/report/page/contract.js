// The contract of `tune`: the loss that was accepted, what the plan loses on text it was made from
// and on text it was not, and what it saves. docs/results.md, "What tune writes".

// The two kinds of loss that a contract may limit; `none` is that of the dense model.
const kLosses = [
  {
    key: 'kl_mean',
    error: 'kl_stderr',
    limit: 'max_kl',
    none: 0,
    digits: 3,
    name: 'KL',
    title: 'KL from dense',
    label: 'KL from dense, nats per token',
    promise: (x) => `a KL from the dense model of at most ${figure(x)} nats per token`
  },
  {
    key: 'ppl_ratio',
    error: 'ppl_ratio_stderr',
    limit: 'max_ppl_ratio',
    none: 1,
    digits: 5,
    name: 'perplexity',
    title: 'Perplexity, of dense',
    label: 'perplexity over that of dense',
    promise: (x) => `a perplexity of at most ${figure(x)} times the dense model’s`
  },
];
const limitsOf = (part) => kLosses.filter(({limit}) => isNumber(asObject(part.contract)[limit]));

// Beyond the mean: a contract is held by so many standard errors more.
const kErrors = 2;
const upTo = (loss, {key, error}) =>
    loss[key] + kErrors * (isNumber(loss[error]) ? loss[error] : 0);

function addContract(data, part, prefix) {
  if (part.command !== 'tune') return;
  const limits = limitsOf(part).map(({limit, name}) => `${name} ≤ ${figure(part.contract[limit])}`);
  const {context} = asObject(part.settings);
  const name = prefix + [
    limits.join(', ') || 'no limit', safeText(part.objective || ''),
    isNumber(context) ? 'T ' + figure(context) : ''
  ].filter(Boolean).join(' · ');
  data.contracts.push({part, name});
}

// The measured rows of a kind, shortest first.
const timedRows = (part, kind) =>
    asList(asObject(part.time)[kind])
        .map(asObject)
        .filter((r) => r.n_tokens > 0 && isNumber(r.speedup) && r.speedup > 0)
        .sort((a, b) => a.n_tokens - b.n_tokens);

// What a plan saves by its objective: {value, name, words}, or null where nothing was measured.
function savingOf(part) {
  const {dense, plan} = asObject(part.cost);
  if (part.objective === 'memory') {
    if (!(dense > 0) || !isNumber(plan)) return null;
    return {
      value: percent(plan / dense),
      name: 'of the cache is left',
      words: `The cache takes ${bytes(plan)} where the dense one takes ${bytes(dense)}, ${
          percent(plan / dense)}`
    };
  }
  const decode = part.objective === 'decode';
  const row = timedRows(part, decode ? 'decode' : 'prefill').pop();
  if (!row) return null;
  const what = `${decode ? 'decoding after' : 'reading'} ${figure(row.n_tokens)} tokens`;
  const noisy = spansOne(row.speedup_low, row.speedup_high);
  const found = noisy ? 'shows no difference from dense' :
                        `runs at ${speedup(row.speedup)} the speed of dense`;
  const words = `${what[0].toUpperCase()}${what.slice(1)} ${found} (${speedup(row.speedup_low)} to ${
      speedup(row.speedup_high)})`;
  return {value: speedup(row.speedup), name: 'the speed of dense, ' + what, words, noisy};
}

// What was promised, what was found, what it saves: a sentence each.
function decisionOf(part) {
  const held = asObject(part.held_out), kinds = limitsOf(part);
  const promise = kinds.map((kind) => kind.promise(part.contract[kind.limit])).join(' and ');
  const sentences = promise ? [`Promised: ${promise}.`] : [];
  if (part.dense_because)
    return [
      ...sentences, `The plan is dense, which loses nothing: ${safeText(part.dense_because)}.`
    ];
  const found = (kinds.length ? kinds : kLosses.slice(0, 1)).filter(({key}) => isNumber(held[key]));
  if (found.length) {
    const kept = found.every((kind) => !(upTo(held, kind) > part.contract[kind.limit]));
    const figures = found.map(
        (kind) =>
            `${kind.name} ${withError(held[kind.key], held[kind.error])}, with two standard ` +
            `errors ${figure(upTo(held, kind), kind.digits)}`);
    sentences.push(
        `Found on ${plural(held.n_tokens, 'token')} of text that it was not made from: ` +
        figures.join('; ') +
        (kinds.length ? `. The promise is ${kept ? 'kept' : 'not kept'}.` : '.'));
  }
  const saving = savingOf(part);
  if (saving) sentences.push(`Saved: ${saving.words[0].toLowerCase()}${saving.words.slice(1)}.`);
  return sentences;
}

// The same for the first screen.
function contractFigure(data) {
  const entry = data.contracts.find(({part}) => !part.dense_because && savingOf(part));
  if (!entry || savingOf(entry.part).noisy) return null;
  const {value, name} = savingOf(entry.part), held = asObject(entry.part.held_out);
  const kind = limitsOf(entry.part)[0] || kLosses[0];
  return {
    value,
    name,
    words: `the plan that tune found (${entry.name}); ${kind.name} ${
        withError(held[kind.key], held[kind.error])} on text it was not made from`
  };
}

// `generate` decides by measured times for plans that are to save time, and for these alone; others
// it follows at every length up to the plan's context (why_dense() in src/plan/plan_file.cpp).
const savesTime = (part) => part.objective === 'prefill' || part.objective === 'decode';

// The prompt length from which on a run follows the plan by itself; null where it does at none.
function followedFrom(part, timed) {
  if (part.dense_because) return null;
  if (!savesTime(part)) return 1;
  const from = asObject(part.auto)[timed.from];
  return isNumber(from) ? from : null;
}

function autoWords(part, timed) {
  if (part.dense_because) return 'Of the plan that was found and not taken.';
  if (!savesTime(part)) {
    const {context} = asObject(part.settings);
    return 'A plan for ' + safeText(part.objective) + ' is followed whatever its speed' +
        (isNumber(context) ? `, by prompts of up to ${plural(context, 'token')}.` : '.');
  }
  const from = followedFrom(part, timed);
  return isNumber(from) ?
      `Left to itself, a run follows the plan from ${plural(from, 'token')} on.` :
      'Not faster from any of these lengths on: left to itself, a run stays dense.';
}

function contractFigures(part) {
  const drawn = (title, caption, chart) => {
    const host = make('div', {class: 'plot'});
    keepDrawn(host, chart);
    return make('figure', {}, make('h3', {}, title), host, make('figcaption', {}, caption));
  };
  const kinds = limitsOf(part).length ? limitsOf(part) : kLosses.slice(0, 1);
  const losses = part.dense_because ?
      [] :
      kinds.filter((kind) => lossRows(part, kind).length)
          .map(
              (kind) => drawn(
                  kind.title, 'Left of the dashed line is within the contract.',
                  (width) => lossChart(width, part, kind)));
  return [
    ...losses,
    ...kTimed.filter(({kind}) => timedRows(part, kind).length)
        .map(
            (timed) => drawn(
                timed.title, autoWords(part, timed),
                (width) => tunedSpeedChart(width, part, timed)))
  ];
}

function contractCaption(part) {
  const timed = kTimed.some(({kind}) => timedRows(part, kind).length);
  return (part.dense_because ?
              '' :
              'Predicted is the sum of what each change of the plan loses alone; calibration, the ' +
                  'text it was made from; held out, text that had no part in it and decides. ± is ' +
                  'one standard error over documents, whiskers are two. ') +
      (timed ? 'Speed is dense time over the plan’s, from the slowest to the fastest round; runs ' +
               'are interleaved; the dashed line is dense. ' +
               (part.dense_because ?
                    '' :
                    'Where the ground is shaded a run follows the plan by itself.') :
               '');
}

function contractView(data, section) {
  const decision = make('div', {class: 'decision', 'data-role': 'decision', 'aria-live': 'polite'});
  const charts = make('div', {class: 'small-multiples'});
  const caption = make('p', {class: 'caption'});
  const show = (i) => {
    const {part} = data.contracts[i];
    decision.replaceChildren(...decisionOf(part).map((text) => make('p', {}, text)));
    charts.replaceChildren(...contractFigures(part));
    caption.textContent = contractCaption(part);
  };
  show(0);
  section.append(
      controlRow(
          chooser('Contract', data.contracts.map((c) => c.name), show, {'data-role': 'contract'})),
      decision, charts, caption);
}
