// The first screen: which model, which text, and the few figures that matter, each with the words
// to read it by.

function meanOf(values) {
  const some = values.filter(isNumber);
  return some.length ? some.reduce((a, b) => a + b, 0) / some.length : null;
}

function keyFigures(data) {
  const out = [], many = data.models.length > 1;
  const profile = data.profiles[0];
  if (profile) {
    const {run} = profile, layers = asList(run.layers).map(asObject);
    const set = profileSets(run).find((s) => s.leading) || profileSets(run)[0];
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
    const jaccard = meanOf(figures('jaccard_prev', (l) => l.independent));
    const chance = meanOf(figures('jaccard_prev', (l) => asObject(l.controls).random));
    if (isNumber(jaccard)) {
      out.push({
        value: fixed(jaccard, 2),
        name: 'Jaccard from layer to layer',
        words: 'how much of the set stays: 1 is all of it' +
            (isNumber(chance) ? `, ${fixed(chance, 2)} would be chance` : '')
      });
    }
  }
  const runs = comparedRuns(data).filter((r) => isNumber(r.metrics.keys_read_fraction));
  // The least work that stays within a small loss; where nothing does, the smallest loss.
  const within = runs.filter((r) => r.metrics.kl_mean <= 0.02 && r.metrics.keys_read_fraction < 1);
  const best = within.length ?
      within.reduce(
          (a, b) => (b.metrics.keys_read_fraction < a.metrics.keys_read_fraction ? b : a)) :
      runs.length ? runs.reduce((a, b) => (b.metrics.kl_mean < a.metrics.kl_mean ? b : a)) :
                    null;
  if (best) {
    out.push({
      value: percent(best.metrics.keys_read_fraction),
      name: `of the keys read, at KL ${figure(best.metrics.kl_mean, 2)}`,
      words: (within.length ? 'the least work within KL 0.02 of dense' :
                              'the smallest loss measured') +
          ` (${best.name})`
    });
  }
  const faster = data.speed.filter((c) => c.mode !== 'dense' && isNumber(c.speedup_vs_dense));
  if (faster.length) {
    const top = faster.reduce((a, b) => (b.speedup_vs_dense > a.speedup_vs_dense ? b : a));
    out.push({
      value: speedup(top.speedup_vs_dense),
      name: top.speedup_vs_dense >= 1 ? 'as fast as dense' : 'of dense speed',
      words: `the best of ${plural(faster.length, 'case')}: ${many ? top.model + ', ' : ''}${
                 top.name}, ${caseName(top)}` +
          (isNumber(top.speedup_low) ?
               ` (${speedup(top.speedup_low)} to ${speedup(top.speedup_high)})` :
               '')
    });
  }
  return out;
}

function headline(data) {
  const part = data.parts.find((p) => p.model) || {};
  const texts = [...new Set(data.parts.map(textName).filter(Boolean))];
  const model = asObject(part.model);
  const title = data.models.length ?
      data.models.slice(0, 3).join(', ') + (data.models.length > 3 ? ' and others' : '') :
      'Results';
  const facts = [
    texts.length ? [' on ', make('bdi', {}, texts.slice(0, 2).join(' and '))] : [],
    data.models.length === 1 && isNumber(model.n_layers) ?
        `: ${plural(model.n_layers, 'layer')}, width ${figure(model.d_model)}, ` +
            `${plural(model.n_kv_heads, 'key/value head')}, computed in ${model.dtype || kDash}` :
        [],
  ];
  document.title = `${title}: Sluice report`;
  return make(
      'header', {class: 'headline'}, make('p', {class: 'kicker'}, 'Sluice report'),
      make('h1', {}, make('bdi', {}, title)),
      make('p', {class: 'lead'}, 'Representative tokens', facts, '.'),
      make(
          'dl', {class: 'figures'},
          keyFigures(data).map(
              (f) => make(
                  'div', {class: 'figure'}, make('dt', {}, f.name),
                  make('dd', {class: 'value'}, f.value), make('dd', {class: 'words'}, f.words)))),
      data.problems.map((text) => make('p', {class: 'failed'}, text)));
}
