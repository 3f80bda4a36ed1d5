// The sentences at the top: what Sluice is, what was run, what came out; and the words they use, each
// with its meaning.

const listed = (items) => (items.length < 2 ? items.join('') :
                               items.slice(0, -1).join(', ') + ' and ' + items[items.length - 1]);

// `2026-01-31 12:00 UTC`, or nothing.
function timeText(stamp) {
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?Z$/.exec(String(stamp || ''));
  return found ? `${found[1]} ${found[2]} UTC` : '';
}

// When the results were written: the first, and the last where that is another minute.
function measuredText(parts) {
  const times = [...new Set(parts.map((p) => timeText(p.timestamp)).filter(Boolean))].sort();
  if (!times.length) return '';
  return 'Measured ' + times[0] + (times.length > 1 ? ` to ${times[times.length - 1]}` : '');
}

function whatWasRun(data) {
  const commands = [...new Set(data.parts.map((p) => safeText(p.command)).filter(Boolean))];
  const machines = [...namesOf(data.parts, kPlaces.machine).values()];
  const texts = [...new Set(data.parts.map(textName).filter(Boolean))];
  const dtypes = [...namesOf(data.parts, kPlaces.dtype).values()];
  const {threads, gpu} = asObject(asObject(data.parts.find((p) => p.machine)).machine);
  const where = machines.length === 1 && !gpu && isNumber(threads) ?
      `${machines[0]} with ${plural(threads, 'thread')}` :
      listed(machines);
  return `Here ${listed(commands)} ${commands.length === 1 ? 'was' : 'were'} run` +
      (data.models.length ? ` with ${listed(data.models.slice(0, 3))}` : '') +
      (texts.length ? ` on ${listed(texts.slice(0, 2))}` : '') +
      (where ? `, on ${where}` : '') + (dtypes.length ? `, in ${listed(dtypes)}` : '') + '.';
}

// What a run of `eval` reads and loses.
function lossClause(best) {
  const {keys_read_fraction: read, kl_mean: kl} = best.metrics;
  return `${best.name} reads ${percent(read)} of the keys and loses KL ${figure(kl, 2)}`;
}

// The time of the case that the first screen would show, in words that say no more than its runs do.
function speedClause(data, best) {
  const shown = speedCases(data, best)[0];
  if (!shown) return '';
  const {name, prefix, title, speedup_vs_dense: x, speedup_low: low, speedup_high: high} = shown;
  const what = `in ${name} ${prefix}${title}`;
  if (!isNumber(low) || !isNumber(high)) return `${what} was timed without its noise`;
  const found =
      spansOne(low, high) ? 'shows no difference from dense' : `runs at ${speedup(x)} the speed of dense`;
  return `${what} ${found} (${speedup(low)} to ${speedup(high)})`;
}

function contractClause(data) {
  const entry = data.contracts.find(({part}) => !part.dense_because && savingOf(part));
  if (entry) {
    const saving = savingOf(entry.part), held = asObject(entry.part.held_out);
    return `the plan that tune found loses KL ${figure(held.kl_mean, 2)} on text it was not made ` +
        `from: ${saving.words[0].toLowerCase()}${saving.words.slice(1)}`;
  }
  const dense = data.contracts.find(({part}) => part.dense_because);
  return dense ? 'tune found nothing that pays, so its plan is dense' : '';
}

function keptClause(data) {
  const profile = data.profiles[0];
  const set = profile && leadingSet(profile.run);
  const kept = set && meanOf(asList(profile.run.layers).map((l) => asObject(set.get(l)).n_reps));
  return isNumber(kept) ?
      `${percent(kept / profile.run.n_tokens)} of the tokens stand for all at τ ${
          figure(profile.run.tau)}, mean over layers` :
      '';
}

function whatCameOut(data) {
  const best = bestRun(data);
  const dense = data.quality.find((r) => isNumber(r.metrics.ppl) && !isNumber(r.metrics.kl_mean));
  const clauses = [
    best ? lossClause(best) : keptClause(data), speedClause(data, best), contractClause(data),
    !best && dense ? `perplexity is ${figure(dense.metrics.ppl)}` : ''
  ].filter(Boolean);
  if (!clauses.length) return '';
  return `Result: ${clauses.join('; ')}.`;
}

const kWhatItIs = 'Sluice runs transformer language models and leaves out work that the text does ' +
    'not need: tokens that are nearly alike share one entry in attention, and what that loses is ' +
    'measured against the exact (dense) model.';

// Words of the page with their meanings, where they occur.
function termsOf(data) {
  const modes = data.parts.flatMap(choicesOf);
  const anyKl = data.losses.length || data.contracts.length || data.audits.length ||
      comparedRuns(data).length;
  return [
    anyKl && {
      name: 'KL',
      words: 'how far predictions move from the dense model’s, in nats per token. 0 is no change; ' +
          'at 0.01 at most 7 % of a prediction’s probability goes to other tokens, on average ' +
          '(√(KL / 2)).'
    },
    (data.profiles.length || modes.some((s) => isNumber(s.tau))) && {
      name: 'τ',
      words: 'how different two tokens may be to share: their cosine is 1 − τ² or more. A larger τ ' +
          'merges more.'
    },
    modes.some((s) => s.delta !== undefined) && {
      name: 'delta',
      words: 'the estimated error from which on a query reads the members of a cluster one by one. ' +
          'A larger delta reads less.'
    },
    (anyKl || data.plans.length) && {
      name: 'keys',
      words: 'what attention compares a token with: one for each earlier token, in every head. ' +
          'Fewer keys read is less work.'
    },
    data.speed.length && {
      name: 'pp, tg',
      words: 'pp N is reading a prompt of N tokens, tg@N writing text after N tokens.'
    }
  ].filter(Boolean);
}

function story(data) {
  const terms = termsOf(data);
  return [
    make(
        'div', {class: 'story', 'data-role': 'story'},
        [kWhatItIs, whatWasRun(data), whatCameOut(data)].filter(Boolean).map(
            (text) => make('p', {}, make('bdi', {}, text)))),
    terms.length ? make(
                       'dl', {class: 'terms', 'data-role': 'terms'},
                       terms.map(
                           ({name, words}) => make(
                               'div', {}, make('dt', {}, make('dfn', {}, name)),
                               make('dd', {}, words)))) :
                   null
  ];
}
