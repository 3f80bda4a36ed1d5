// The fast path of gated linear layers: layers x inputs, run by run.

const kLinearMeasures = [
  {key: 'fast_path_fraction', name: 'Fast path', says: 'of the tokens through the subspace'},
  {key: 'kept_fraction', name: 'Kept', says: 'of the coordinates kept'},
  {key: 'bytes_fraction', name: 'Bytes read', says: 'of the bytes of the dense layer read'},
];

function linearLines(group) {
  const style = inputStyle(group.input);
  const lines = [`Layer ${group.layer}, ${style.name}`];
  const setting = [
    group.kind, isNumber(group.rank) ? 'k ' + figure(group.rank) : '',
    isNumber(group.epsilon) ? 'ε ' + figure(group.epsilon) : ''
  ].filter(Boolean);
  if (setting.length) lines.push(setting.join(', '));
  for (const {key, says} of kLinearMeasures)
    if (isNumber(group[key])) lines.push(`${percent(group[key], 1)} ${says}`);
  if (isNumber(group.residual_median)) {
    lines.push(`residual ${figure(group.residual_median, 3)} at the median, ${
        figure(group.residual_p90, 3)} at 90 %`);
  }
  return lines;
}

// A level above 1 (more bytes than dense) has the darkest step.
function linearRows(groups, inputs, key) {
  return groupsOf(groups, (g) => g.layer)
      .map(
          (some) => ({
            layer: String(some[0].layer),
            cells: inputs.map((input) => {
              const group = some.find((g) => g.input === input);
              if (!group)
                return {kind: 'dense', level: null, lines: [`Layer ${some[0].layer}`, 'not there']};
              const value = group[key];
              return {
                kind: isNumber(value) ? 'clusters' : 'dense',
                level: isNumber(value) ? Math.min(1, Math.max(0, value)) : null,
                lines: linearLines(group)
              };
            })
          }));
}

function fastPathView(data, section) {
  const host =
      make('div', {class: 'plot scroll', tabindex: 0, role: 'region', 'aria-label': 'Fast path'});
  const buttons = make('div', {});
  let entry = null, measure = null;
  const redraw = keepDrawn(host, (width) => {
    const inputs = [...new Set(entry.groups.map((g) => g.input))];
    const names = inputs.map((input) => inputStyle(input).name);
    return headGrid(width, linearRows(entry.groups, inputs, measure.key), 'input', names);
  });
  function show(index) {
    entry = data.fastPath[index];
    const measures = kLinearMeasures.filter(({key}) => entry.groups.some((g) => isNumber(g[key])));
    measure = measures[0] || kLinearMeasures[0];
    buttons.replaceChildren(
        measures.length > 1 ? choiceButtons('Shown', measures.map((m) => m.name), (i) => {
          measure = measures[i];
          redraw();
        }) : '');
    redraw();
  }
  show(0);
  section.append(
      make(
          'div', {class: 'controls'},
          chooser('Run', data.fastPath.map((e) => e.name), show, {'data-role': 'fast-path'}),
          buttons),
      make(
          'div', {class: 'legend'},
          [0, 0.25, 0.5, 0.75, 1].map((v) => swatch('clusters', v, percent(v)))),
      pictured(
          host,
          'One cell per linear layer’s input, the first layer on top. A token takes the fast path ' +
              'where what its directions leave out is within ε of it; open cells have no such figure.'));
}
