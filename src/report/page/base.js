// Small tools every view uses: elements, numbers, colours of the theme, one floating tip, copying.
// Text reaches the page through text nodes and attributes alone, so no input can become markup.
'use strict';

const kSvg = 'http://www.w3.org/2000/svg';
const kDash = '–';  // a figure that is not there

// Attributes named on* are listeners; null, undefined and false are left out.
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on'))
      element.addEventListener(name.slice(2), value);
    else
      element.setAttribute(name, value === true ? '' : value);
  }
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

// An HTML element: make('p', {class: 'note'}, 'text', other).
function make(tag, attributes, ...children) {
  return append(setAttributes(document.createElement(tag), attributes), children);
}

// The same for SVG.
function draw(tag, attributes, ...children) {
  return append(setAttributes(document.createElementNS(kSvg, tag), attributes), children);
}

// Runs f; where it fails, one plain line stands in `place` and the rest of the page goes on.
function guarded(place, f) {
  try {
    f();
  } catch (error) {
    place.append(make('p', {class: 'failed'}, 'This could not be drawn: ' + error.message));
    console.error(error);
  }
}

// Items with the same key together, in order of first appearance.
function groupsOf(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return [...groups.values()];
}

const isNumber = (x) => typeof x === 'number' && Number.isFinite(x);
const asList = (x) => (Array.isArray(x) ? x : []);
const asObject = (x) => (x && typeof x === 'object' && !Array.isArray(x) ? x : {});

// Whole numbers with separators; others to `digits` significant digits, without an exponent
// unless they are tiny or huge.
function figure(x, digits = 4) {
  if (!isNumber(x)) return kDash;
  if (Number.isInteger(x) && Math.abs(x) < 1e15) return x.toLocaleString('en');
  const size = Math.abs(x);
  if (size < 1e-4 || size >= 1e9) return x.toExponential(Math.max(0, digits - 2));
  if (size >= 10 ** digits) return Math.round(x).toLocaleString('en');
  return String(Number(x.toPrecision(digits)));
}

// A mean with its error or deviation, both to the second digit of the error, unless that is tiny.
function withError(x, error, digits = 4) {
  if (!isNumber(x) || !isNumber(error) || !(error > 0)) return figure(x, digits);
  const decimals = Math.max(0, 1 - Math.floor(Math.log10(error)));
  if (decimals > 6) return `${figure(x, digits)} ± ${figure(error, 3)}`;
  const show = (v) =>
      v.toLocaleString('en', {minimumFractionDigits: decimals, maximumFractionDigits: decimals});
  return `${show(x)} ± ${show(error)}`;
}

const fixed = (x, decimals) => (isNumber(x) ? x.toFixed(decimals) : kDash);
const percent = (x, decimals = 0) => (isNumber(x) ? (100 * x).toFixed(decimals) + ' %' : kDash);
const milliseconds = (x) =>
    (isNumber(x) ? (x >= 1000 ? fixed(x / 1000, 2) + ' s' :
                                (x >= 100    ? fixed(x, 0) :
                                     x >= 10 ? fixed(x, 1) :
                                               fixed(x, 2)) +
                            ' ms') :
                   kDash);
const plural = (n, one, many = one + 's') => figure(n) + ' ' + (n === 1 ? one : many);

function bytes(x) {
  if (!isNumber(x)) return kDash;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (x >= 1024 && unit < units.length - 1) {
    x /= 1024;
    ++unit;
  }
  return figure(x, 3) + ' ' + units[unit];
}

const fileName = (path) => safeText(String(path || '').split(/[/\\]/).filter(Boolean).pop());
const cssColour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A select with a label; `options` are texts, `choose` gets the index. Nothing where there is no
// choice.
function chooser(label, options, choose, extra) {
  if (options.length < 2) return null;
  const select = make(
      'select', {...extra, onchange: () => choose(select.selectedIndex)},
      options.map((text) => make('option', {}, text)));
  return make('label', {class: 'chooser'}, make('span', {}, label), select);
}

// A row of buttons of which one is pressed.
function choiceButtons(label, options, choose) {
  const buttons = options.map(
      (text, index) => make(
          'button', {
            type: 'button',
            'aria-pressed': String(index === 0),
            onclick: () => {
              buttons.forEach((b, i) => b.setAttribute('aria-pressed', String(i === index)));
              choose(index);
            }
          },
          text));
  return make('div', {class: 'choice', role: 'group', 'aria-label': label}, buttons);
}

// One tip for the whole page, above or below what is pointed at. `lines` are texts; the first is
// strong.
const tip = {
  show(target, lines) {
    const box = document.getElementById('tip');
    box.replaceChildren(...lines.map((line, i) => make(i ? 'div' : 'strong', {}, line)));
    box.hidden = false;
    const at = target.getBoundingClientRect();
    const size = box.getBoundingClientRect();
    const room = document.documentElement.clientWidth - size.width - 8;
    const left = Math.min(Math.max(8, at.left + at.width / 2 - size.width / 2), Math.max(8, room));
    const above = at.top - size.height - 10;
    box.style.left = left + 'px';
    box.style.top = (above > 8 ? above : at.bottom + 10) + 'px';
  },
  hide() {
    document.getElementById('tip').hidden = true;
  },
};

// Makes `element` tell `lines` on hover, focus and tap, and to screen readers. Keys reach it
// through walkPoints.
function tellsOf(element, lines) {
  element.lines = lines;
  setAttributes(element, {
    tabindex: -1,
    role: 'img',
    'aria-label': lines.join(', '),
    onpointerenter: () => tip.show(element, lines),
    onpointerleave: tip.hide,
    onfocus: () => tip.show(element, lines),
    onblur: tip.hide,
  });
  return element;
}

async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages opened from disk may be refused the clipboard; execCommand copies a selection instead.
    const area = make('textarea', {class: 'offscreen'});
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
  }
  const before = button.dataset.label || button.textContent;
  button.dataset.label = before;
  button.textContent = done ? 'Copied' : 'Not allowed here';
  setTimeout(() => {
    button.textContent = before;
  }, 1400);
}

// Light or dark: the system's choice until the reader makes one. Canvases redraw on the event
// `sluice-theme`; everything else follows by CSS.
const theme = {
  set(name) {
    document.documentElement.dataset.theme = name;
    const button = document.getElementById('theme');
    button.textContent = name === 'dark' ? 'Light' : 'Dark';
    button.setAttribute(
        'aria-label', 'Switch to ' + (name === 'dark' ? 'light' : 'dark') + ' colours');
    document.dispatchEvent(new Event('sluice-theme'));
  },
  get() {
    return document.documentElement.dataset.theme;
  },
  start() {
    const system = matchMedia('(prefers-color-scheme: dark)');
    let chosen = false;
    theme.set(system.matches ? 'dark' : 'light');
    system.addEventListener('change', () => {
      if (!chosen) theme.set(system.matches ? 'dark' : 'light');
    });
    document.getElementById('theme').addEventListener('click', () => {
      chosen = true;
      theme.set(theme.get() === 'dark' ? 'light' : 'dark');
    });
    let before = null;
    addEventListener('beforeprint', () => {
      before = theme.get();
      theme.set('light');
    });
    addEventListener('afterprint', () => {
      if (before) theme.set(before);
    });
  },
};
