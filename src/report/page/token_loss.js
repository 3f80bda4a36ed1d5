// The text coloured by what each prediction loses: KL of every token of the first window, of one run
// of `eval` at a time.

// The least KL of each step; the first has no colour.
const kLossSteps = [0, 0.001, 0.01, 0.1, 1];
const lossStep = (kl) => kLossSteps.filter((least) => kl >= least).length - 1;
const kWorstShown = 6;

function addTokenLoss(data, part, prefix) {
  const tokens = asList(asObject(part.window).tokens);
  if (part.command !== 'eval' || !tokens.length) return;
  for (const run of asList(part.runs).map(asObject)) {
    const kl = asList(run.token_kl);
    if (kl.length !== tokens.length || !kl.some(isNumber)) continue;
    const settings = {...asObject(part.settings), ...asObject(run.settings)};
    data.losses.push({part, tokens, kl, name: prefix + settingName(data, settings)});
  }
}

// The run of the most loss that is still small; where there is none, the first with any.
function firstLoss(losses) {
  const means = losses.map(({kl}) => meanOf(kl));
  const small = means.filter((mean) => mean > 0 && mean <= kSmallLoss);
  return Math.max(
      0,
      small.length ? means.indexOf(Math.max(...small)) : means.findIndex((mean) => mean > 0));
}

const lossStepName = (i) => (i === 0 ? `below ${kLossSteps[1]}` :
                             i + 1 < kLossSteps.length ?
                             `${kLossSteps[i]} to ${kLossSteps[i + 1]}` :
                             `${kLossSteps[i]} or more`);

function lossLegend({kl}) {
  return make(
      'div', {class: 'legend'},
      kLossSteps.map((_, i) => {
        const n = kl.filter((v) => isNumber(v) && lossStep(v) === i).length;
        return make(
            'span', {class: 'legend-item'},
            make(
                'span', {class: 'tok sample-chip', 'data-loss': i},
                make('span', {class: 'w'}, 'token')),
            lossStepName(i) + ' ', make('span', {class: 'count'}, figure(n)));
      }));
}

function lossTellsOf(entry, position) {
  const kl = entry.kl[position];
  return [
    `${oneLine(entry.tokens[position], 24)} at ${figure(position)}`,
    isNumber(kl) ? `KL ${figure(kl, 3)} nats` : 'the first token is not predicted'
  ];
}

function lossChips(entry) {
  return entry.tokens.map((text, t) => {
    const chip = makeChip(text, t);
    chip.removeAttribute('data-token');  // which is the token map's
    chip.dataset.position = t;
    if (isNumber(entry.kl[t])) chip.dataset.loss = lossStep(entry.kl[t]);
    chip.setAttribute('aria-label', lossTellsOf(entry, t).join(', '));
    return chip;
  });
}

function worstTokens(entry, goTo) {
  const order = entry.kl.map((kl, t) => [kl, t]).filter(([kl]) => isNumber(kl) && kl > 0);
  order.sort((a, b) => b[0] - a[0]);
  if (!order.length) return make('p', {class: 'caption'}, 'No token lost anything in this run.');
  const half = order.reduce((sum, [kl]) => sum + kl, 0) / 2;
  let held = 0, n = 0;
  while (held < half) held += order[n++][0];
  return make(
      'p', {class: 'caption'}, `Half of the loss is in ${plural(n, 'token')} of ${
          figure(entry.tokens.length)}. Most is lost at `,
      order.slice(0, kWorstShown)
          .map(
              ([kl, t], i) =>
                  [i ? ', ' : '',
                   make(
                       'button', {type: 'button', class: 'token-link', onclick: () => goTo(t)},
                       quoted(entry.tokens[t], 16)),
                   ` (KL ${figure(kl, 2)})`]),
      '.');
}

function tokenLossView(data, section) {
  const box = make('div', {
    class: 'prose loss-text',
    'data-role': 'loss-text',
    role: 'group',
    'aria-label': 'The text, coloured by loss. Arrow keys move.'
  });
  const key = make('div', {}), worst = make('div', {});
  let entry = null;
  const chipOf = (e) => (e.target instanceof Element ? e.target.closest('[data-position]') : null);
  const tell = (e) => {
    const chip = chipOf(e);
    if (chip) tip.show(chip, lossTellsOf(entry, Number(chip.dataset.position)));
  };
  const goTo = (t) => {
    const chip = box.children[t];
    if (!chip) return;
    const before = box.querySelector('[tabindex="0"]');
    if (before) before.tabIndex = -1;
    chip.tabIndex = 0;
    const at = chip.getBoundingClientRect(), frame = box.getBoundingClientRect();
    if (at.top < frame.top + 20 || at.bottom > frame.bottom - 20)
      box.scrollTop += at.top - frame.top - box.clientHeight / 3;
    chip.focus({preventScroll: true});
  };
  box.addEventListener('pointerover', tell);
  box.addEventListener('focusin', tell);
  box.addEventListener('pointerleave', tip.hide);
  box.addEventListener('focusout', tip.hide);
  box.addEventListener('keydown', (e) => {
    const chip = chipOf(e), by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!chip || !by) return;
    e.preventDefault();
    goTo(Number(chip.dataset.position) + by);
  });
  const show = (i) => {
    entry = data.losses[i];
    box.replaceChildren(...lossChips(entry));
    if (box.firstChild) box.firstChild.tabIndex = 0;
    key.replaceChildren(lossLegend(entry));
    worst.replaceChildren(worstTokens(entry, goTo));
  };
  const first = firstLoss(data.losses);
  const controls =
      controlRow(chooser('Run', data.losses.map((r) => r.name), show, {'data-role': 'loss-run'}));
  section.append(
      controls, key, make('div', {class: 'loss-frame'}, box), worst,
      saveButtons('loss token by token', [{
                    label: 'CSV',
                    save: () => saveFile(
                        'loss-' + fileStem(entry.name) + '.csv', 'text/csv',
                        csvText([
                          ['position', 'token', 'KL'],
                          ...entry.tokens.map((text, t) => [t, text, entry.kl[t]])
                        ]))
                  }]),
      make(
          'p', {class: 'caption'},
          'Every token has the colour of what its prediction lost: the KL from the dense model’s, ' +
              'in nats, from the tokens before it. The mean over all of the text is in the table. ' +
              'Point at a token, tap it, or walk with the arrow keys.'));
  const select = section.querySelector('[data-role="loss-run"]');
  if (select) select.selectedIndex = first;
  show(first);
}
