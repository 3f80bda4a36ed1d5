// The first screen: which model, which text, and the few figures that matter, each with the words
// to read it by.

function meanOf(values) {
  const some = values.filter(isNumber);
  return some.length ? some.reduce((a, b) => a + b, 0) / some.length : null;
}

// The run of eval that has a case's model, number format and choice.
function runOfCase(data, c) {
  const of = (part) => [kPlaces.model, kPlaces.dtype].map((f) => asObject(f(part)).key).join();
  return comparedRuns(data).find(
      (r) => of(r.part) === of(c.part) && settingKey(r.settings) === settingKey(c.settings));
}

// Timed cases in the order of their interest: those of `best`, whose quality the first screen
// shows; of choices with a measured quality; the others. The longest prompt first, where there is
// most to save, reading it before writing after it.
function speedCases(data, best) {
  const cases = data.speed.filter((c) => !isBaseline(c) && isNumber(c.speedup_vs_dense));
  const kind = (c) => {
    const run = runOfCase(data, c);
    return run ? (run === best ? 2 : 1) : 0;
  };
  const rank = (c) =>
      kind(c) * 1e13 + (c.n_tokens || 0) + (String(c.name).startsWith('pp') ? 1e12 : 0);
  return cases.sort((a, b) => rank(b) - rank(a));
}

// A ratio inside of its noise, or of unknown noise, is no headline. No other case stands in for it:
// among many, some would be clear by chance.
function headlineCase(data, best) {
  const shown = speedCases(data, best)[0];
  if (!shown || !isClear(shown.speedup_low, shown.speedup_high)) return null;
  const x = shown.speedup_vs_dense, quality = runOfCase(data, shown);
  return {
    value: speedup(x),
    name: x >= 1 ? 'as fast as dense' : 'of dense speed',
    words: `${shown.prefix}${shown.name}, ${shown.title}` +
        (isNumber(shown.speedup_low) ?
             ` (${speedup(shown.speedup_low)} to ${speedup(shown.speedup_high)})` :
             '') +
        (quality ? `, at KL ${figure(quality.metrics.kl_mean, 2)}` :
                   '; its quality was not measured')
  };
}

const leadingSet = (run) => profileSets(run).find((s) => s.leading) || profileSets(run)[0];

// The least work that stays within a small loss; where nothing does, the smallest loss. Baselines
// are there to compare with.
const isWithin = ({metrics}) => metrics.kl_mean <= kSmallLoss && metrics.keys_read_fraction < 1;
function bestRun(data) {
  const runs = comparedRuns(data).filter(
      (r) => isNumber(r.metrics.keys_read_fraction) && stepOf(r) !== 'keep');
  const within = runs.filter(isWithin);
  const least = (list, key) =>
      list.reduce((a, b) => (b.metrics[key] < a.metrics[key] ? b : a), list[0] || null);
  return within.length ? least(within, 'keys_read_fraction') : least(runs, 'kl_mean');
}

function keyFigures(data) {
  const out = [];
  const profile = data.profiles[0];
  if (profile) {
    const {run} = profile, layers = asList(run.layers).map(asObject);
    const set = leadingSet(run);
    const figures = (key, of = set && set.get) =>
        (of ? layers.map((l) => asObject(of(l))[key]) : []);
    const kept = meanOf(figures('n_reps'));
    if (isNumber(kept)) {
      out.push({
        value: percent(kept / run.n_tokens),
        name: 'of the tokens are kept',
        words:
            `mean over ${plural(layers.length, 'layer')}; the others have a near twin among them (${
                set.name}, ${profile.name})`
      });
    }
    const jaccard = meanOf(figures('jaccard_prev'));
    const chance = meanOf(figures('jaccard_prev', (l) => asObject(l.controls).random));
    if (isNumber(jaccard)) {
      out.push({
        value: percent(jaccard),
        name: 'shared by neighbouring layers’ sets',
        words: `of all tokens in either (Jaccard, mean; ${set.name}, ${profile.name})` +
            (isNumber(chance) ? `; random sets share ${percent(chance)}` : '')
      });
    }
  }
  const best = bestRun(data);
  if (best) {
    out.push({
      value: percent(best.metrics.keys_read_fraction),
      name: `of the keys read, at KL ${figure(best.metrics.kl_mean, 2)}`,
      words: (isWithin(best) ? `the least work within KL ${kSmallLoss} of dense` :
                              'the smallest loss measured') +
          ` (${best.name})`
    });
  }
  const fast = headlineCase(data, best);
  if (fast) out.push(fast);
  const contract = contractFigure(data);
  if (contract) out.push(contract);
  return out;
}

// What the page is about.
function subjectOf(data) {
  const modes = new Set(data.parts.flatMap(choicesOf).map((s) => s.attention));
  const others = [...modes].some((mode) => mode && mode !== 'dense' && mode !== 'refine');
  return modes.has('refine') && !others && !data.profiles.length ? 'Refined attention' :
                                                                   'Representative tokens';
}

function headline(data) {
  const part = data.parts.find((p) => p.model) || {};
  const texts = [...new Set(data.parts.map(textName).filter(Boolean))];
  const model = asObject(part.model);
  const dtypes = [...namesOf(data.parts, kPlaces.dtype).values()];
  const title = data.models.length ?
      data.models.slice(0, 3).join(', ') + (data.models.length > 3 ? ' and others' : '') :
      'Results';
  const facts = [
    texts.length ? [' on ', make('bdi', {}, texts.slice(0, 2).join(' and '))] : [],
    data.models.length === 1 && isNumber(model.n_layers) ?
        `: ${plural(model.n_layers, 'layer')}, width ${figure(model.d_model)}, ` +
            `${plural(model.n_kv_heads, 'key/value head')}, computed in ${
                dtypes.join(' and ') || kDash}` :
        [],
  ];
  document.title = `${title}: Sluice report`;
  return make(
      'header', {class: 'headline'},
      make(
          'p', {class: 'kicker'},
          ['Sluice report', measuredText(data.parts)].filter(Boolean).join(' · ')),
      make('h1', {}, make('bdi', {}, title)),
      make('p', {class: 'lead'}, subjectOf(data), facts, '.'), story(data),
      make(
          'dl', {class: 'figures'},
          keyFigures(data).map(
              (f) => make(
                  'div', {class: 'figure'},
                  make('dt', {}, make('span', {class: 'value'}, f.value), ' ', f.name),
                  make('dd', {}, f.words)))),
      data.problems.map((text) => make('p', {class: 'failed'}, text)));
}
