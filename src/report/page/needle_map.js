// One map of needles: depths by lengths, a cell for each pair, coloured by the share found.

// Share found -> step of the colour. Steps in the middle, on which no text can be read, are left
// out: the colour jumps at one half.
const needleLevel = (share) => (share < 0.5 ? 0.8 * share : 0.68 + 0.64 * (share - 0.5));

// As much of `97 of 100` as there is room for.
function cellWords(found, n, width, height) {
  const texts =
      [`${figure(found)} of ${figure(n)}`, `${figure(found)}/${figure(n)}`, figure(found)];
  if (height < 15) return '';
  return texts.find((text) => 6.8 * text.length + 6 < width) || '';
}

function needleMap(width, cells, reader, {lengths, depths}) {
  const left = 48, right = 24, top = 20, bottom = 42;
  const wide = Math.max(5, Math.min(120, (width - left - right) / lengths.length));
  const high = Math.max(5, Math.min(30, 420 / depths.length));
  const size =
      [Math.max(150, left + lengths.length * wide + right), top + depths.length * high + bottom];
  const svg = drawingOf(
      ...size, `${plural(depths.length, 'depth')} by ${plural(lengths.length, 'length')}`);
  const word = (text, attributes) =>
      svg.append(draw('text', {...attributes, 'aria-hidden': 'true'}, text));
  word('depth', {class: 'axis-label', x: 0, y: 12});
  depths.forEach((depth, i) => {
    if (i % Math.ceil(14 / high) === 0)
      word(percent(depth), {x: left - 8, y: top + (i + 0.5) * high + 4, 'text-anchor': 'end'});
  });
  const bottomLine = top + depths.length * high;
  lengths.forEach((length, i) => {
    if (i % Math.ceil(46 / wide) === 0)
      word(
          figure(length),
          {x: left + (i + 0.5) * wide, y: bottomLine + 16, 'text-anchor': 'middle'});
  });
  word('length, tokens', {class: 'axis-label', x: left, y: size[1] - 6});
  const columns = new Map(lengths.map((v, i) => [v, i])),
        rows = new Map(depths.map((v, i) => [v, i]));
  for (const cell of [...cells].sort((a, b) => a.depth - b.depth || a.n_tokens - b.n_tokens))
    svg.append(needleCell(cell, reader, {
      x: left + columns.get(cell.n_tokens) * wide + 1,
      y: top + rows.get(cell.depth) * high + 1,
      width: Math.max(1, wide - 2),
      height: Math.max(1, high - 2)
    }));
  return svg;
}

function needleCell(cell, reader, box) {
  const got = foundOf(reader, [cell]), change = changeWords(got);
  const fewer = clearlyFewer(got);
  const group = draw(
      'g', {class: 'point'},
      draw(
          'rect',
          {...box, rx: 2, class: 'head clusters', style: levelStyle(needleLevel(got.share))}),
      fewer ? draw('rect', {
        x: box.x + 1,
        y: box.y + 1,
        width: Math.max(1, box.width - 2),
        height: Math.max(1, box.height - 2),
        rx: 2,
        class: 'fewer'
      }) :
              null,
      draw(
          'text', {
            class: got.share < 0.5 ? 'on-pale' : 'on-dark',
            x: box.x + box.width / 2,
            y: box.y + box.height / 2 + 4,
            'text-anchor': 'middle',
            'aria-hidden': 'true'
          },
          cellWords(got.found, got.n, box.width, box.height)));
  return tellsOf(group, [
    `${safeText(cell.task)}, ${reader.name}`,
    `${plural(cell.n_tokens, 'token')}, depth ${percent(cell.depth)}`,
    `${figure(got.found)} of ${figure(got.n)} found, ${inPercent(got)}`,
    change ? `dense ${figure(got.dense)}; ${change}` : ''
  ].filter(Boolean));
}
