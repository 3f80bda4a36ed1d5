// The depth map: tokens x layers as one picture to zoom and pan. The picture itself is drawn in
// depth_picture.js; here are pointer, wheel, touch and keys.

const kFewestTokens = 8;  // the closest view

class DepthMap {
  constructor(canvas, readout) {
    this.canvas = canvas;
    this.readout = readout;
    this.cursor = null;
    this.pointers = new Map();
    this.pending = false;
    this.view = {from: 0, to: 1};
    this.listen();
    this.reset();
  }

  get map() {
    return mapState.map;
  }

  reset() {
    this.cursor = null;
    this.view = {from: 0, to: this.map.nTokens};
    this.canvas.setAttribute(
        'aria-label',
        `Depth map: ${plural(this.map.nTokens, 'token')} by ` +
            `${plural(this.map.nLayers, 'layer')}; on average ${
                percent(this.meanKept(), 1)} of the tokens ` +
            'are kept. Arrow keys move, plus and minus zoom, Enter shows the token in the text.');
    this.tell();
    this.redraw();
  }

  meanKept() {
    const sum = this.map.layers.reduce((s, l) => s + l.nReps, 0);
    return sum / this.map.nLayers / this.map.nTokens;
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (this.canvas.clientWidth > 40) drawDepth(this.canvas, this.map, this.view, this.cursor);
  }

  get cell() {
    return (this.canvas.clientWidth - 30) / (this.view.to - this.view.from);
  }
  tokenAt(clientX) {
    return this.view.from + (clientX - this.canvas.getBoundingClientRect().left - 30) / this.cell;
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const token = Math.floor(this.tokenAt(event.clientX));
    const layer =
        Math.floor((event.clientY - box.top - kDepthTop) / depthRowHeight(this.map.nLayers));
    if (token < 0 || token >= this.map.nTokens || event.clientX - box.left < 30) return null;
    return {token, layer: Math.min(this.map.nLayers - 1, Math.max(0, layer))};
  }

  setView(from, size) {
    const T = this.map.nTokens;
    size = Math.min(T, Math.max(Math.min(T, kFewestTokens), size));
    from = Math.min(T - size, Math.max(0, from));
    this.view = {from, to: from + size};
    this.redraw();
  }

  zoom(factor, around) {
    const size = this.view.to - this.view.from;
    const centre = around ?? (this.cursor ? this.cursor.token + 0.5 : this.view.from + size / 2);
    const next = Math.min(
        this.map.nTokens, Math.max(Math.min(this.map.nTokens, kFewestTokens), size / factor));
    this.setView(centre - (centre - this.view.from) * next / size, next);
  }

  setCursor(cursor) {
    this.cursor = cursor;
    if (cursor) {
      const size = this.view.to - this.view.from;
      if (cursor.token < this.view.from) this.setView(cursor.token, size);
      if (cursor.token + 1 > this.view.to) this.setView(cursor.token + 1 - size, size);
    }
    this.tell();
    this.redraw();
  }

  tell() {
    const byKeys = document.activeElement === this.canvas;
    this.readout.setAttribute('aria-live', byKeys ? 'polite' : 'off');
    if (!this.cursor) {
      this.readout.replaceChildren(
          'Point at the picture to read a token; click to find it in the text.');
      return;
    }
    const {token, layer} = this.cursor;
    const facts = tokenFacts(this.map, layer, token);
    const owner = facts.owner === token ? ['stands for itself'] : [
      'owner ', quoted(this.map.tokens[facts.owner], 16),
      ` at ${facts.owner}, cosine ${fixed(facts.cosine, 4)}`
    ];
    this.readout.replaceChildren(
        quoted(this.map.tokens[token], 20),
        ` at ${token}, layer ` +
            `${layerLabel(this.map, layer)}: ${kStatus[facts.status]}, `,
        ...owner,
        `; kept in ${this.map.keptLayers[token]} of ${plural(this.map.nLayers, 'layer')}`);
  }

  go() {
    if (this.cursor) window.sluice.showToken(this.cursor.token, this.cursor.layer);
  }

  listen() {
    const c = this.canvas;
    new ResizeObserver(() => this.redraw()).observe(c);
    document.addEventListener(
        'sluice-theme', () => this.paint());  // at once: printing does not wait
    c.addEventListener('wheel', (e) => this.onWheel(e), {passive: false});
    c.addEventListener('keydown', (e) => this.onKey(e));
    c.addEventListener('pointerdown', (e) => {
      this.pointers.set(e.pointerId, e);
      this.moved = this.pointers.size > 1;
      this.grip = {from: this.view.from, size: this.view.to - this.view.from, x: e.clientX};
    });
    c.addEventListener('pointermove', (e) => this.onMove(e));
    c.addEventListener('pointerup', (e) => {
      const tapped = this.pointers.delete(e.pointerId) && !this.moved;
      if (!tapped) return;
      this.setCursor(this.at(e));
      this.go();
    });
    for (const type of ['pointercancel', 'pointerleave'])
      c.addEventListener(type, (e) => {
        this.pointers.delete(e.pointerId);
        if (e.pointerType === 'mouse' && document.activeElement !== c) this.setCursor(null);
      });
  }

  onMove(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.setCursor(this.at(event));
      return;
    }
    const before = [...this.pointers.values()];
    this.pointers.set(event.pointerId, event);
    if (before.length === 2) {
      const [a, b] = [...this.pointers.values()];
      const was = Math.abs(before[0].clientX - before[1].clientX);
      const is = Math.abs(a.clientX - b.clientX);
      if (was > 4 && is > 4) this.zoom(is / was, this.tokenAt((a.clientX + b.clientX) / 2));
    } else if (this.moved || Math.abs(event.clientX - this.grip.x) > 4) {
      this.moved = true;
      this.canvas.setPointerCapture(event.pointerId);
      this.setView(this.grip.from - (event.clientX - this.grip.x) / this.cell, this.grip.size);
    }
  }

  // The bare wheel scrolls the page unless the picture has the focus.
  onWheel(event) {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.setView(this.view.from + event.deltaX / this.cell, this.view.to - this.view.from);
    } else if (event.ctrlKey || event.metaKey || document.activeElement === this.canvas) {
      this.zoom(
          Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), this.tokenAt(event.clientX));
    } else {
      return;
    }
    event.preventDefault();
  }

  onKey(event) {
    const size = this.view.to - this.view.from;
    const from = this.cursor || {token: Math.floor(this.view.from), layer: mapState.layer};
    const move = (dt, dl) => this.setCursor({
      token: Math.min(this.map.nTokens - 1, Math.max(0, from.token + dt)),
      layer: Math.min(this.map.nLayers - 1, Math.max(0, from.layer + dl))
    });
    const page = Math.max(1, Math.round(size / 2));
    const keys = {
      ArrowLeft: () => move(-1, 0),
      ArrowRight: () => move(1, 0),
      ArrowUp: () => move(0, -1),
      ArrowDown: () => move(0, 1),
      PageUp: () => move(-page, 0),
      PageDown: () => move(page, 0),
      Home: () => move(-this.map.nTokens, 0),
      End: () => move(this.map.nTokens, 0),
      '+': () => this.zoom(1.5),
      '=': () => this.zoom(1.5),
      '-': () => this.zoom(1 / 1.5),
      0: () => this.reset(),
      Enter: () => this.go(),
      ' ': () => this.go(),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    keys[event.key]();
    event.preventDefault();
  }
}

function depthMapView(data, section) {
  const canvas = make('canvas', {class: 'depth', tabindex: 0, role: 'img'});
  const readout = make('p', {class: 'readout', 'data-role': 'depth-readout'});
  const button = (label, name, act) =>
      make('button', {type: 'button', 'aria-label': name, onclick: act}, label);
  section.append(
      make(
          'div', {class: 'controls'},
          make(
              'div', {class: 'choice', role: 'group', 'aria-label': 'Zoom'},
              button('−', 'Zoom out', () => depth.zoom(1 / 1.6)),
              button('+', 'Zoom in', () => depth.zoom(1.6)),
              button('Whole', 'Show the whole text', () => depth.reset())),
          legend([
            {name: 'representative', cls: 'map-representative', box: true, line: false},
            {name: 'redundant', cls: 'map-redundant', box: true, line: false},
            {name: 'exempt', cls: 'map-exempt', box: true, line: false},
            {name: 'uncovered', cls: 'map-uncovered', box: true, line: false}
          ])),
      canvas, readout,
      saveButtons(
          'depth map',
          [
            {label: 'SVG', save: () => saveFile('depth-map.svg', 'image/svg+xml', depthSvg(depth.map))},
            {
              label: 'PNG',
              save: () => canvas.toBlob((blob) => saveFile('depth-map.png', 'image/png', blob))
            },
            {label: 'CSV', save: () => saveFile('depth-map.csv', 'text/csv', depthCsv(depth.map))}
          ]),
      make(
          'p', {class: 'caption'},
          'Every column is a token, every row a layer, the first layer on top. ' +
              'Long vertical strokes are tokens that stay representative as the text ' +
              'goes through the model. ' +
              'Drag to move; zoom with the buttons, by pinching, with Ctrl and the ' +
              'wheel, or with + and −.'));
  const depth = new DepthMap(canvas, readout);
  mapState.listen((what) => {
    if (what === 'map') depth.reset();
  });
}
