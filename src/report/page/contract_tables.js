// Every number of a contract, and of what `analyze` finds along a plan.

const contractColumn = {
  name: 'contract',
  get: (r) => r.contract,
  text: true
};
const onColumn = {
  name: 'on',
  get: (r) => r.on,
  text: true
};
const kLossFigures = ['kl_mean', 'ppl_ratio', 'n_tokens', 'n_documents'];

function contractSummaryTable(data) {
  const rows = data.contracts.map(({part, name}) => {
    const cost = asObject(part.cost), auto = asObject(part.auto), time = asObject(part.time);
    const settings = asObject(part.settings);
    return {
      contract: name,
      because: safeText(part.dense_because || ''),
      'predicted KL': part.predicted_kl,
      'generalisation gap': part.generalisation_gap,
      'dense cost': cost.dense,
      'plan cost': cost.plan,
      'dense ms': time.dense_ms,
      'plan ms': time.plan_ms,
      'reading from': auto.prefill_from,
      'decoding from': auto.decode_from,
      'calibration windows': settings.n_calibration,
      'held-out windows': settings.n_held_out,
      seconds: part.seconds
    };
  });
  const keys = Object.keys(rows[0]).filter((k) => k !== 'contract' && k !== 'because');
  return makeTable(
      'What was found',
      [
        contractColumn, ...keys.map((k) => ({name: k, get: (r) => r[k]})),
        {name: 'dense because', get: (r) => r.because, text: true}
      ],
      rows);
}

function lossTable(data) {
  const rows = data.contracts.flatMap(({part, name}) => {
    const {max_kl, max_ppl_ratio} = asObject(part.contract);
    return [
      {contract: name, on: 'limit', kl_mean: max_kl, ppl_ratio: max_ppl_ratio},
      {contract: name, on: 'predicted', kl_mean: part.predicted_kl},
      {contract: name, on: 'calibration', ...asObject(part.calibration)},
      {contract: name, on: 'held out', ...asObject(part.held_out)}
    ];
  });
  return makeTable(
      'Loss against the contract',
      [contractColumn, onColumn, ...numberColumns(rows, keysOf(rows, kLossFigures))], rows);
}

function tunedSpeedTable(data) {
  const rows = data.contracts.flatMap(
      ({part, name}) => kTimed.flatMap(
          ({kind, words: on}) => timedRows(part, kind).map((r) => ({contract: name, on, ...r}))));
  if (!rows.length) return null;
  const known = ['n_tokens', 'dense_ms', 'plan_ms', 'speedup', 'speedup_low', 'speedup_high'];
  return makeTable(
      'Speed of the plan that was found',
      [contractColumn, onColumn, ...numberColumns(rows, keysOf(rows, known))], rows);
}

function candidatesTable(data) {
  const rows = data.contracts.flatMap(
      ({part, name}) =>
          asList(part.candidates).map(asObject).map((c) => ({
                                                      contract: name,
                                                      on: c.held_out === true ? 'held out' :
                                                                                'calibration',
                                                      ...asObject(c.loss),
                                                      budget: c.budget,
                                                      predicted_kl: c.predicted_kl
                                                    })));
  if (!rows.length) return null;
  return makeTable(
      'Plans that were tried',
      [
        contractColumn, onColumn,
        ...numberColumns(rows, keysOf(rows, ['budget', 'predicted_kl', ...kLossFigures]))
      ],
      rows);
}

const contractTables =
    (data) => [contractSummaryTable, lossTable, tunedSpeedTable, candidatesTable].map(
        (table) => table(data));

// A layer of a plan has as many rows as sets, and one where no head clusters.
function planRunTable({run, name}) {
  const rows = asList(run.layers).map(asObject).flatMap((layer) => {
    const {sets, ...own} = layer;
    return (asList(sets).length ? sets : [{}]).map((set) => ({...asObject(set), ...own}));
  });
  const known = ['tau', 'keys_read_fraction', 'clusters_fraction', ...kSetFigures];
  return makeTable(
      name,
      [
        {name: 'layer', get: (r) => r.layer},
        {name: 'rule', get: (r) => String(r.rule ?? ''), text: true},
        ...numberColumns(rows, keysOf(rows, known).filter((k) => k !== 'layer'))
      ],
      rows);
}
