// The loss that an audit measured along a generation: the running mean, its interval, the contract,
// and where delta was tightened. docs/results.md, `audit`.

function addAudit(data, part, prefix) {
  const add = (audit, name) => {
    const samples = asList(asObject(audit).samples).filter((s) => isNumber(s.kl));
    if (samples.length || isNumber(asObject(asObject(audit).prompt).kl))
      data.audits.push({...audit, samples, name: prefix + name});
  };
  const settings = asObject(part.settings);
  add(part.audit, settings.plan ? 'plan ' + fileName(settings.plan) : settingName(data, settings));
  for (const item of asList(part.cases).map(asObject)) add(item.audit, caseName(item));
}
const caseName = (item) => `${safeText(item.name)}, ${labelText(item.label || item.mode)}`;

// Samples begin anew where delta was tightened: each stretch is a line of its own.
function auditStretches(samples) {
  const stretches = [[]];
  for (const sample of samples) {
    stretches[stretches.length - 1].push(sample);
    if (sample.tightened) stretches.push([]);
  }
  return stretches.filter((s) => s.length);
}

// The interval of few samples may reach far up; what is of interest then is below.
function auditTop({samples, max_kl}) {
  const highs = samples.map((s) => s.kl_high).filter(isNumber).sort((a, b) => a - b);
  const middle = highs.length ? highs[Math.floor(highs.length / 2)] : 0;
  const last = samples[samples.length - 1].kl_high;
  const ends = [middle, isNumber(last) ? last : 0, isNumber(max_kl) ? max_kl : 0];
  return 1.2 * Math.max(1e-12, ...ends, samples.reduce((most, s) => Math.max(most, s.kl), 0));
}

const kMostPoints = 80;  // those of a chart that can be pointed at

function auditChart(width, entry) {
  const {samples, max_kl} = entry;
  const first = samples[0].position, last = samples[samples.length - 1].position;
  const plot = makePlot(width, {
    title: `${entry.name}: measured KL by position, ${plural(samples.length, 'sample')}`,
    height: Math.round(Math.min(380, Math.max(280, 0.42 * width))),
    left: 62,
    top: 26,
    right: 20,
    x: {domain: last > first ? [first, last] : [first - 1, last + 1], label: 'position, tokens'},
    y: {domain: [0, auditTop(entry)], label: 'KL from the exact model, nats'},
  });
  for (const stretch of auditStretches(samples)) {
    addBand(plot, stretch.map((s) => [s.position, s.kl_low, s.kl_high]), 's0 strong-band');
    addLine(plot, stretch.map((s) => [s.position, s.kl]), 's0');
  }
  if (isNumber(max_kl)) addContractLine(plot, max_kl);
  const each = Math.ceil(samples.length / kMostPoints);
  samples.forEach((s, i) => {
    if (s.tightened) addTightened(plot, s);
    if (s.tightened || i % each === 0 || i === samples.length - 1)
      addPoint(
          plot, s.position, s.kl, s.tightened ? 'triangle' : 'circle', s.tightened ? 's2' : 's0',
          auditLines(s), s.tightened ? 4.6 : 3);
  });
  return plot.svg;
}

const intervalWords = ({kl, kl_low, kl_high}) =>
    figure(kl, 2) + (isNumber(kl_high) ? ` (${figure(kl_low, 2)} to ${figure(kl_high, 2)})` : '');

const auditLines = (s) =>
    [`Position ${figure(s.position)}`, `KL ${intervalWords(s)}`,
     `${plural(s.n_samples, 'sample')}, delta × ${figure(s.delta_factor)}`,
     ...(s.tightened ? ['delta tightened here, samples begin anew'] : [])];

function addContractLine(plot, limit) {
  const y = plot.Y(limit);
  plot.svg.append(
      draw('line', {class: 'limit', x1: plot.left, x2: plot.right, y1: y, y2: y}),
      draw(
          'text',
          {class: 'strong', x: plot.right, y: y - 6, 'text-anchor': 'end', 'aria-hidden': 'true'},
          `contract ${figure(limit)}`));
}

function addTightened(plot, {position, delta_factor}) {
  const x = plot.X(position), name = `delta × ${figure(delta_factor)}`;
  const room = 3.5 * name.length;
  plot.svg.append(
      draw('line', {class: 'error s2 dashed', x1: x, x2: x, y1: plot.top - 8, y2: plot.bottom}),
      draw(
          'text', {
            class: 'point-label',
            x: Math.min(Math.max(x, plot.left + room), plot.right - room),
            y: plot.top - 14,
            'text-anchor': 'middle',
            'aria-hidden': 'true'
          },
          name));
}

// What was found, in words.
function auditSentence({samples, max_kl, n_steps, n_compared, prompt}) {
  const before = prompt && isNumber(prompt.kl) ?
      `Of the prompt: KL ${intervalWords(prompt)}, ${figure(prompt.n_samples)} of ${
          plural(prompt.n_tokens, 'token')} compared.` :
      '';
  if (!samples.length) return `${before} No decode step was compared.`;
  const last = samples[samples.length - 1], tightened = samples.filter((s) => s.tightened).length;
  const compared = isNumber(n_compared) && isNumber(n_steps) ?
      `, ${figure(n_compared)} of ${plural(n_steps, 'token')} compared` :
      '';
  const kept = !isNumber(max_kl) ? '' :
      !isNumber(last.kl_high) ? ` Too few samples to speak of the contract of ${figure(max_kl)}.` :
      last.kl_high <= max_kl ? ` Within the contract of ${figure(max_kl)}.` :
      last.kl > max_kl ? ` Above the contract of ${figure(max_kl)}.` :
                         ` The interval reaches beyond the contract of ${figure(max_kl)}.`;
  const changed = tightened ?
      ` Delta was tightened ${tightened === 1 ? 'once' : `${tightened} times`}, to ${
          figure(last.delta_factor)} of what it was.` :
      '';
  return `KL ${intervalWords(last)} at the end${compared}.${kept}${changed} ${before}`.trim();
}

const kAuditModes = {
  __proto__: null,
  replay: 'every token compared with the exact model',
  step: 'single steps run exactly on the run’s own cache, which is no estimate of its whole loss'
};

function auditTable({name, samples}) {
  const figureOf = (title, key) => ({name: title, get: (s) => s[key]});
  return makeTable(
      `${name}: measured KL`,
      [
        figureOf('position', 'position'), figureOf('samples', 'n_samples'), figureOf('KL', 'kl'),
        figureOf('low', 'kl_low'), figureOf('high', 'kl_high'),
        figureOf('delta factor', 'delta_factor'),
        {name: 'tightened', get: (s) => (s.tightened ? 'yes' : ''), text: true}
      ],
      samples);
}

function auditView(data, section) {
  const pictures = data.audits.map((entry) => {
    const host = make('div', {class: 'plot'});
    if (entry.samples.length) keepDrawn(host, (width) => auditChart(width, entry));
    const mode = kAuditModes[entry.mode];
    return make(
        'div', {class: 'heads-part'}, make('h3', {}, entry.name),
        make('p', {'data-role': 'audit-words'}, auditSentence(entry)),
        make('p', {class: 'hint'}, mode ? `${safeText(entry.mode)}: ${mode}` : ''), host,
        entry.samples.length ? folded('The figures', () => auditTable(entry)) : '');
  });
  section.append(
      legend([
        {name: 'mean so far', cls: 's0', form: 'circle'},
        {name: 'its 95 % interval', cls: 's0 strong-band band', box: true, line: false}
      ]),
      make('div', {class: 'heads'}, pictures),
      make(
          'p', {class: 'caption'},
          'The mean and its interval at a position are of all samples since delta was last ' +
              'changed; where it was tightened, samples begin anew. The first interval needs two ' +
              'samples. Bands that leave the picture go on above it.'));
}
