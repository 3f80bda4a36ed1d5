// How the text of a token is shown: as itself, with what would be invisible or would reorder its
// neighbours made visible.

// Controls, and characters that format or reorder. The joiner and the variation selectors stay
// inside a longer token, where emoji need them.
const kInvisible = new RegExp(
    '[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b\\u200c' +
        '\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]',
    'g');
const kOnlyJoiners = /^[\u200d\ufe00-\ufe0f\s]+$/;

const visibleCharacter = (c) =>
    '⟨U+' + c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0') + '⟩';

function visibleText(text) {
  if (text === '') return '∅';
  if (kOnlyJoiners.test(text) && /\S/.test(text))
    return [...text].map((c) => (/\s/.test(c) ? c : visibleCharacter(c))).join('');
  return text.replace(kInvisible, visibleCharacter);
}

// The same for names and cells, where nothing is nothing.
const safeText = (text) => (text ? visibleText(String(text)) : '');

// On one line, for labels: spaces at the ends and line breaks shown by signs.
function oneLine(text, limit = 40) {
  const shown = visibleText(text).replace(/\n/g, '↵').replace(/\t/g, '⇥');
  const ends = shown.replace(/^ +| +$/g, (run) => '␣'.repeat(run.length));
  const letters = [...ends];
  return letters.length > limit ? letters.slice(0, limit - 1).join('') + '…' : ends;
}

// A label of a token inside a sentence, isolated so that right-to-left text stays in its place.
const quoted = (text, limit) => make('bdi', {class: 'quoted'}, oneLine(text, limit));

// The chip: white space before a word stays outside the painted part, line breaks carry a sign
// drawn by CSS, so that copied text is the text itself.
function makeChip(text, position) {
  const shown = visibleText(text);
  const blank = /^\s+$/.test(shown);
  const lead = blank ? '' : shown.match(/^ */)[0];
  const word = make('span', {class: 'w'});
  for (const piece of shown.slice(lead.length).split(/(\n|\t)/)) {
    if (piece === '\n')
      word.append(make('span', {class: 'nl'}, '\n'));
    else if (piece === '\t')
      word.append(make('span', {class: 'tab'}, '\t'));
    else if (piece)
      word.append(piece);
  }
  return make(
      'span', {class: 'tok', role: 'button', 'data-token': position, tabindex: -1, dir: 'auto'},
      lead, word);
}
