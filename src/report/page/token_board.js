// The text of the token map: one chip per token. Chips are made block by block as they come near,
// and a new layer repaints the blocks in sight first, so a text of 8192 tokens moves as a short one
// does.

const kBlockTokens = 128;      // a block ends at the first line break after so many tokens
const kBlockTokensMost = 320;  // or here

// Borders of the blocks, from 0 to n_tokens.
function cutBlocks(tokens) {
  const cuts = [0];
  for (let t = 1; t < tokens.length; ++t) {
    const size = t - cuts[cuts.length - 1];
    if (size >= kBlockTokensMost || (size >= kBlockTokens && tokens[t - 1].endsWith('\n')))
      cuts.push(t);
  }
  cuts.push(tokens.length);
  return cuts;
}

// Neighbouring clusters get different tints: the golden ratio spreads positions over them.
const kTints = 8;
const tintOf = (cluster) => Math.floor(((cluster * 0.6180339887) % 1) * kTints);

// `gate, redundant, owner the at 3`
function spokenToken(map, position, status, owner) {
  const own = owner === position ?
      '' :
      `, ${status === kUncovered ? 'nearest' : 'owner'} ${oneLine(map.tokens[owner])} at ${owner}`;
  return `${oneLine(map.tokens[position])}, ${kStatus[status]}${own}`;
}

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
    addEventListener('pointermove', (e) => {
      rest = e.screenX + ' ' + e.screenY;
    }, true);
    box.addEventListener('pointerenter', (e) => {
      if (!e.isTrusted || rest !== e.screenX + ' ' + e.screenY) this.onPoint(e);
    }, true);
    // Without a token to go back to, the last one stays, so that its links can be reached.
    box.addEventListener('pointerleave', (e) => {
      if (e.target === box && mapState.token !== null) this.point(null);
    });
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
                                      begin: cuts[i],
                                      end,
                                      element: make('div', {class: 'block'}),
                                      near: false,
                                      built: false,
                                      painted: null
                                    }));
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
    if (this.cluster !== null) this.highlight(this.pointed ?? mapState.token);
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
      chip.setAttribute('aria-label', spokenToken(map, t, status, map.owner[at + t]));
      if (this.colour === 'cluster') {
        chip.dataset.tint =
            status === kUncovered || status === kExempt ? 'none' : tintOf(map.owner[at + t]);
      } else if (this.colour === 'cosine') {
        const share =
            keeps(status) ? 0 : (map.cosine[at + t] / 32767 - floor) / Math.max(1e-6, 1 - floor);
        chip.style.setProperty('--near', Math.round(100 * Math.min(1, Math.max(0, share))) + '%');
      }
    }
  }

  repaint() {
    for (const b of this.blocks)
      if (b.near) this.paint(b);
    // Those out of sight follow when there is time.
    const rest = this.blocks.filter((b) => b.built && !b.near);
    const next = () => {
      if (rest.length)
        this.later = setTimeout(() => {
          this.paint(rest.shift());
          next();
        });
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
    const moves = {
      ArrowRight: () => position + 1,
      ArrowLeft: () => position - 1,
      Home: () => 0,
      End: () => last,
      ArrowDown: () => this.lineStep(position, 1),
      ArrowUp: () => this.lineStep(position, -1)
    };
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
      if (Math.abs(at.left - here.left) < gap) {
        gap = Math.abs(at.left - here.left);
        best = t;
      }
    }
    return best;
  }
}
