// The depth map as files: all of the text, whatever the picture shows.

const kDepthCell = 12;  // units a row takes in the SVG, whose columns are one unit wide

// A rectangle for each run of tokens of one status.
function depthSvg(map) {
  const left = 40, top = 40, width = left + map.nTokens + 8;
  const svg = draw('svg', {
    xmlns: kSvg,
    viewBox: `0 0 ${width} ${top + map.nLayers * kDepthCell + 8}`,
    'font-family': 'sans-serif',
    'font-size': 10,
    fill: cssColour('--ink')
  });
  svg.append(
      draw('rect', {width: '100%', height: '100%', fill: cssColour('--paper')}),
      draw('text', {x: 4, y: top - 6}, 'layer'),
      draw('text', {x: left, y: 12}, 'position of the token in the text'));
  for (const t of linearTicks(0, map.nTokens - 1, Math.max(2, map.nTokens / 100)))
    svg.append(draw('text', {x: left + t, y: top - 6}, String(t)));
  const colours = kStatus.map((status) => cssColour('--map-' + status));
  for (let l = 0; l < map.nLayers; ++l) {
    const y = top + l * kDepthCell, at = l * map.nTokens;
    svg.append(draw('text', {x: 4, y: y + 10}, layerLabel(map, l)));
    for (let t = 0, end = 0; t < map.nTokens; t = end) {
      for (end = t + 1; end < map.nTokens && map.status[at + end] === map.status[at + t];) ++end;
      svg.append(draw('rect', {
        x: left + t,
        y,
        width: end - t,
        height: kDepthCell - 1,
        fill: colours[map.status[at + t]]
      }));
    }
  }
  return new XMLSerializer().serializeToString(svg);
}

// A row for each token, a column for each layer.
function depthCsv(map) {
  const layers = map.layers.map((_, l) => l);
  return csvText([
    ['position', 'token', ...layers.map((l) => 'layer ' + layerLabel(map, l))],
    ...map.tokens.map(
        (text, t) => [t, text, ...layers.map((l) => kStatus[map.status[l * map.nTokens + t]])])
  ]);
}
