// The token map: the text itself, one chip per token, a slider over the layers. Chips are made
// block by block as they come near, and a new layer repaints only the blocks in sight, so a text
// of 8192 tokens moves as a short one does.

const kBlockTokens = 128;      // a block ends at the first line break after so many tokens
const kBlockTokensMost = 320;  // or here

// Borders of the blocks, from 0 to n_tokens.
function cutBlocks(tokens) {
  const cuts = [0];
  for (let t = 1; t < tokens.length; ++t) {
    const size = t - cuts[cuts.length - 1];
    if (size >= kBlockTokensMost || (size >= kBlockTokens && tokens[t - 1].endsWith('\n'))) cuts.push(t);
  }
  cuts.push(tokens.length);
  return cuts;
}

// Neighbouring clusters get different tints: the golden ratio spreads positions over them.
const kTints = 8;
const tintOf = (cluster) => Math.floor(((cluster * 0.6180339887) % 1) * kTints);

class TokenBoard {
  // `shown` is called with the position a reader points at, and null when none.
  constructor(box, shown) {
    this.box = box;
    this.shown = shown;
    this.colour = 'role';
    this.lit = [];  // chips of the highlighted cluster
    this.pointed = null;
    // Scrolling under a resting mouse also enters tokens; only a mouse that moved points.
    let rest = null;
    addEventListener('pointermove', (e) => { rest = e.screenX + ' ' + e.screenY; }, true);
    box.addEventListener('pointerenter', (e) => {
      if (!e.isTrusted || rest !== e.screenX + ' ' + e.screenY) this.onPoint(e);
    }, true);
    box.addEventListener('pointerleave', (e) => { if (e.target === box) this.point(null); });
    box.addEventListener('focusin', (e) => this.onPoint(e));
    box.addEventListener('click', (e) => {
      const position = this.positionOf(e.target);
      if (position !== null) mapState.setToken(position);
    });
    box.addEventListener('keydown', (e) => this.onKey(e));
    addEventListener('beforeprint', () => this.blocks.forEach((b) => this.show(b)));
    this.load();
  }

  load() {
    const map = mapState.map;
    if (this.observer) this.observer.disconnect();
    clearTimeout(this.later);
    this.chips = new Array(map.nTokens);
    this.lit = [];
    const cuts = cutBlocks(map.tokens);
    this.blocks = cuts.slice(1).map((end, i) => ({
      begin: cuts[i], end, element: make('div', {class: 'block'}), near: false, built: false,
      painted: null}));
    // Until it is built, a block keeps about the room its text will take.
    const perLine = Math.max(20, this.box.clientWidth / 8.5 || 80);
    for (const b of this.blocks) {
      const letters = map.tokens.slice(b.begin, b.end).join('').length;
      b.element.style.minHeight = Math.ceil(letters / perLine) * 1.9 + 'em';
    }
    this.box.replaceChildren(...this.blocks.map((b) => b.element));
    const byElement = new Map(this.blocks.map((b) => [b.element, b]));
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const block = byElement.get(entry.target);
        block.near = entry.isIntersecting;
        if (block.near) this.show(block);
      }
    }, {root: this.box, rootMargin: '400px 0px'});
    for (const b of this.blocks) this.observer.observe(b.element);
    this.show(this.blocks[0]);
    this.chips[0].tabIndex = 0;
    this.highlight(null);
  }

  // Makes the chips of a block where they are not made yet, and brings them up to date.
  show(block) {
    if (!block.built) this.build(block);
    this.paint(block);
  }

  build(block) {
    block.built = true;
    const made = [];
    for (let t = block.begin; t < block.end; ++t) {
      this.chips[t] = makeChip(mapState.map.tokens[t], t);
      made.push(this.chips[t]);
    }
    block.element.style.minHeight = '';
    block.element.append(...made);
    if (this.cluster !== null) this.highlight(this.pointed);
  }

  // Brings a block to the layer and colouring in use.
  paint(block) {
    const map = mapState.map, key = mapState.layer + this.colour;
    if (block.painted === key) return;
    block.painted = key;
    const at = mapState.layer * map.nTokens;
    const floor = 1 - map.tau * map.tau;  // the lowest cosine of a covered token
    for (let t = block.begin; t < block.end; ++t) {
      const chip = this.chips[t], status = map.status[at + t];
      if (chip.dataset.status !== kStatus[status]) chip.dataset.status = kStatus[status];
      if (this.colour === 'cluster') {
        chip.dataset.tint = status === kUncovered || status === kExempt ? 'none' : tintOf(map.owner[at + t]);
      } else if (this.colour === 'cosine') {
        const share = keeps(status) ? 0 : (map.cosine[at + t] / 32767 - floor) / Math.max(1e-6, 1 - floor);
        chip.style.setProperty('--near', Math.round(100 * Math.min(1, Math.max(0, share))) + '%');
      }
    }
  }

  repaint() {
    for (const b of this.blocks) if (b.near) this.paint(b);
    // Those out of sight follow when there is time.
    const rest = this.blocks.filter((b) => b.built && !b.near);
    const next = () => {
      if (rest.length) this.later = setTimeout(() => { this.paint(rest.shift()); next(); });
    };
    clearTimeout(this.later);
    next();
    this.highlight(this.pointed ?? mapState.token);
  }

  setColour(colour) {
    this.colour = colour;
    this.box.dataset.colour = colour;
    this.repaint();
  }

  positionOf(element) {
    const chip = element instanceof Element ? element.closest('[data-token]') : null;
    return chip ? Number(chip.dataset.token) : null;
  }

  onPoint(event) {
    const position = this.positionOf(event.target);
    if (position !== null && position !== this.pointed) this.point(position);
  }

  point(position) {
    this.pointed = position;
    this.highlight(position ?? mapState.token);
    this.shown(position ?? mapState.token);
  }

  highlight(position) {
    for (const chip of this.lit) chip.classList.remove('member', 'owner', 'self');
    this.lit = [];
    this.cluster = null;
    if (position === null) return;
    const facts = tokenFacts(mapState.map, mapState.layer, position);
    this.cluster = facts.cluster;
    const light = (t, name) => {
      if (!this.chips[t]) return;
      this.chips[t].classList.add(name);
      this.lit.push(this.chips[t]);
    };
    for (const t of facts.members) light(t, 'member');
    light(facts.owner, 'owner');
    light(position, 'self');
  }

  // Scrolls inside the box alone; the page moves only when asked.
  reveal(position, focus) {
    const block = this.blocks.find((b) => position < b.end);
    this.show(block);
    const chip = this.chips[position];
    const at = chip.getBoundingClientRect(), box = this.box.getBoundingClientRect();
    if (at.top < box.top + 30 || at.bottom > box.bottom - 30)
      this.box.scrollTop += at.top - box.top - this.box.clientHeight / 3;
    const before = this.box.querySelector('[tabindex="0"]');
    if (before) before.tabIndex = -1;
    chip.tabIndex = 0;
    if (focus) chip.focus({preventScroll: true});
  }

  onKey(event) {
    const position = this.positionOf(event.target);
    if (position === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = mapState.map.nTokens - 1;
    const moves = {ArrowRight: () => position + 1, ArrowLeft: () => position - 1, Home: () => 0,
                   End: () => last, ArrowDown: () => this.lineStep(position, 1),
                   ArrowUp: () => this.lineStep(position, -1)};
    if (moves[event.key]) {
      this.reveal(Math.min(last, Math.max(0, moves[event.key]())), true);
    } else if (event.key === '[' || event.key === ']') {
      mapState.setLayer(mapState.layer + (event.key === ']' ? 1 : -1));
    } else if (event.key === 'Enter' || event.key === ' ') {
      mapState.setToken(position);
    } else if (event.key === 'o') {
      this.reveal(tokenFacts(mapState.map, mapState.layer, position).owner, true);
    } else {
      return;
    }
    event.preventDefault();
  }

  // The token on the next line that stands nearest below or above.
  lineStep(position, direction) {
    const here = this.chips[position].getBoundingClientRect();
    let best = position, line = null, gap = Infinity;
    for (let t = position + direction; t >= 0 && t < mapState.map.nTokens; t += direction) {
      if (!this.chips[t]) this.show(this.blocks.find((b) => t < b.end));
      const at = this.chips[t].getBoundingClientRect();
      if (Math.abs(at.top - here.top) < 4) continue;
      if (line !== null && Math.abs(at.top - line) > 4) break;
      line = at.top;
      if (Math.abs(at.left - here.left) < gap) { gap = Math.abs(at.left - here.left); best = t; }
    }
    return best;
  }
}

// Slider, buttons and the counts of the layer.
function layerControls() {
  const slider = make('input', {type: 'range', min: 0, step: 1, 'data-role': 'layer',
                                'aria-label': 'Layer', oninput: () => mapState.setLayer(Number(slider.value))});
  const step = (by, sign, label) => make('button', {type: 'button', 'aria-label': label,
    onclick: () => mapState.setLayer(mapState.layer + by)}, sign);
  const name = make('output', {class: 'layer-name', 'data-role': 'layer-name'});
  const counts = make('dl', {class: 'counts', 'data-role': 'layer-counts', 'aria-live': 'polite'});
  const refresh = () => {
    const map = mapState.map, layer = map.layers[mapState.layer];
    slider.max = map.nLayers - 1;
    slider.value = mapState.layer;
    slider.setAttribute('aria-valuetext', 'layer ' + layerLabel(map, mapState.layer));
    name.textContent = `Layer ${layerLabel(map, mapState.layer)} of ${layerLabel(map, map.nLayers - 1)}`;
    const entry = (label, value) => make('div', {}, make('dt', {}, label), make('dd', {}, value));
    counts.replaceChildren(
      entry('in the set, r', figure(layer.nReps)), entry('r / T', percent(layer.nReps / map.nTokens, 1)),
      entry('turnover', percent(layer.turnover, 1)),
      entry('joined, left', mapState.layer ? `+${layer.additions} −${layer.removals}` : kDash));
  };
  return {refresh, element: make('div', {class: 'layer-bar'},
    make('div', {class: 'stepper'}, step(-1, '‹', 'Layer before'), slider, step(1, '›', 'Next layer'), name),
    counts)};
}

function statusLegend() {
  const words = {representative: 'representative', redundant: 'stood for by another',
                 exempt: 'exempt', uncovered: 'uncovered'};
  const parts = Object.keys(words).map((status) => {
    const count = make('span', {class: 'count'});
    return {status, count, element: make('span', {class: 'legend-item'},
      make('span', {class: 'tok sample-chip', 'data-status': status}, make('span', {class: 'w'}, 'token')),
      words[status] + ' ', count)};
  });
  const refresh = () => {
    const counts = mapState.map.layers[mapState.layer].counts;
    for (const {status, count, element} of parts) {
      const n = counts[kStatus.indexOf(status)];
      count.textContent = figure(n);
      element.hidden = n === 0 && (status === 'exempt' || status === 'uncovered') &&
        !mapState.map.layers.some((l) => l.counts[kStatus.indexOf(status)]);
    }
  };
  return {refresh, element: make('div', {class: 'legend'}, parts.map((p) => p.element))};
}

function tokenMapView(data, section) {
  const box = make('div', {class: 'prose', 'data-role': 'token-text', 'data-colour': 'role', role: 'group',
    'aria-label': 'The text, token by token. Arrow keys move, brackets change the layer, o goes to the owner.'});
  const details = tokenDetails();
  const controls = layerControls(), key = statusLegend();
  const colours = ['role', 'cosine', 'cluster'];
  section.append(
    make('div', {class: 'controls'},
      chooser('Window', mapState.choices.map((c) => c.name), (i) => mapState.choose(i)),
      make('div', {class: 'chooser'}, make('span', {}, 'Colour by'), choiceButtons('Colour by', colours,
        (i) => board.setColour(colours[i])))),
    controls.element, key.element,
    make('div', {class: 'token-map'}, box, details.element),
    make('p', {class: 'caption'}, 'Tokens with a bar below stand for others at this layer; faded ones ' +
      'are near enough (cosine 1 − τ² or more) to one that came before. Point at a token, or move with ' +
      'the arrow keys, to see who stands for it; [ and ] change the layer, o goes to the owner. Coloured by ' +
      'cosine, a token is the fuller the nearer its owner; by cluster, tokens of one owner share a tint.'));
  const board = new TokenBoard(box, details.show);
  const refresh = () => { controls.refresh(); key.refresh(); details.show(board.pointed ?? mapState.token); };
  mapState.listen((what) => {
    if (what === 'map') { board.pointed = null; board.load(); } else board.repaint();
    refresh();
  });
  refresh();
  details.follow((position) => {
    mapState.setToken(position);
    board.reveal(position, true);
  });
  // The way in from elsewhere: the depth map, tests, the console.
  window.sluice = {
    ...window.sluice,
    showToken(position, layer = mapState.layer) {
      if (!(position >= 0 && position < mapState.map.nTokens)) return;
      board.pointed = null;
      mapState.setLayer(layer);
      mapState.setToken(position);
      section.scrollIntoView({block: 'start'});
      board.reveal(position, true);
    },
    showLayer: (layer) => mapState.setLayer(layer),
  };
}
