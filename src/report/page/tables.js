// Every number of the page as tables.

const kSetFigures = [
  'n_reps',
  'jaccard_prev',
  'turnover',
  'n_inherited',
  'additions',
  'removals',
  'intersection_prev',
  'recall_vs_independent',
  'precision_vs_independent',
  'jaccard_vs_independent',
  'missed_vs_independent',
  'uncovered',
  'owner_cosine_min',
  'owner_cosine_mean',
  'products_paper',
  'products_computed',
  'rep_pairs',
  'copy_error',
  'n_outside',
  'n_covered',
  'attention_error_mean',
  'attention_error_max',
  'attention_error_relative',
  'bound_tau',
  'violations_tau',
  'bound_distance',
  'violations_distance',
  'lipschitz_mean',
  'lipschitz_max',
  'parted',
  'persistence_predicted',
  'persistence'
];

const words = (key) => key.replace(/_/g, ' ')
                           .replace(/\bkl\b/, 'KL')
                           .replace('n reps fraction', 'r/T')
                           .replace('n reps', 'r')
                           .replace(/ prev$/, ', layer before');

// Keys that a later version adds follow those known here.
function keysOf(rows, known = []) {
  const found = new Set(
      rows.flatMap((r) => Object.keys(asObject(r)).filter((k) => isNumber(r[k]) || r[k] === null)));
  return [
    ...known.filter((k) => found.has(k)), ...[...found].filter((k) => !known.includes(k)).sort()
  ];
}

const numberColumns = (rows, keys, of = (r) => r) =>
    keys.filter((k) => !k.endsWith('_sd') && !k.endsWith('_stderr')).map((key) => {
      const error = [key + '_sd', key + '_stderr', key.replace(/_mean$/, '') + '_stderr'].find(
          (k) => rows.some((r) => isNumber(asObject(of(r))[k])));
      return {
        name: words(key),
        get: (r) => asObject(of(r))[key],
        sd: error ? (r) => asObject(of(r))[error] : null,
        error: Boolean(error) && error.endsWith('_stderr')
      };
    });

function profileTables(entry) {
  const {run} = entry, layers = asList(run.layers).map(asObject);
  const sets = profileSets(run);
  const layer = {name: 'layer', get: (r) => r.layer};
  const short = [layer];
  for (const set of sets) {
    for (const [key, name] of [
             ['n_reps', 'r'], ['jaccard_prev', 'Jaccard'], ['turnover', 'turnover']])
      short.push({
        name: `${set.name} ${name}`,
        get: (r) => asObject(set.get(r))[key],
        sd: (r) => asObject(set.get(r))[key + '_sd']
      });
    short.push({
      name: `${set.name} r/T`,
      get: (r) => (isNumber(asObject(set.get(r)).n_reps) ? set.get(r).n_reps / run.n_tokens : null)
    });
  }
  const tables = [makeTable('All sets by layer', short, layers)];
  for (const set of sets) {
    const keys = keysOf(layers.map((l) => asObject(set.get(l))), kSetFigures);
    tables.push(makeTable(
        `${set.name}: every figure by layer`, [layer, ...numberColumns(layers, keys, set.get)],
        layers));
  }
  if (layers.some((l) => asList(l.heads).length)) {
    const rows = layers.flatMap(
        (l) => asList(l.heads).map((head, h) => ({layer: l.layer, head: h, ...head})));
    tables.push(makeTable(
        'Heads',
        [
          layer, {name: 'head', get: (r) => r.head},
          ...numberColumns(rows, keysOf(rows).filter((k) => k !== 'layer' && k !== 'head'))
        ],
        rows));
  }
  return tables;
}

function summaryTable(data) {
  const rows = data.profiles.flatMap(({run, name}) => {
    const sets = asObject(asObject(run.summary).sets);
    return Object.keys(sets).map((set) => ({run: name, set, ...asObject(sets[set])}));
  });
  if (!rows.length) return null;
  return makeTable(
      'Means over layers, by setting and set',
      [
        {name: 'setting', get: (r) => r.run, text: true},
        {name: 'set', get: (r) => r.set, text: true},
        ...numberColumns(
            rows,
            keysOf(
                rows,
                [
                  'mean_n_reps', 'mean_jaccard_prev', 'mean_recall_vs_independent', 'mean_uncovered'
                ]))
      ],
      rows);
}

function qualityTable(data) {
  const known = [
    'kl_mean', 'ppl_ratio', 'keys_read_fraction', 'selection_products', 'clusters_fraction',
    'top1_agreement', 'ppl', 'ppl_base', 'loss', 'kl_median', 'kl_p90', 'kl_p95', 'kl_p99',
    'kl_p999', 'kl_max', 'delta_p_mean', 'delta_p_rms'
  ];
  return makeTable(
      'Quality of each run',
      [
        {name: 'run', get: (r) => r.name, text: true},
        ...numberColumns(
            data.quality, keysOf(data.quality.map((r) => r.metrics), known), (r) => r.metrics)
      ],
      data.quality);
}

// What a ratio says with its range.
const againstDense = {
  name: 'against dense',
  get: (r) => {
    if (isBaseline(r) || !isNumber(r.speedup_vs_dense)) return '';
    if (spansOne(r.speedup_low, r.speedup_high)) return 'no difference';
    if (!isClear(r.speedup_low, r.speedup_high)) return 'noise unknown';
    return r.speedup_vs_dense > 1 ? 'faster' : 'slower';
  },
  text: true
};

function speedTable(data) {
  const known = [
    'median_ms', 'tokens_per_s', 'speedup_vs_dense', 'speedup_low', 'speedup_high',
    'n_reps_fraction'
  ];
  const keys = keysOf(data.speed, known);
  const parts = kTimeParts.map(
      ([key, name]) => ({name: name + ' ms', get: (r) => asObject(r.parts_ms)[key]}));
  const many = data.speed.some((c) => c.prefix);
  return makeTable(
      'Times of each case',
      [
        ...(many ? [{name: 'of', get: (r) => r.prefix.replace(/ · $/, ''), text: true}] : []),
        {name: 'test', get: (r) => String(r.name ?? ''), text: true},
        {name: 'mode', get: (r) => r.title, text: true},
        ...numberColumns(data.speed, keys.filter((k) => k !== 'n_tokens')), againstDense, ...parts, {
          name: 'samples, ms',
          get: (r) => asList(r.samples_ms).map((x) => figure(x)).join(' '),
          text: true
        }
      ],
      data.speed);
}

function cacheTable(data) {
  return makeTable(
      'Cache',
      [
        {name: 'run', get: (r) => r.name, text: true},
        ...keysOf(
            data.cache,
            [
              'n_tokens', 'dense_bytes', 'exact_bytes', 'clusters_bytes', 'selection_rows_bytes',
              'outputs_bytes'
            ])
            .map((key) => ({
                   name: words(key).replace(/ bytes$/, ''),
                   get: (r) => r[key],
                   show: key.endsWith('_bytes') ? bytes : figure
                 }))
      ],
      data.cache);
}

function generationTable(data) {
  const known = ['n_prompt_tokens', 'prefill_tokens_per_s', 'n_tokens', 'decode_tokens_per_s'];
  const rows = data.generations.map((g) => ({...g, n_tokens: asList(g.tokens).length}));
  return makeTable(
      'Generated texts',
      [
        {name: 'prompt', get: (r) => oneLine(String(r.prompt ?? ''), 24), text: true},
        {name: 'run', get: (r) => r.name, text: true}, ...numberColumns(rows, keysOf(rows, known)),
        {name: 'ended', get: (r) => String(r.end ?? ''), text: true}
      ],
      rows);
}

// What the paper printed of this model: its tables of counts, of coherence and of layers.
function paperTable(paper) {
  const rows = new Map();
  const add = (list, names) => {
    for (const item of asList(list).map(asObject)) {
      if (!rows.has(item.layer)) rows.set(item.layer, {layer: item.layer});
      for (const [key, name] of Object.entries(names)) rows.get(item.layer)[name] = item[key];
    }
  };
  add(paper.counts, {n_reps: 'r'});
  add(paper.coherence, {jaccard: 'Jaccard, layer before'});
  add(paper.layers, {
    n_reps_independent: 'independent r',
    n_reps_cascade: 'cascade r',
    jaccard_prev: 'independent Jaccard, layer before',
    turnover: 'cascade turnover'
  });
  const sorted = [...rows.values()].sort((a, b) => a.layer - b.layer);
  const names = new Set(sorted.flatMap((r) => Object.keys(r)));
  return makeTable(
      `${paper.name || 'The paper'}: τ ${figure(paper.tau)} · T ${figure(paper.n_tokens)} · ${
          paper.space}`,
      [...names].map((name) => ({name, get: (r) => r[name]})), sorted);
}

function mapTable({map, name}) {
  return makeTable(
      name,
      [
        {name: 'layer', get: (r) => r.layer}, {name: 'r', get: (r) => r.nReps},
        {name: 'r/T', get: (r) => r.nReps / map.nTokens},
        {name: 'turnover', get: (r) => r.turnover},
        {name: 'joined', get: (r) => (r.turnover === null ? null : r.additions)},
        {name: 'left', get: (r) => (r.turnover === null ? null : r.removals)},
        {name: 'exempt', get: (r) => r.counts[kExempt]},
        {name: 'uncovered', get: (r) => r.counts[kUncovered]}
      ],
      map.layers.map((l, i) => ({layer: map.layerNumbers[i], ...l})));
}

function planDelta(row) {
  if (row.mode !== 'refine' || row.kind !== 'clusters') return null;
  return deltaOf(row) === Infinity ? '∞' : row.delta;
}

function planTable(plan) {
  const rows = plan.layers.flatMap((l) => l.heads.map((head, h) => ({...l, ...head, head: h})));
  return makeTable(
      plan.name,
      [
        {name: 'layer', get: (r) => r.layer}, {name: 'head', get: (r) => r.head},
        ...['mode', 'kind', 'far'].map(
            (k) => ({name: k, get: (r) => String(r[k] ?? ''), text: true})),
        {name: 'delta', get: planDelta},
        ...['tau', 'window', 'block', 'segment', 'page', 'tile', 'tile_factor'].map(
            (k) => ({name: words(k), get: (r) => r[k]}))
      ],
      rows);
}

const groupColumns = (rows, keys) =>
    [{name: 'layer', get: (r) => r.layer},
     {name: 'input', get: (r) => inputStyle(r.input).name, text: true},
     ...numberColumns(rows, keysOf(rows, keys).filter((k) => k !== 'layer'))];

function directionsTable({name, groups}) {
  const known = [
    'd', 'rank', 'energy', 'effective_rank_90', 'effective_rank_95', 'effective_rank_99',
    'coherence_prev', 'smallest_cosine_prev'
  ];
  return makeTable(name, groupColumns(groups, known), groups);
}

function jointTable({name, joint}) {
  const rows = asList(joint.layers)
                   .flatMap((layer) => asList(layer.ranks).map((r) => ({
                                                                 ...r,
                                                                 layer: layer.layer,
                                                                 seconds_plain: layer.seconds,
                                                                 products_plain: layer.products
                                                               })));
  const known = ['rank', 'energy', 'pairs', 'dropped_fraction', 'products', 'seconds_plain'];
  return makeTable(
      name,
      [
        {name: 'layer', get: (r) => r.layer},
        ...numberColumns(rows, keysOf(rows, known).filter((k) => k !== 'layer'))
      ],
      rows);
}

function fastPathTable({name, groups}) {
  const known = ['rank', 'epsilon', 'fast_path_fraction', 'bytes_fraction'];
  const columns = groupColumns(groups, known);
  columns.splice(2, 0, {name: 'kind', get: (r) => String(r.kind ?? ''), text: true});
  return makeTable(name, columns, groups);
}

function tablesView(data, section) {
  const speed = data.speed.length > 0, quality = data.quality.length > 0;
  const papers = unique(data.parts.map((p) => p.paper).filter((p) => asObject(p).layers));
  section.append(
      ...[quality ? folded('Quality', () => qualityTable(data), true) : null,
          data.contracts.length ? folded('Contract', () => contractTables(data), true) : null,
          speed ? folded('Speed', () => speedTable(data), true) : null,
          data.generations.length ? folded('Generated texts', () => generationTable(data)) : null,
          data.cache.length ? folded('Cache bytes', () => cacheTable(data)) : null,
          data.profiles.some((p) => asObject(p.run.summary).sets) ?
              folded('Summary of the sets', () => summaryTable(data)) :
              null,
          papers.length ? folded('The paper’s printed figures', () => papers.map(paperTable)) :
                          null,
          ...data.profiles.map((p) => folded('Profile · ' + p.name, () => profileTables(p))),
          mapState.choices.length ?
              folded('Windows shown as text', () => mapState.choices.map(mapTable)) :
              null,
          data.plans.length ? folded('Plans', () => data.plans.map(planTable)) : null,
          data.planRuns.length ? folded('Along a plan', () => data.planRuns.map(planRunTable)) :
                                 null,
          ...[['Directions', data.directions, directionsTable],
              ['Joint selection', data.joint, jointTable],
              ['Fast path', data.fastPath, fastPathTable],
              ['What queries open', data.refined, refinedTables]]
              .map(([name, entries,
                     table]) => (entries.length ? folded(name, () => entries.map(table)) : null)),
  ].filter(Boolean));
}
