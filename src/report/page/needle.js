// Whether needles are found: for each task a map of depths by lengths, for dense and for each
// choice side by side, and the accuracy by task and length. docs/results.md, `needle`.

// Who reads the prompts: dense first. found(cell) and lost(cell) are counts of cases.
function needleReaders(data, runs) {
  const choices = runs.map(
      (run, i) => ({
        name: settingName(data, run.settings, labelText(run.label || modeName(run.settings))),
        found: (cell) => cell.runs[i].found,
        lost: (cell) => cell.runs[i].lost
      }));
  return [{name: 'dense', found: (cell) => cell.dense, lost: () => 0}, ...choices];
}

// The page has counts in place of cases.
function addNeedles(data, part, prefix) {
  const cells = asList(part.cells);
  if (!cells.length) return;
  const readers = needleReaders(data, asList(asObject(part.summary).runs));
  numberAlike(readers);
  data.needles.push({name: `${prefix}needle`, readers, cells});
}

const sumOf = (items, get) => items.reduce((sum, item) => sum + get(item), 0);

// What a reader makes of some cells: the share found has a binomial standard error.
function foundOf(reader, cells) {
  const n = sumOf(cells, (c) => c.n), found = sumOf(cells, reader.found);
  const share = found / n;
  return {
    n,
    found,
    lost: sumOf(cells, reader.lost),
    dense: sumOf(cells, (c) => c.dense),
    share,
    error: Math.sqrt(share * (1 - share) / n)
  };
}

const inPercent = ({share, error}) => `${withError(100 * share, 100 * error)} %`;

// `lost 3, won 1`, against dense; nothing where both find the same.
function changeWords({found, lost, dense}) {
  const won = found - dense + lost;
  return [lost ? `lost ${figure(lost)}` : '', won ? `won ${figure(won)}` : ''].filter(Boolean).join(
      ', ');
}

// Whether a choice finds fewer than dense by two standard errors of the difference: cases are
// paired, so those that both find or miss say nothing.
function clearlyFewer({found, lost, dense}) {
  const won = found - dense + lost;
  return lost > won && (lost - won) ** 2 > 4 * (lost + won);
}

function needleSentence({readers, cells}) {
  const [dense, ...choices] = readers;
  const {found, n} = foundOf(dense, cells);
  const told = choices.map((reader) => {
    const got = foundOf(reader, cells), change = changeWords(got);
    return `${reader.name}: ${figure(got.found)}` + (change ? ` (${change})` : '');
  });
  return `Dense finds ${figure(found)} of ${figure(n)}` +
      (told.length ? `; ${told.join('; ')}.` : '.');
}

function needlePictures({readers, cells}, task) {
  const ofTask = cells.filter((c) => c.task === task);
  const sorted = (key) => [...new Set(ofTask.map((c) => c[key]))].sort((a, b) => a - b);
  const axes = {lengths: sorted('n_tokens'), depths: sorted('depth')};
  const pictures = readers.map((reader) => {
    const all = foundOf(reader, ofTask);
    const host = make('div', {
      class: 'plot scroll',
      tabindex: 0,
      role: 'region',
      'aria-label': `${safeText(task)}, ${reader.name}`
    });
    keepDrawn(host, (width) => needleMap(width, ofTask, reader, axes));
    return make(
        'div', {class: 'heads-part'}, make('h4', {}, reader.name),
        make('p', {class: 'hint'}, `${figure(all.found)} of ${figure(all.n)}, ${inPercent(all)}`),
        host);
  });
  return [
    make('h3', {class: 'place'}, `Task: ${safeText(task)}`),
    make('div', {class: 'needle-maps'}, pictures)
  ];
}

function needleTable({name, readers, cells}) {
  const rows = groupsOf(cells, (c) => c.task + '\n' + c.n_tokens).map((group) => ({group}));
  const accuracy = (reader) => ({
    name: reader.name,
    get: ({group}) => 100 * foundOf(reader, group).share,
    sd: ({group}) => 100 * foundOf(reader, group).error,
    error: true
  });
  return makeTable(
      `${name}: found, in percent, by task and length`,
      [
        {name: 'task', get: ({group}) => safeText(group[0].task), text: true},
        {name: 'tokens', get: ({group}) => group[0].n_tokens},
        {name: 'cases', get: ({group}) => sumOf(group, (c) => c.n)}, ...readers.map(accuracy)
      ],
      rows);
}

function needleView(data, section) {
  const shares = [0, 0.25, 0.5, 0.75, 1];
  const frame = draw('rect', {class: 'fewer', x: 2, y: 2, width: 14, height: 10, rx: 2});
  section.append(make(
      'div', {class: 'legend'}, shares.map((v) => swatch('clusters', needleLevel(v), percent(v))),
      data.needles.some((e) => e.readers.length > 1) ?
          make(
              'span', {class: 'legend-item'},
              draw('svg', {width: 18, height: 14, 'aria-hidden': 'true'}, frame),
              'fewer than dense, by two standard errors') :
          null));
  for (const entry of data.needles) {
    section.append(
        data.needles.length > 1 ? make('h3', {class: 'block-name'}, entry.name) : '',
        make('p', {class: 'decision', 'data-role': 'needle-words'}, needleSentence(entry)));
    for (const task of new Set(entry.cells.map((c) => c.task)))
      append(section, needlePictures(entry, task));
    section.append(needleTable(entry));
  }
  section.append(make(
      'p', {class: 'caption'},
      'Rows are depths in the text, its beginning on top; columns are lengths of the prompt. A ' +
          'cell has the needles found of those hidden there, the same prompts for all. Lost are ' +
          'needles that dense finds and the choice does not; won are the reverse. Errors are ' +
          'binomial.'));
}
