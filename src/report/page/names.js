// Names for people: results and settings are told apart by whatever differs between them.

// What a result is of: {key, names}, where the first kind of name that tells all keys apart is the
// one to use.
const kPlaces = {
  model(part) {
    const {sha256, path} = asObject(part.model);
    return part.model && {
      key: String(sha256 || path),
      names: [modelName(part), `${modelName(part)} ${String(sha256 || path).slice(0, 8)}`]
    };
  },
  dtype(part) {
    const {dtype} = asObject(part.model);
    return dtype && {key: String(dtype), names: [safeText(dtype)]};
  },
  // The text of `generate` is its prompt, which is shown with what it wrote.
  text(part) {
    const {sha256, path} = asObject(part.text);
    return part.text && part.command !== 'generate' && {
      key: String(sha256 || path),
      names: [textName(part), `${textName(part)} ${String(sha256 || path).slice(0, 8)}`]
    };
  },
  machine(part) {
    const {cpu, gpu, threads} = asObject(part.machine);
    const name = safeText(gpu || cpu);
    return part.machine && {
      key: JSON.stringify([cpu, gpu, threads]),
      names: [name, `${name}, ${plural(threads, 'thread')}`]
    };
  },
};

const placeKey = (part) =>
    JSON.stringify(Object.values(kPlaces).map((of) => asObject(of(part)).key));

// The name of each key that `of` finds in the parts.
function namesOf(parts, of) {
  const found = new Map(parts.map(of).filter(Boolean).map(({key, names}) => [key, names]));
  const all = [...found.values()];
  const kind = [0, 1].find(
      (i) => all.every((n) => n[i]) && new Set(all.map((n) => n[i])).size === all.length);
  return new Map([...found].map(
      ([key, names], i) => [key, kind === undefined ? `${names[0]} (${i + 1})` : names[kind]]));
}

// What tells a part from the others of its command, and its model from all: `gpt2-nano · bf16 · `.
function prefixOf(part, parts) {
  const alike = parts.filter((p) => p.command === part.command);
  return Object.entries(kPlaces)
      .map(([place, of]) => {
        const names = namesOf(place === 'model' ? parts : alike, of);
        return names.size > 1 && of(part) ? names.get(of(part).key) + ' · ' : '';
      })
      .join('');
}

// Everything that makes one choice of attention and linear layers another.
const kSettingKeys = [
  'attention', 'tau',     'delta',       'select',        'space',      'far',
  'window',    'block',   'sinks',       'outlier_ratio', 'from_layer', 'segment',
  'page',      'tile',    'tile_factor', 'rule',          'linear',     'rank',
  'epsilon',   'keep',    'early',       'cache'
];
const settingKey = (settings, ...except) =>
    JSON.stringify(kSettingKeys.map((k) => (except.includes(k) ? null : settings[k] ?? null)));

// Those of them that a name has only where they differ, and how it then says them.
const kAsides = {
  select: (v) => v,
  space: (v) => v,
  far: (v) => 'far ' + v,
  window: (v) => 'window ' + v,
  block: (v) => 'block ' + v,
  sinks: (v) => plural(v, 'sink'),
  outlier_ratio: (v) => 'outliers ' + figure(v),
  from_layer: (v) => 'from layer ' + v,
  segment: (v) => 'segment ' + v,
  early: (v) => 'early ' + v,
  page: (v) => 'page ' + v,
  tile: (v) => 'tile ' + v,
  tile_factor: (v) => 'tile factor ' + figure(v),
  rule: (v) => 'rule ' + v,
  cache: (v) => 'cache ' + v,
};

// What refined attention compares estimates with. JSON has no infinity: null, nothing is opened.
const deltaOf = ({delta}) => (isNumber(delta) ? delta : Infinity);
const deltaName = (delta) => 'delta ' + (delta === Infinity ? '∞' : figure(delta));

// The choices that a part measured, each whole.
function choicesOf(part) {
  const own = asObject(part.settings);
  const measured = [
    ...asList(part.runs), ...asList(part.cases), ...asList(asObject(part.summary).runs)
  ].map(asObject);
  if (part.command === 'analyze' || part.command === 'tune') return [];
  return measured.length ? measured.map((m) => ({...own, ...asObject(m.settings)})) : [own];
}

// attention -> the keys of kAsides that differ between choices of it.
function variedSettings(parts) {
  return new Map(
      groupsOf(parts.flatMap(choicesOf), (s) => s.attention)
          .map(
              (group) =>
                  [group[0].attention,
                   Object.keys(kAsides).filter(
                       (k) => new Set(group.map((s) => s[k]).filter((v) => v !== undefined)).size >
                           1)]));
}

// What of a choice its mode's name leaves open: `greedy, window 64`.
function asideOf(data, settings) {
  return asList(data.varied.get(settings.attention))
      .filter((k) => typeof settings[k] === 'string' || isNumber(settings[k]))
      .map((k) => safeText(kAsides[k](settings[k])));
}

// A name with all that has to be said; `mode` is what it begins with.
function settingName(data, settings, mode = modeName(settings)) {
  const said = mode.split(', ');
  return [...said, ...asideOf(data, settings).filter((text) => !said.includes(text))].join(', ');
}

// Analyses of one tau, length and space may still differ in what they asked for; and a command may
// have run twice. entries: {name, part}; those of one run keep one name.
function tellAnalysesApart(entries) {
  for (const group of groupsOf(entries, (e) => e.name)) {
    const settings = group.map((e) => asObject(e.part.settings));
    const differ = ['select', 'sinks', 'outlier_ratio', 'seed', 'windows'].filter(
        (k) => new Set(settings.map((s) => JSON.stringify(s[k]))).size > 1);
    group.forEach((e, i) => {
      for (const k of differ)
        e.name += ` · ${words(k)} ${safeText(asList(settings[i][k]).join(' ') || settings[i][k])}`;
    });
  }
}

// Entries of one name: by their files where these differ, else by number.
function numberAlike(entries) {
  for (const group of groupsOf(entries, (e) => e.name)) {
    const files = group.map((e) => fileName(asObject(e.part).file));
    const byFile = group.length > 1 && files.every(Boolean) && new Set(files).size === group.length;
    group.forEach((e, i) => {
      if (byFile)
        e.name += ` · ${files[i]}`;
      else if (i > 0)
        e.name += ` (${i + 1})`;
    });
  }
}
