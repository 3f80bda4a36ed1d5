// Links to a token: `#token=12&layer=3&window=0` opens the text there. The address follows the token
// that is selected.

const tokenLink = {
  // The numbers of a fragment, or null where it is no such link.
  parse(fragment) {
    const values = new URLSearchParams(fragment.replace(/^#/, ''));
    if (!values.has('token')) return null;
    const number = (key) => (/^\d{1,9}$/.test(values.get(key) || '') ? Number(values.get(key)) : null);
    return {token: number('token'), layer: number('layer'), window: number('window')};
  },
  text() {
    const {token, layer} = mapState;
    return `#token=${token}&layer=${mapState.map.layerNumbers[layer]}&window=${
        mapState.choices.findIndex((c) => c.map === mapState.map)}`;
  },
  // Without an entry in the history: walking through a text is no navigation.
  write() {
    if (mapState.token === null) return;
    try {
      history.replaceState(null, '', tokenLink.text());
    } catch {
      // Pages inside of others may be refused it; the link can still be copied.
    }
  },
  follow() {
    const at = tokenLink.parse(location.hash);
    if (!at || at.token === null || !mapState.map) return;
    if (at.window !== null && mapState.choices[at.window]) mapState.choose(at.window);
    const layer = at.layer === null ? -1 : mapState.map.layerNumbers.indexOf(at.layer);
    window.sluice.showToken(at.token, layer < 0 ? mapState.layer : layer);
  },
  start() {
    mapState.listen(tokenLink.write);
    addEventListener('hashchange', tokenLink.follow);
    tokenLink.follow();
  },
};
