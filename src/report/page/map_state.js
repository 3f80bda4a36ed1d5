// What the token map and the depth map share: the window shown, the layer, the token selected.

const mapState = {
  choices: [],  // {name, map}
  map: null,
  layer: 0,
  token: null,  // selected (pinned) position
  listeners: [],

  listen(f) {
    mapState.listeners.push(f);
  },
  // what: 'map', 'layer' or 'token'.
  tell(what) {
    for (const f of mapState.listeners) f(what);
  },

  start(maps) {
    mapState.choices = maps;
    mapState.layer = interestingLayer(maps[0].map);
    mapState.choose(0);
  },
  choose(index) {
    mapState.map = mapState.choices[index].map;
    mapState.layer = Math.min(mapState.layer, mapState.map.nLayers - 1);
    mapState.token = null;
    mapState.tell('map');
  },
  setLayer(layer) {
    const last = mapState.map.nLayers - 1;
    const next = Math.min(last, Math.max(0, layer));
    if (next === mapState.layer) return;
    mapState.layer = next;
    mapState.tell('layer');
  },
  setToken(position) {
    mapState.token = position;
    mapState.tell('token');
  },
};

// Where about half of the tokens stand for the others, so that both kinds are seen; of layers as near
// to that the last.
function interestingLayer(map) {
  let best = 0, least = Infinity;
  map.layers.forEach(({nReps}, l) => {
    const far = Math.abs(nReps / map.nTokens - 0.5);
    if (far <= least) [best, least] = [l, far];
  });
  return best;
}

const layerLabel = (map, layer) => String(map.layerNumbers[layer]);

// All that is known of a token at a layer. A cluster is the tokens with one owner; an uncovered
// token is nobody's member, though `owner` names the nearest representative.
function tokenFacts(map, layer, position) {
  const at = layer * map.nTokens;
  const status = map.status[at + position];
  const owner = map.owner[at + position];
  const cluster = status === kUncovered ? position : owner;
  return {
    status,
    owner,
    cluster,
    members: clusterMembers(map, layer, cluster),
    cosine: map.cosine[at + position] / 32767
  };
}

function clusterMembers(map, layer, cluster) {
  const at = layer * map.nTokens, members = [];
  for (let t = 0; t < map.nTokens; ++t) {
    const own = map.status[at + t] === kUncovered ? t : map.owner[at + t];
    if (own === cluster) members.push(t);
  }
  return members;
}
