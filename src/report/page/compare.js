// Two results files next to each other: what both measured, and what differs by more than its noise.

const filesOf = (data) => [...new Set(data.parts.map((p) => p.file).filter(Boolean))];

// Two standard errors of a difference: below it is noise.
const kNoiseErrors = 2;
function errorChange(a, b) {
  if (a.value === b.value) return 'the same';
  const noise = kNoiseErrors * Math.hypot(a.error, b.error);
  if (!isNumber(noise)) return figure(b.value - a.value, 3) + ', noise unknown';
  return Math.abs(b.value - a.value) <= noise ? 'no difference' :
                                                (b.value > a.value ? '+' : '−') +
          figure(Math.abs(b.value - a.value), 3);
}

// Speed-ups are of interleaved runs, each within its file: they differ where their ranges are apart.
function rangeChange(a, b) {
  if (![a.low, a.high, b.low, b.high].every(isNumber))
    return figure(b.value - a.value, 3) + ', noise unknown';
  return a.high < b.low || b.high < a.low ? exactChange(a, b) : 'no difference';
}

// Times of separate runs also differ by what else the machine did.
const timeChange = (a, b) => speedup(a.value / b.value) + ' the speed, noise unknown';

const exactChange = (a, b) => (a.value === b.value ? 'the same' :
                                   (b.value > a.value ? '+' : '−') +
                                       figure(Math.abs(b.value - a.value), 3));

// What a file measured: {key, name, value, show, change, and what its noise is told by}.
function figuresOfFile(data, file) {
  const out = [];
  const place = (part) => [kPlaces.model, kPlaces.dtype].map((of) => asObject(of(part)).key).join();
  for (const run of data.quality.filter((r) => r.part.file === file)) {
    const setting = [place(run.part), run.context, settingKey(run.settings)].join('\n');
    const title = modeName(run.settings) + (isNumber(run.context) ? ` · T ${figure(run.context)}` : '');
    const add = (key, name, error, show) => {
      if (isNumber(run.metrics[key]))
        out.push({
          key: setting + key,
          name: `${name}, ${title}`,
          value: run.metrics[key],
          error: error ? run.metrics[error] : 0,
          show,
          change: error ? errorChange : exactChange
        });
    };
    add('kl_mean', 'KL', 'kl_stderr', (f) => withError(f.value, f.error));
    add('ppl', 'perplexity', 'ppl_stderr', (f) => withError(f.value, f.error));
    add('ppl_ratio', 'perplexity over dense', 'ppl_ratio_stderr', (f) => withError(f.value, f.error));
    add('keys_read_fraction', 'keys read', null, (f) => percent(f.value, 1));
  }
  for (const c of data.speed.filter((s) => s.part.file === file)) {
    const key = [place(c.part), c.name, settingKey(c.settings)].join('\n');
    if (isNumber(c.median_ms))
      out.push({
        key,
        name: `time, ${c.name}, ${c.title}`,
        value: c.median_ms,
        show: (f) => milliseconds(f.value),
        change: timeChange
      });
    if (!isBaseline(c) && isNumber(c.speedup_vs_dense))
      out.push({
        key: key + 'speedup',
        name: `speed over dense, ${c.name}, ${c.title}`,
        value: c.speedup_vs_dense,
        low: c.speedup_low,
        high: c.speedup_high,
        show: (f) => `${speedup(f.value)} (${speedup(f.low)} to ${speedup(f.high)})`,
        change: rangeChange
      });
  }
  for (const {part} of data.contracts.filter((c) => c.part.file === file)) {
    const held = asObject(part.held_out), {dense, plan} = asObject(part.cost);
    const title = `tuned plan for ${safeText(part.objective)}`;
    if (isNumber(held.kl_mean))
      out.push({
        key: place(part) + part.objective + 'held',
        name: `KL held out, ${title}`,
        value: held.kl_mean,
        error: held.kl_stderr,
        show: (f) => withError(f.value, f.error),
        change: errorChange
      });
    if (dense > 0 && isNumber(plan))
      out.push({
        key: place(part) + part.objective + 'cost',
        name: `cost of dense that is left, ${title}`,
        value: plan / dense,
        show: (f) => percent(f.value, 1),
        change: exactChange
      });
  }
  return out;
}

// Rows of what both files have; what one has twice counts once.
function comparedRows(data, a, b) {
  const [first, second] =
      [a, b].map((file) => new Map(figuresOfFile(data, file).map((f) => [f.key, f])));
  const rows = [...first.values()].filter((f) => second.has(f.key)).map((f) => ({
    name: f.name,
    a: f.show(f),
    b: f.show(second.get(f.key)),
    change: f.change(f, second.get(f.key))
  }));
  return {rows, alone: first.size + second.size - 2 * rows.length};
}

function compareView(data, section) {
  const files = filesOf(data), names = files.map((f) => fileName(f) || 'results');
  const shown = names.map((name, i) => (names.indexOf(name) === i ? name : `${name} (${i + 1})`));
  const pick = [0, 1];
  const place = make('div', {'data-role': 'compared'});
  const timeOf = (file) => measuredText(data.parts.filter((p) => p.file === file));
  const refresh = () => {
    const [i, j] = pick;
    const {rows, alone} = comparedRows(data, files[i], files[j]);
    const clear = rows.filter((r) => !/no difference|the same|noise unknown/.test(r.change)).length;
    const told = rows.length ?
        `${plural(rows.length, 'figure')} ${rows.length === 1 ? 'is' : 'are'} in both files; ${
            clear ? `${plural(clear, 'differs', 'differ')} by more than noise` :
                    'none differs by more than noise'}.` :
        'The two files measured nothing in common.';
    place.replaceChildren(
        make('p', {}, told, alone ? ` ${plural(alone, 'figure')} in one file alone.` : ''),
        make(
            'p', {class: 'hint'},
            [i, j].map((k) => [shown[k], timeOf(files[k])].filter(Boolean).join(': ')).join('. ')),
        rows.length ? makeTable(
                          `${shown[i]} and ${shown[j]}`,
                          [
                            {name: 'figure', get: (r) => r.name, text: true},
                            {name: shown[i], get: (r) => r.a, text: true},
                            {name: shown[j], get: (r) => r.b, text: true},
                            {name: 'change', get: (r) => r.change, text: true}
                          ],
                          rows) :
                      '');
  };
  const choosers = ['First', 'Second'].map((label, at) => {
    const chosen = files.length > 2 ? chooser(
                                          label, shown,
                                          (i) => {
                                            pick[at] = i;
                                            refresh();
                                          }) :
                                      null;
    if (chosen) chosen.querySelector('select').selectedIndex = pick[at];
    return chosen;
  });
  section.append(
      controlRow(...choosers), place,
      make(
          'p', {class: 'caption'},
          'Losses differ where they are further apart than two standard errors of the difference; ' +
              'speed-ups, whose runs were interleaved with dense ones, where their ranges are apart. ' +
              'Times of separate runs also differ by what else the machine did, which no file ' +
              'knows. The change is that of the second file from the first.'));
  refresh();
}
