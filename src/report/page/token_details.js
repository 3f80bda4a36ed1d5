// The panel next to the text: what is known of one token at one layer.

const kStatusWords = {
  representative: 'Representative: stands for itself and its cluster.',
  redundant: 'Redundant: its owner stands for it.',
  exempt: 'Exempt: kept as it is, neither covers nor is covered.',
  uncovered: 'Uncovered: no representative before it is near enough.',
};
const kMembersShown = 10;

// Cells of one token down the layers, the current one framed.
function layerStrip(map, position) {
  const cells = map.layers.map(
      (_, l) => make('button', {
        type: 'button',
        class: 'cell',
        'data-status': kStatus[map.status[l * map.nTokens + position]],
        'aria-current': l === mapState.layer ? 'true' : null,
        'aria-label':
            `layer ${layerLabel(map, l)}: ${kStatus[map.status[l * map.nTokens + position]]}`,
        tabindex: -1,
        onclick: () => mapState.setLayer(l)
      }));
  return make('div', {class: 'strip'}, cells);
}

// A link to this token and layer, for others.
function linkButton(position) {
  const button = make(
      'button', {
        type: 'button',
        class: 'quiet',
        'data-role': 'copy-link',
        onclick: () => {
          mapState.setToken(position);
          copyText(location.href.replace(/#.*$/, '') + tokenLink.text(), button);
        }
      },
      'Copy link');
  return make('p', {class: 'details-link'}, button);
}

function tokenDetails() {
  const panel =
      make('aside', {class: 'details', 'data-role': 'token-details', 'aria-label': 'Token'});
  let goTo = () => {};
  const link = (position) => make(
      'button', {type: 'button', class: 'token-link', onclick: () => goTo(position)},
      quoted(mapState.map.tokens[position], 16), ` at ${position}`);
  const row = (label, ...value) => [make('dt', {}, label), make('dd', {}, value)];

  // Read out when a token was selected; one passed over says the most itself.
  function show(position, selected = false) {
    panel.setAttribute('aria-live', selected ? 'polite' : 'off');
    if (position === null || position === undefined) {
      panel.replaceChildren(make(
          'p', {class: 'hint'},
          'Point at a token, tap it, or walk through the ' +
              'text with the arrow keys: its owner, their cosine and its cluster appear here.'));
      return;
    }
    const map = mapState.map, facts = tokenFacts(map, mapState.layer, position);
    const others = facts.members.filter((t) => t !== position && t !== facts.owner);
    const threshold = 1 - map.tau * map.tau;
    panel.replaceChildren(
        make('div', {class: 'details-token'}, quoted(map.tokens[position], 28)),
        make(
            'p', {class: 'details-status'},
            `Position ${position}. ${kStatusWords[kStatus[facts.status]]}`),
        make(
            'dl', {},
            row(facts.status === kUncovered ? 'Nearest' : 'Owner',
                facts.owner === position ? `itself, at ${position}` : link(facts.owner)),
            row('Cosine', fixed(facts.cosine, 4),
                make('span', {class: 'hint'}, ` threshold ${fixed(threshold, 4)}`)),
            row('Cluster', plural(facts.members.length, 'token')),
            row('Kept in', `${map.keptLayers[position]} of ${plural(map.nLayers, 'layer')}`)),
        layerStrip(map, position), linkButton(position));
    if (others.length) {
      panel.append(
          make('p', {class: 'hint'}, 'Also in the cluster'),
          make(
              'ul', {class: 'members'},
              others.slice(0, kMembersShown).map((t) => make('li', {}, link(t))),
              others.length > kMembersShown ?
                  make('li', {class: 'hint'}, `and ${others.length - kMembersShown} more`) :
                  null));
    }
  }
  return {
    element: panel,
    show,
    follow(f) {
      goTo = f;
    }
  };
}
