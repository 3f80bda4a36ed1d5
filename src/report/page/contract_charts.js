// Pictures of a contract: losses with two standard errors against the limit, and the speed of the
// plan by prompt length.

// Held out, calibration, predicted, from the bottom up.
function lossRows(part, kind) {
  const rows = [
    {name: 'held out', form: 'circle', cls: 's0', of: part.held_out},
    {name: 'calibration', form: 'square', cls: 's1', of: part.calibration},
    {name: 'predicted', form: 'diamond', cls: 's1 hollow', value: part.predicted_kl}
  ];
  return rows
      .map((row) => {
        const of = asObject(row.of);
        if (!row.of) return {...row, value: kind.key === 'kl_mean' ? row.value : null, error: null};
        return {...row, value: of[kind.key], error: of[kind.error], n: of.n_tokens};
      })
      .filter((row) => isNumber(row.value));
}

function lossChart(width, part, kind) {
  const rows = lossRows(part, kind), limit = asObject(part.contract)[kind.limit];
  const spread = (row) => kErrors * (isNumber(row.error) ? row.error : 0);
  const ends = [
    kind.none, ...(isNumber(limit) ? [limit] : []),
    ...rows.flatMap((r) => [r.value - spread(r), r.value + spread(r)])
  ];
  const lo = kind.none ? Math.min(...ends) : 0, hi = Math.max(...ends);
  const pad = (hi - lo || 1e-3) * 0.12;
  const plot = makePlot(width, {
    title: `${kind.title}, against the contract`,
    height: 250,
    left: 92,
    top: 34,
    right: 20,
    x: {domain: [lo < kind.none ? lo - pad : lo, hi + pad], label: kind.label},
    y: {
      domain: [0, rows.length],
      ticks: rows.map((_, i) => i + 0.5),
      format: (v) => rows[Math.floor(v)].name
    },
  });
  if (isNumber(limit)) addLimit(plot, limit, `contract ${figure(limit)}`);
  rows.forEach((row, i) => {
    const y = plot.Y(i + 0.5), [from, to] = [-1, 1].map((s) => plot.X(row.value + s * spread(row)));
    if (to > from) {
      plot.inner.append(draw('path', {
        class: 'error ' + row.cls,
        d: `M${from} ${y}H${to}M${from} ${y - 5}V${y + 5}M${to} ${y - 5}V${y + 5}`
      }));
    }
    const text = withError(row.value, row.error, kind.digits);
    addPoint(
        plot, row.value, i + 0.5, row.form, row.cls,
        [
          `${kind.name}, ${row.name}`, text + (row.of ? ' (standard error)' : ''),
          row.of ? `${figure(row.value + spread(row), kind.digits)} with two standard errors` :
                   'the sum of what each change loses alone',
          isNumber(row.n) ? plural(row.n, 'token') : ''
        ].filter(Boolean),
        4.6);
    const x = plot.X(row.value), half = 3.4 * text.length;
    plot.svg.append(draw(
        'text', {
          class: 'point-label',
          x: Math.min(Math.max(x, plot.left + half), plot.right - half),
          y: y - 12,
          'text-anchor': 'middle',
          'aria-hidden': 'true'
        },
        text));
  });
  return plot.svg;
}

// A dashed line across the rows, with its name above.
function addLimit(plot, value, name) {
  const x = plot.X(value), flip = x + 7 * name.length > plot.right;
  plot.svg.append(
      draw('line', {class: 'limit', x1: x, x2: x, y1: plot.top - 12, y2: plot.bottom}),
      draw(
          'text', {
            class: 'strong',
            x,
            y: plot.top - 18,
            'text-anchor': flip ? 'end' : 'middle',
            'aria-hidden': 'true'
          },
          name));
}

const kTimed = [
  {
    kind: 'prefill',
    from: 'prefill_from',
    title: 'Reading a prompt',
    words: 'reading',
    cls: 's0',
    form: 'circle'
  },
  {
    kind: 'decode',
    from: 'decode_from',
    title: 'Decoding after it',
    words: 'decoding after',
    cls: 's2',
    form: 'triangle'
  },
];

function tunedSpeedChart(width, part, timed) {
  const rows = timedRows(part, timed.kind);
  const most = Math.max(1.1, ...rows.map((r) => Math.max(r.speedup, r.speedup_high || 0)));
  const lengths = rows.map((r) => r.n_tokens);
  const ends = [lengths[0] / 1.15, lengths[lengths.length - 1] * 1.15];
  const X = scale(ends, [44, width - 16], true);
  // Those with room for their number; the greatest always has it.
  const ticks = [];
  for (const n of [...lengths].reverse())
    if (!ticks.length || X(ticks[0]) - X(n) > 42) ticks.unshift(n);
  const plot = makePlot(width, {
    title: `${timed.title}: speed over dense by prompt length`,
    height: 250,
    left: 44,
    x: {domain: ends, label: 'prompt, tokens', log: true, ticks},
    y: {domain: [0, 1.08 * most], label: 'speed, times dense', format: speedup},
  });
  const from = followedFrom(part, timed);
  if (from > 0 && from <= lengths[lengths.length - 1]) {
    const x = Math.max(plot.left, plot.X(from / 1.08));
    plot.inner.append(draw(
        'rect',
        {class: 'band s0', x, y: plot.top, width: plot.right - x, height: plot.bottom - plot.top}));
  }
  plot.inner.append(
      draw('line', {class: 'limit', x1: plot.left, x2: plot.right, y1: plot.Y(1), y2: plot.Y(1)}));
  addLine(plot, rows.map((r) => [r.n_tokens, r.speedup]), timed.cls);
  for (const r of rows) {
    const x = plot.X(r.n_tokens);
    if (isNumber(r.speedup_low) && isNumber(r.speedup_high)) {
      const [lo, hi] = [plot.Y(r.speedup_low), plot.Y(r.speedup_high)];
      plot.inner.append(draw('path', {
        class: 'error ' + timed.cls,
        d: `M${x} ${lo}V${hi}M${x - 4} ${lo}H${x + 4}M${x - 4} ${hi}H${x + 4}`
      }));
    }
    addPoint(plot, r.n_tokens, r.speedup, timed.form, timed.cls, [
      `${timed.words} ${plural(r.n_tokens, 'token')}`,
      speedRange(r.speedup, r.speedup_low, r.speedup_high),
      `dense ${milliseconds(r.dense_ms)}, plan ${milliseconds(r.plan_ms)}`
    ]);
  }
  return plot.svg;
}
