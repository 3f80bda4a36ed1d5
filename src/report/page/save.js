// Downloads of every figure: the drawing as SVG and PNG, its points as CSV. All of them are made in
// the page when asked for.

// What the look of a drawing is made of; a saved file has no style sheet.
const kSavedStyles = [
  'fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linejoin', 'opacity', 'font-family',
  'font-size', 'font-weight', 'text-anchor', 'paint-order', 'fill-opacity'
];

function saveFile(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], {type}));
  const link = make('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// A drawing that stands alone: with its styles, on the colour of the page.
function svgFile(svg) {
  const copy = svg.cloneNode(true);
  const from = [svg, ...svg.querySelectorAll('*')], to = [copy, ...copy.querySelectorAll('*')];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    to[i].setAttribute(
        'style', kSavedStyles.map((name) => `${name}:${style.getPropertyValue(name)}`).join(';'));
    for (const name of ['class', 'tabindex', 'role']) to[i].removeAttribute(name);
  });
  copy.setAttribute('xmlns', kSvg);
  copy.insertBefore(
      draw('rect', {width: '100%', height: '100%', fill: cssColour('--paper')}), copy.firstChild);
  return new XMLSerializer().serializeToString(copy);
}

// At twice the size, for screens of today.
async function pngFile(svg) {
  const {width, height} = svg.viewBox.baseVal;
  const image = new Image(width, height);
  image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(svgFile(svg));
  await image.decode();
  const canvas = make('canvas', {width: 2 * width, height: 2 * height});
  const context = canvas.getContext('2d');
  context.scale(2, 2);
  context.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, 'image/png'));
}

function csvText(rows) {
  const quote = (value) => {
    const text = value === null || value === undefined ? '' : String(value);
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  return rows.map((cells) => cells.map(quote).join(',')).join('\n') + '\n';
}

// Every point of a drawing: its place on the axes where it has one, and the lines it tells.
function figureCsv(svg) {
  const points = [...svg.querySelectorAll('.point')];
  const axes = svg.axes || {}, placed = points.some((p) => p.place);
  const most = Math.max(0, ...points.map((p) => asList(p.lines).length));
  const lines = Array.from({length: most}, (_, i) => (i ? `note ${i}` : 'point'));
  const head = [...(placed ? [axes.x || 'x', axes.y || 'y'] : []), ...lines];
  const cells = (p) => [...(placed ? p.place || ['', ''] : []), ...asList(p.lines)];
  return csvText([head, ...points.map((p) => head.map((_, i) => cells(p)[i]))]);
}

const fileStem = (text) =>
    String(text).toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '').slice(0, 60) ||
    'figure';

// Buttons for a figure. kinds: [{label, save()}].
function saveButtons(name, kinds) {
  return make(
      'div', {class: 'figure-tools', role: 'group', 'aria-label': `Save: ${name}`},
      make('span', {class: 'hint'}, 'Save'),
      kinds.map(
          ({label, save}) => make(
              'button', {
                type: 'button',
                class: 'quiet',
                'data-role': 'save-' + label.toLowerCase(),
                'aria-label': `Save as ${label}: ${name}`,
                onclick: save
              },
              label)));
}

// For what keepDrawn() keeps in `host`; the drawing may be another one each time.
function figureTools(host) {
  const drawing = () => host.querySelector('svg.chart');
  const svg = drawing();
  if (!svg) return null;
  const name = svg.getAttribute('aria-label') || 'figure', stem = fileStem(name);
  return saveButtons(name, [
    {label: 'SVG', save: () => saveFile(stem + '.svg', 'image/svg+xml', svgFile(drawing()))},
    {
      label: 'PNG',
      save: async () => saveFile(stem + '.png', 'image/png', await pngFile(drawing()))
    },
    {label: 'CSV', save: () => saveFile(stem + '.csv', 'text/csv', figureCsv(drawing()))}
  ]);
}
