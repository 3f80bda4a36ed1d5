// The token map: the text itself (token_board.js) with a slider over the layers, the counts of the
// layer, a legend, and the panel of the token pointed at (token_details.js).

// Slider, buttons and the counts of the layer.
function layerControls() {
  const slider = make('input', {
    type: 'range',
    min: 0,
    step: 1,
    'data-role': 'layer',
    'aria-label': 'Layer',
    oninput: () => mapState.setLayer(Number(slider.value))
  });
  const step = (by, sign, label) => make(
      'button',
      {type: 'button', 'aria-label': label, onclick: () => mapState.setLayer(mapState.layer + by)},
      sign);
  const name = make('output', {class: 'layer-name', 'data-role': 'layer-name'});
  const counts = make('dl', {class: 'counts', 'data-role': 'layer-counts', 'aria-live': 'polite'});
  const refresh = () => {
    const map = mapState.map, layer = map.layers[mapState.layer];
    slider.max = map.nLayers - 1;
    slider.value = mapState.layer;
    slider.setAttribute('aria-valuetext', `layer ${mapState.layer + 1} of ${map.nLayers}`);
    name.textContent = `Layer ${mapState.layer + 1} of ${map.nLayers}`;
    const entry = (label, value) => make('div', {}, make('dt', {}, label), make('dd', {}, value));
    counts.replaceChildren(
        entry('in the set, r', figure(layer.nReps)),
        entry('r / T', percent(layer.nReps / map.nTokens, 1)),
        entry('turnover', percent(layer.turnover, 1)),
        entry('joined, left', mapState.layer ? `+${layer.additions} −${layer.removals}` : kDash));
  };
  return {
    refresh,
    element: make(
        'div', {class: 'layer-bar'},
        make(
            'div', {class: 'stepper'}, step(-1, '‹', 'Layer before'), slider,
            step(1, '›', 'Next layer'), name),
        counts)
  };
}

function statusLegend() {
  const words = {
    representative: 'representative',
    redundant: 'stood for by another',
    exempt: 'exempt',
    uncovered: 'uncovered'
  };
  const parts = Object.keys(words).map((status) => {
    const count = make('span', {class: 'count'});
    return {
      status,
      count,
      element: make(
          'span', {class: 'legend-item'},
          make(
              'span', {class: 'tok sample-chip', 'data-status': status},
              make('span', {class: 'w'}, 'token')),
          words[status] + ' ', count)
    };
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

// The layer that is shown, a row for each token.
function saveTokens() {
  const {map, layer} = mapState, at = layer * map.nTokens;
  const number = map.layerNumbers[layer];
  const rows = map.tokens.map((text, t) => [
    t, text, number, kStatus[map.status[at + t]], map.owner[at + t],
    (map.cosine[at + t] / 32767).toFixed(4)
  ]);
  saveFile(
      `tokens-layer-${number}.csv`, 'text/csv',
      csvText([['position', 'token', 'layer', 'status', 'owner', 'cosine'], ...rows]));
}

function tokenMapView(data, section) {
  const box = make('div', {
    class: 'prose',
    'data-role': 'token-text',
    'data-colour': 'role',
    role: 'group',
    'aria-label':
        'The text, token by token. Arrow keys move, brackets change the layer, o goes to the owner.'
  });
  const details = tokenDetails();
  const controls = layerControls(), key = statusLegend();
  const colours = ['role', 'cosine', 'cluster'];
  section.append(
      make(
          'div', {class: 'controls'},
          chooser('Window', mapState.choices.map((c) => c.name), (i) => mapState.choose(i)),
          make(
              'div', {class: 'chooser'}, make('span', {}, 'Colour by'),
              choiceButtons('Colour by', colours, (i) => board.setColour(colours[i])))),
      controls.element, key.element, make('div', {class: 'token-map'}, box, details.element),
      saveButtons('tokens of this layer', [{label: 'CSV', save: saveTokens}]),
      make(
          'p', {class: 'caption'},
          'Tokens with a bar below are representatives at this layer; faded ones ' +
              'are near enough (cosine 1 − τ² or more) to one that came before. ' +
              'Point at a token, or move with ' +
              'the arrow keys, to see who stands for it; a click or Enter keeps it. ' +
              '[ and ] change the layer, o goes to the owner. Layers are counted from 1 here; ' +
              'axes, plans and results count from 0. Coloured by ' +
              'cosine, a token is the fuller the nearer its owner; by cluster, ' +
              'tokens of one owner share a tint.'));
  const board = new TokenBoard(box, (position) => details.show(position));
  const refresh = (what) => {
    controls.refresh();
    key.refresh();
    details.show(board.pointed ?? mapState.token, what === 'token');
  };
  mapState.listen((what) => {
    if (what === 'map') {
      board.pointed = null;
      board.load();
    } else
      board.repaint();
    refresh(what);
  });
  refresh();
  details.follow((position) => {
    mapState.setToken(position);
    board.reveal(position, true);
  });
  // For callers outside of this view: the depth map, tests, the console.
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
  tokenLink.start();
}
