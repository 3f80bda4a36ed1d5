// Reads the results embedded in the page and brings them into the lists that the views draw:
// windows mapped, profiles, quality runs, plans, contracts, generations, timed cases.
// docs/results.md says what each key means. Anything may be missing; what is missing is left out.

const kStatus = ['redundant', 'representative', 'exempt', 'uncovered'];
const [kRedundant, kRepresentative, kExempt, kUncovered] = [0, 1, 2, 3];

function bytesOfBase64(text) {
  const binary = atob(text);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; ++i) out[i] = binary.charCodeAt(i);
  return out;
}

// Numbers of `size` bytes, little-endian on every machine.
function integersOfBase64(text, size, signed) {
  const raw = bytesOfBase64(text);
  const view = new DataView(raw.buffer);
  const n = Math.floor(raw.length / size);
  const out = size === 4 ? new Uint32Array(n) : signed ? new Int16Array(n) : new Uint16Array(n);
  for (let i = 0; i < n; ++i) {
    out[i] = size === 4 ? view.getUint32(4 * i, true) :
        signed          ? view.getInt16(2 * i, true) :
                          view.getUint16(2 * i, true);
  }
  return out;
}

// A packed map, unpacked once. Arrays are (n_layers, n_tokens).
function unpackMap(packed) {
  const map = {
    tau: packed.tau,
    space: packed.space,
    rule: packed.rule,
    tokens: packed.tokens,
    nTokens: packed.tokens.length,
    nLayers: packed.n_layers,
    layerNumbers: packed.layer_numbers,
    status: bytesOfBase64(packed.status),
    owner: integersOfBase64(packed.owner, packed.owner_bytes === 4 ? 4 : 2, false),
    cosine: integersOfBase64(packed.cosine, 2, true),
  };
  const size = map.nTokens * map.nLayers;
  if (map.status.length !== size || map.owner.length !== size || map.cosine.length !== size)
    throw new Error('the map has not as many entries as tokens and layers');
  map.keptLayers = new Uint16Array(map.nTokens);  // layers that keep each token
  map.layers = [];                                // counts of each layer
  for (let l = 0; l < map.nLayers; ++l) map.layers.push(countLayer(map, l));
  return map;
}

const keeps = (status) => status === kRepresentative || status === kExempt;

// Who is in the set (exempt tokens included, as n_reps has it) and how it changed.
function countLayer(map, layer) {
  const T = map.nTokens, base = layer * T;
  const counts = [0, 0, 0, 0];
  let additions = 0, removals = 0;
  for (let t = 0; t < T; ++t) {
    const status = map.status[base + t];
    ++counts[status];
    if (keeps(status)) ++map.keptLayers[t];
    if (layer === 0) continue;
    const before = keeps(map.status[base - T + t]);
    if (keeps(status) && !before) ++additions;
    if (!keeps(status) && before) ++removals;
  }
  const nReps = counts[kRepresentative] + counts[kExempt];
  const before = layer ? map.layers[layer - 1].nReps : 0;
  return {
    counts,
    nReps,
    additions,
    removals,
    turnover: layer && before ? (additions + removals) / before : null
  };
}

const modelName = (part) =>
    fileName(asObject(part.model).path) || asObject(part.model).family || 'model';
const textName = (part) => fileName(asObject(part.text).path);

// The same for linear layers: `, gsi k 48, ε 0.1`.
function linearName(settings) {
  const {linear, rank, epsilon} = settings;
  if (typeof linear !== 'string' || linear === 'dense') return '';
  return ', ' + linear + (isNumber(rank) ? ' k ' + figure(rank) : '') +
      (isNumber(epsilon) ? ', ε ' + figure(epsilon) : '');
}

// How a choice of attention is named for people: `keys, τ 0.3`, `refine, delta 0.03`,
// `baseline:quest, keep 0.1`.
function modeName(settings) {
  const s = asObject(settings);
  const mode = s.attention || 'dense';
  const chosen = s.tau_auto === true ? 'auto' : isNumber(s.tau) ? figure(s.tau) : '';
  const tau = mode === 'refine'  ? (s.delta === undefined ? '' : ', ' + deltaName(deltaOf(s))) :
      mode !== 'dense' && chosen ? ', τ ' + chosen :
                                   '';
  const far = s.far && s.far !== 'centroid' ? ', far ' + s.far : '';
  const keep = isNumber(s.keep) ? ', keep ' + figure(s.keep) : '';
  return mode + tau + far + keep + linearName(s);
}

function readData() {
  const root = asObject(JSON.parse(document.getElementById('data').textContent));
  const parts = asList(root.parts).map(asObject);
  const models = [...namesOf(parts, kPlaces.model).values()];
  const data = {
    varied: variedSettings(parts),
    root,
    parts,
    models,
    problems: [],
    maps: [],
    profiles: [],
    quality: [],
    plans: [],
    heads: [],
    generations: [],
    speed: [],
    cache: [],
    directions: [],
    coherence: [],
    joint: [],
    fastPath: [],
    refined: [],
    contracts: [],
    losses: [],
    planRuns: [],
    audits: [],
    needles: []
  };
  const readers = [
    addMap, addPlanOfPart, addProfiles, addPlanRuns, addQuality, addGeneration, addCases,
    addDirections, addJoint, addContract, addAudit, addNeedles, addTokenLoss
  ];
  for (const part of parts) {
    for (const reader of readers) {
      try {
        reader(data, part, prefixOf(part, parts));
      } catch (error) {
        data.problems.push(
            `A part of ${part.command || 'the results'} could not be read: ${error.message}.`);
      }
    }
  }
  for (const list of [data.profiles, data.heads]) tellAnalysesApart(list);
  const alike = [
    data.maps, data.profiles, data.heads, data.quality, data.plans, data.cache, data.contracts,
    data.planRuns, data.refined, data.audits, data.needles, data.losses
  ];
  for (const list of alike) numberAlike(list);
  // What tune found is what a reader came for.
  data.plans.sort((a, b) => Number(b.tuned === true) - Number(a.tuned === true));
  if (data.maps.length) mapState.start(data.maps);
  return data;
}

function addMap(data, part, prefix) {
  if (!part.map || !asList(part.map.tokens).length) return;
  const map = unpackMap(part.map);
  data.maps.push({
    map,
    name: `${prefix}${map.rule} · τ ${figure(map.tau)} · ${map.space} · ` +
        plural(map.nTokens, 'token')
  });
}

function addPlanOfPart(data, part, prefix) {
  if (part.plan)
    addPlan(
        data, part.plan, prefix + (part.command === 'tune' ? 'tuned plan' : 'plan'),
        part.command === 'tune');
}

function addGeneration(data, part, prefix) {
  if (!part.generation) return;
  const mode = settingName(data, asObject(part.settings));
  data.generations.push({...part.generation, part, name: prefix + mode, dense: mode === 'dense'});
  if (part.cache) data.cache.push({name: `${prefix}${part.command} · ${mode}`, ...part.cache});
}

// A label of the program as the page writes it.
const labelText = (label) =>
    safeText(String(label).replace(/\btau\b/g, 'τ').replace('delta inf', 'delta ∞'));

function addCases(data, part, prefix) {
  for (const item of asList(part.cases).map(asObject)) {
    const settings = {...asObject(part.settings), ...asObject(item.settings)};
    const label = labelText(item.label || item.mode || 'case');
    data.speed.push({...item, part, settings, prefix, title: settingName(data, settings, label)});
  }
}

function addPlan(data, plan, name, tuned = false) {
  const layers = asList(plan.layers).filter((layer) => asList(layer.heads).length);
  if (layers.length) data.plans.push({name, layers, tuned});
}

function addProfiles(data, part, prefix) {
  if (part.command !== 'analyze') return;
  for (const run of asList(part.runs)) {
    const layers = asList(run.layers);
    if (!layers.length) continue;
    const name = `${prefix}τ ${figure(run.tau)} · T ${figure(run.n_tokens)} · ${run.space}`;
    data.profiles.push({part, run, name});
    if (layers.some((layer) => asList(layer.heads).length)) data.heads.push({part, run, name});
  }
}

// What `analyze --plan` finds along the layers of a plan.
function addPlanRuns(data, part, prefix) {
  for (const run of asList(part.plan_runs).map(asObject))
    if (asList(run.layers).length)
      data.planRuns.push({run, name: `${prefix}plan · T ${figure(run.n_tokens)}`});
}

// Groups (a layer's input) with energies and effective ranks; `calibrate` has curves of them too,
// `analyze` how neighbouring layers share their directions.
function addDirections(data, part, prefix) {
  const {groups, rank} = part.command === 'calibrate' ?
      {groups: part.groups, rank: asObject(asList(part.groups)[0]).rank} :
      asObject(part.subspace);
  if (!asList(groups).length) return;
  const entry = {
    part,
    groups,
    rank,
    name: `${prefix}${part.command} · ${textName(part)} · k ${figure(rank)}`
  };
  data.directions.push(entry);
  if (groups.some((g) => isNumber(g.coherence_prev))) data.coherence.push(entry);
}

function addJoint(data, part, prefix) {
  const joint = asObject(part.joint);
  if (asList(joint.layers).some((layer) => asList(layer.ranks).length))
    data.joint.push({
      joint,
      name: `${prefix}${joint.rule} · τ ${figure(joint.tau)} · T ${figure(joint.n_tokens)} · ${
          joint.space}`
    });
}

// Runs that compare a mode with dense; an eval of dense alone has only its perplexity.
function addQuality(data, part, prefix) {
  if (part.command !== 'eval') return;
  const runs = asList(part.runs).length ?
      part.runs :
      [{settings: part.settings, metrics: part.metrics, cache: part.cache, plan: part.plan}];
  const context = asObject(part.settings).context;
  for (const run of runs) {
    const settings = {...asObject(part.settings), ...asObject(run.settings)};
    const name =
        prefix + settingName(data, settings) + (isNumber(context) ? ` · T ${figure(context)}` : '');
    const entry = {part, prefix, settings, metrics: asObject(run.metrics), name, context};
    entry.reads = refinedReads(run);
    if (run.metrics) data.quality.push(entry);
    if (run.cache) data.cache.push({name: 'eval · ' + name, ...run.cache});
    if (run.plan && run.plan !== part.plan) addPlan(data, run.plan, name);
    if (asList(run.linear).length) data.fastPath.push({name, groups: run.linear});
    if (entry.reads) data.refined.push({name, context, ...entry.reads});
  }
}
