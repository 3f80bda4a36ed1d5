// Tables: every number of the page as text, to copy as Markdown or CSV.

// columns: {name, get(row) -> number or text, sd(row) -> number, error: true where that is a
// standard error and no deviation, show(value) -> text, text: bool}. Markdown has what the reader
// sees; CSV has the numbers whole, deviations and errors in their own columns.
function cellText(column, row) {
  const value = column.get(row);
  if (typeof value === 'string') return value;
  if (column.sd) return withError(value, column.sd(row));
  return (column.show || figure)(value);
}

function markdownOf(columns, rows) {
  const clean = (text) => String(text).replace(/\|/g, '\\|').replace(/\s+/g, ' ');
  const line = (cells) => '| ' + cells.map(clean).join(' | ') + ' |';
  return [
    line(columns.map((c) => c.name)), line(columns.map((c) => (c.text ? '---' : '---:'))),
    ...rows.map((row) => line(columns.map((c) => cellText(c, row))))
  ].join('\n') +
      '\n';
}

function csvOf(columns, rows) {
  const quote = (v) => {
    const text = v === null || v === undefined ? '' : String(v);
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  const head =
      columns.flatMap((c) => (c.sd ? [c.name, c.name + (c.error ? ' se' : ' sd')] : [c.name]));
  const body =
      rows.map((row) => columns.flatMap((c) => (c.sd ? [c.get(row), c.sd(row)] : [c.get(row)])));
  return [head, ...body].map((cells) => cells.map(quote).join(',')).join('\n') + '\n';
}

// What stands behind ± in these columns.
function spreadWords(columns, rows) {
  const spread = columns.filter((c) => c.sd && rows.some((row) => c.sd(row) > 0));
  const kinds = new Set(spread.map((c) => 'standard ' + (c.error ? 'error' : 'deviation')));
  return kinds.size ? ` (± ${[...kinds].join(' or ')})` : '';
}

function makeTable(title, columns, rows) {
  const used = columns.filter((c) => rows.some((row) => {
    const v = c.get(row);
    return isNumber(v) || (typeof v === 'string' && v !== '');
  }));
  const caption = title + spreadWords(used, rows);
  const copier = (label, text, role) => {
    const button = make(
        'button', {
          type: 'button',
          class: 'quiet',
          'data-role': role,
          'aria-label': `${label}: ${caption}`,
          onclick: () => copyText(text(), button)
        },
        label);
    return button;
  };
  const cell = (column, row, first) => make(
      first ? 'th' : 'td', {class: column.text ? 'text' : null, scope: first ? 'row' : null},
      column.text ? make('bdi', {}, safeText(cellText(column, row))) : cellText(column, row));
  return make(
      'div', {class: 'table'},
      make(
          'div', {class: 'table-head'}, make('span', {class: 'table-name'}, caption),
          make(
              'span', {class: 'table-tools'},
              copier('Copy Markdown', () => markdownOf(used, rows), 'copy'),
              copier('Copy CSV', () => csvOf(used, rows), 'copy-csv'))),
      make(
          'div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
          make(
              'table', {}, make('caption', {class: 'offscreen'}, caption),
              make(
                  'thead', {},
                  make(
                      'tr', {},
                      used.map(
                          (c) =>
                              make('th', {scope: 'col', class: c.text ? 'text' : null}, c.name)))),
              make(
                  'tbody', {},
                  rows.map((row) => make('tr', {}, used.map((c, i) => cell(c, row, i === 0))))))));
}

// A part that opens; what is inside is made when it first opens, and for printing.
const unopened = new Set();
function folded(title, fill, open) {
  const details = make('details', {open}, make('summary', {}, title));
  const build = () => {
    if (!unopened.delete(build)) return;
    guarded(details, () => append(details, [fill()]));
  };
  unopened.add(build);
  if (open) build();
  details.addEventListener('toggle', () => {
    if (details.open) build();
  });
  return details;
}

// Paper is narrow: there a table of many columns is several, each with the leading columns.
const kPrintColumns = 8;
function splitForPrint(table) {
  const heads = [...table.tHead.rows[0].cells];
  const lead = Math.max(1, heads.findIndex((c) => !c.classList.contains('text')));
  if (heads.length <= lead + kPrintColumns) return;
  table.classList.add('screen-only');
  for (let from = lead; from < heads.length; from += kPrintColumns) {
    const copy = table.cloneNode(true);
    copy.className = 'print-only';
    for (const row of copy.rows) {
      [...row.cells].forEach((cell, i) => {
        if (i >= lead && (i < from || i >= from + kPrintColumns)) cell.remove();
      });
    }
    table.parentNode.append(copy);
  }
}

let openedToPrint = [];
addEventListener('beforeprint', () => {
  for (const build of [...unopened]) build();
  openedToPrint = [...document.querySelectorAll('details:not([open])')];
  for (const d of openedToPrint) d.open = true;
  document.querySelectorAll('table').forEach(splitForPrint);
});
addEventListener('afterprint', () => {
  document.querySelectorAll('table.print-only').forEach((t) => t.remove());
  for (const d of openedToPrint) d.open = false;
});
