// Charts as inline SVG: scales, axes with round ticks, lines, bands, marks, legends. Every chart is
// drawn anew at the width its place has, so text keeps its size from phone to wide screen. Colours
// come from CSS classes (s0, s1, ...), so light and dark need no redrawing.

// Round numbers from lo to hi, about `count` of them.
function linearTicks(lo, hi, count) {
  const span = hi - lo || 1;
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; ++i)
    out.push(Number((i * step).toPrecision(12)));
  return out;
}

// Powers of ten; more between them where there are few, and round steps on a short span.
function logTicks(lo, hi) {
  const decades = Math.log10(hi / lo);
  if (decades < 0.6) return linearTicks(lo, hi, 5);
  const factors = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const out = [];
  for (let p = Math.floor(Math.log10(lo)); p <= Math.ceil(Math.log10(hi)); ++p) {
    for (const f of factors) {
      const v = Number((f * 10 ** p).toPrecision(6));
      if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v);
    }
  }
  return out;
}

// Numbers -> pixels. Logarithmic scales put what is not above their floor on the floor.
function scale(domain, range, log) {
  const f = log ? (v) => Math.log10(Math.max(v, domain[0])) : (v) => v;
  const [a, b] = domain.map(f);
  return (v) => range[0] + (b > a ? (f(v) - a) / (b - a) : 0.5) * (range[1] - range[0]);
}

// An empty drawing that readers of the screen know by its title.
const drawingOf = (width, height, title) => draw('svg', {
  class: 'chart',
  viewBox: `0 0 ${width} ${height}`,
  width,
  height,
  role: 'group',
  'aria-label': title
});

// Axes and the helpers to draw inside them. spec: {title, x, y, height, and margins top, left,
// right}; an axis is {domain, label, log, ticks, format}. The label of y stands above it; names in
// place of numbers need none.
const kLabelRoom = 18;
function makePlot(width, spec) {
  const room = spec.y.label ? kLabelRoom : 0;
  const m = {
    top: (spec.top || 14) + room,
    right: spec.right || 16,
    bottom: 46,
    left: spec.left || 52
  };
  const height = (spec.height || 260) + room;
  const X = scale(spec.x.domain, [m.left, width - m.right], spec.x.log);
  const Y = scale(spec.y.domain, [height - m.bottom, m.top], spec.y.log);
  const svg = drawingOf(width, height, spec.title);
  const ticksOf = (axis, pixels, each) => axis.ticks ||
      (axis.log ? logTicks(...axis.domain) :
                  linearTicks(...axis.domain, Math.max(2, pixels / each)));
  const right = width - m.right, bottom = height - m.bottom;
  const axes = draw('g', {class: 'axes', 'aria-hidden': 'true'});
  for (const v of ticksOf(spec.y, bottom - m.top, 44)) {
    axes.append(
        draw('line', {class: 'grid', x1: m.left, x2: right, y1: Y(v), y2: Y(v)}),
        draw(
            'text', {x: m.left - 8, y: Y(v) + 4, 'text-anchor': 'end'},
            (spec.y.format || figure)(v)));
  }
  for (const v of ticksOf(spec.x, right - m.left, 56)) {
    axes.append(
        draw('line', {class: 'tick', x1: X(v), x2: X(v), y1: bottom, y2: bottom + 5}),
        draw(
            'text', {x: X(v), y: bottom + 19, 'text-anchor': 'middle'},
            (spec.x.format || figure)(v)));
  }
  axes.append(
      draw('line', {class: 'base', x1: m.left, x2: right, y1: bottom, y2: bottom}),
      draw(
          'text',
          {class: 'axis-label', x: (m.left + right) / 2, y: height - 6, 'text-anchor': 'middle'},
          spec.x.label));
  if (spec.y.label) axes.append(draw('text', {class: 'axis-label', x: 0, y: 12}, spec.y.label));
  svg.axes = {x: spec.x.label, y: spec.y.label};
  // Lines and bands end at the frame; marks at its edge are whole.
  const [w, h] = [right - m.left + 6, bottom - m.top + 6];
  const inner = draw('svg', {
    x: m.left - 3,
    y: m.top - 3,
    width: w,
    height: h,
    viewBox: `${m.left - 3} ${m.top - 3} ${w} ${h}`,
    'aria-hidden': 'true'
  });
  svg.append(axes, inner);
  return {
    svg,
    inner,
    X,
    Y,
    yMost: spec.y.domain[1],
    left: m.left,
    right,
    top: m.top,
    bottom,
    width,
    height
  };
}

// A line that breaks where a value is missing. points: [x, y]. Single points get a dot from the
// caller's marks.
function linePath(plot, points) {
  let path = '', pen = false;
  for (const [x, y] of points) {
    if (!isNumber(y)) {
      pen = false;
      continue;
    }
    path += `${pen ? 'L' : 'M'}${plot.X(x).toFixed(1)} ${plot.Y(y).toFixed(1)}`;
    pen = true;
  }
  return path;
}

function addLine(plot, points, cls) {
  plot.inner.append(draw('path', {class: 'line ' + cls, d: linePath(plot, points)}));
}

// points: [x, low, high], without gaps inside.
function addBand(plot, points, cls) {
  const whole = points.filter(([, lo, hi]) => isNumber(lo) && isNumber(hi) && hi > lo);
  if (whole.length < 2) return;
  const at = (x, y) => `${plot.X(x).toFixed(1)} ${plot.Y(y).toFixed(1)}`;
  const up = whole.map(([x, , hi]) => at(x, hi)), down = whole.map(([x, lo]) => at(x, lo));
  plot.inner.append(
      draw('path', {class: 'band ' + cls, d: 'M' + up.concat(down.reverse()).join('L') + 'Z'}));
}

// Marks differ in form as well as in colour.
function markShape(form, x, y, size, cls) {
  const s = size;
  const common = {class: 'mark ' + cls};
  if (form === 'square')
    return draw('rect', {...common, x: x - s, y: y - s, width: 2 * s, height: 2 * s});
  if (form === 'triangle')
    return draw(
        'path', {...common, d: `M${x} ${y - 1.25 * s}L${x + 1.2 * s} ${y + s}H${x - 1.2 * s}Z`});
  if (form === 'diamond')
    return draw('path', {
      ...common,
      d: `M${x} ${y - 1.4 * s}L${x + 1.4 * s} ${y}L${x} ${y + 1.4 * s}L${x - 1.4 * s} ${y}Z`
    });
  if (form === 'cross')
    return draw(
        'path',
        {...common, d: `M${x - s} ${y - s}L${x + s} ${y + s}M${x - s} ${y + s}L${x + s} ${y - s}`});
  return draw('circle', {...common, cx: x, cy: y, r: 1.1 * s});
}

// A point that can be pointed at, focused and tapped: a mark on a generous invisible target.
function addPoint(plot, x, y, form, cls, lines, size = 4) {
  const px = plot.X(x), py = plot.Y(y);
  const group = draw(
      'g', {class: 'point'}, draw('circle', {class: 'hit', cx: px, cy: py, r: 11}),
      markShape(form, px, py, size, cls));
  group.place = [x, y];
  plot.svg.append(tellsOf(group, lines));
  return group;
}

// items: {name, cls, form, box, line: false for none}; toggle() when entries can be switched off.
function legend(items, toggle) {
  const entry = (item) => {
    const width = item.line === false ? 16 : 30;
    const sample = draw('svg', {width, height: 12, 'aria-hidden': 'true'});
    if (item.line !== false)
      sample.append(draw('line', {class: 'line ' + item.cls, x1: 1, x2: 29, y1: 6, y2: 6}));
    if (item.form) sample.append(markShape(item.form, width / 2, 6, 3.6, item.cls));
    if (item.box)
      sample.append(draw('rect', {class: 'fill ' + item.cls, y: 0.5, width, height: 11, rx: 2}));
    if (!toggle) return make('span', {class: 'legend-item'}, sample, item.name);
    const button = make(
        'button', {
          type: 'button',
          class: 'legend-item',
          'aria-pressed': String(!item.off),
          onclick: () => {
            item.off = !item.off;
            button.setAttribute('aria-pressed', String(!item.off));
            toggle();
          }
        },
        sample, item.name);
    return button;
  };
  return make('div', {class: 'legend', role: 'group', 'aria-label': 'Legend'}, items.map(entry));
}

// The points of a picture are one stop of the Tab key; arrows walk from one to the next, up and
// down to the nearest on that side.
function walkPoints(host, event) {
  const points = [...host.querySelectorAll('.point')];
  const here = points.indexOf(document.activeElement);
  const steps = {ArrowRight: 1, ArrowLeft: -1};
  const sides = {ArrowDown: 1, ArrowUp: -1};
  if (here < 0 || !(event.key in steps || event.key in sides)) return;
  event.preventDefault();
  let next = points[here + (steps[event.key] || 0)];
  if (event.key in sides) {
    const middle = (p) => {
      const box = p.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    };
    const [x, y] = middle(points[here]);
    let least = Infinity;
    for (const p of points) {
      const [px, py] = middle(p), ahead = (py - y) * sides[event.key];
      const far = ahead + 4 * Math.abs(px - x);
      if (ahead > 1 && far < least) [least, next] = [far, p];
    }
  }
  if (!next) return;
  points[here].setAttribute('tabindex', -1);
  next.setAttribute('tabindex', 0);
  next.focus();
}

// Keeps drawing(width) -> element in `host`, anew when the host's width changes; behind it stand
// buttons that save it.
function keepDrawn(host, drawing) {
  let width = 0, tools = null;
  host.addEventListener('keydown', (event) => walkPoints(host, event));
  const redraw = () => {
    if (width <= 0) return;
    host.replaceChildren();
    guarded(host, () => host.append(drawing(width)));
    const first = host.querySelector('.point');
    if (first) first.setAttribute('tabindex', 0);
    if (!tools && host.parentNode) {
      tools = figureTools(host);
      if (tools) host.after(tools);
    }
  };
  new ResizeObserver((entries) => {
    const now = Math.floor(entries[0].contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      redraw();
    }
  }).observe(host);
  return redraw;
}

// A picture with the sentence that says how to read it.
function pictured(host, ...caption) {
  return make('figure', {}, host, make('figcaption', {}, caption));
}
