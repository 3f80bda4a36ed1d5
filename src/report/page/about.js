// About: the exact commands, the machine, models, texts and versions behind the page.

function commandLine(text) {
  const button = make(
      'button', {
        type: 'button',
        class: 'quiet',
        'data-role': 'copy-command',
        onclick: () => copyText(text, button)
      },
      'Copy');
  return make('div', {class: 'command'}, make('code', {dir: 'ltr'}, visibleText(text)), button);
}

const unique = (list) => [...new Map(list.map((x) => [JSON.stringify(x), x])).values()];

function aboutView(data, section) {
  const {root, parts} = data;
  const commands = [...new Set([root.command_line, ...parts.map((p) => p.command_line)])].filter(
      (c) => typeof c === 'string' && c);
  if (commands.length) {
    section.append(make('h3', {}, 'Made by'), commandLine(commands[0]));
    if (commands.length > 1) {
      section.append(
          make('p', {class: 'hint'}, 'from the results of'),
          commands.slice(1)
              .map(commandLine)
              .reduce(
                  (list, element) => append(list, [element]), make('div', {class: 'commands'})));
    }
  }
  const table = (name, key, describe) => {
    const rows =
        unique(parts.map((p) => p[key]).filter((x) => x && typeof x === 'object').map(describe));
    if (!rows.length) return null;
    return makeTable(
        name,
        Object.keys(rows[0]).map(
            (k) => ({name: k, get: (r) => r[k], text: typeof rows[0][k] === 'string'})),
        rows);
  };
  section.append(...[table('Models', 'model', (m) => ({
                                                model: fileName(m.path) || m.family || '',
                                                family: m.family || '',
                                                layers: m.n_layers,
                                                width: m.d_model,
                                                heads: m.n_heads,
                                                'key/value heads': m.n_kv_heads,
                                                'head size': m.head_dim,
                                                vocabulary: m.vocab,
                                                computed: String(m.dtype || ''),
                                                path: String(m.path || ''),
                                                sha256: String(m.sha256 || '')
                                              })),
                     table('Texts', 'text', (t) => ({
                                              text: fileName(t.path),
                                              tokens: t.n_tokens,
                                              path: String(t.path || ''),
                                              sha256: String(t.sha256 || '')
                                            })),
                     table('Machines', 'machine', (m) => ({
                                                    processor: String(m.cpu || ''),
                                                    instructions: String(m.isa || ''),
                                                    threads: m.threads,
                                                    gpu: String(m.gpu || 'none')
                                                  })),
  ].filter(Boolean));
  const versions = [...new Set(parts.filter((p) => p.sluice_version).map((p) => {
    const commit = safeText(p.commit);
    return safeText(p.sluice_version) + (commit ? ` (${commit})` : '');
  }))];
  const version = asObject(root.program).version;
  section.append(make(
      'p', {class: 'caption'},
      `Page by sluice ${version || kDash}` +
          (versions.length ? `; measured by sluice ${versions.join(', ')}.` : '.') +
          (measuredText(parts) ? ` ${measuredText(parts)}.` : '')));
}
