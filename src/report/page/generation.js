// Generated texts of one prompt side by side; where a text leaves the first one is marked.

function generationGroups(list) {
  // Dense first: it is what the others are compared with.
  return groupsOf(list, (g) => asObject(kPlaces.model(g.part)).key + '\n' + g.prompt)
      .map((g) => [...g.filter((x) => x.dense), ...g.filter((x) => !x.dense)]);
}

function commonLength(a, b) {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) ++i;
  return i;
}

function generationCard(item, base) {
  const text = String(item.text ?? '');
  const letters = [...text];
  const body = make('div', {class: 'generated', dir: 'auto'});
  let decision = 'what the others are compared with';
  if (item === base) {
    body.append(visibleText(text || ' '));
  } else {
    const same = commonLength(letters, [...String(base.text ?? '')]);
    const whole = same === letters.length && letters.length === [...String(base.text ?? '')].length;
    body.append(make('span', {}, same ? visibleText(letters.slice(0, same).join('')) : ''));
    if (!whole) {
      body.append(make(
          'mark', {class: 'differs', 'data-role': 'first-difference', title: 'first difference'},
          visibleText(letters.slice(same).join('') || '∅')));
    }
    const tokens = asList(item.tokens), others = asList(base.tokens);
    decision = whole ?
        'the same text' :
        tokens.length && others.length ?
        `the same for ${plural(commonLength(tokens, others), 'token')}, then differs` :
        `the same for ${plural(same, 'character')}, then differs`;
  }
  return make(
      'article', {class: 'card'}, make('h3', {}, item.name), make('p', {class: 'hint'}, decision),
      body, make('p', {class: 'hint'}, [
        isNumber(item.prefill_tokens_per_s) ?
            `prompt ${figure(item.prefill_tokens_per_s, 3)} tokens/s` :
            null,
        isNumber(item.decode_tokens_per_s) ?
            `text ${figure(item.decode_tokens_per_s, 3)} tokens/s` :
            null,
        item.end ? `ended: ${item.end}` : null
      ].filter(Boolean).join(' · ')));
}

function generationView(data, section) {
  for (const group of generationGroups(data.generations)) {
    section.append(
        make(
            'div', {class: 'prompt'}, make('span', {class: 'hint'}, 'Prompt'),
            make(
                'div', {class: 'generated long', dir: 'auto', tabindex: 0},
                visibleText(String(group[0].prompt ?? '')))),
        make('div', {class: 'cards'}, group.map((item) => generationCard(item, group[0]))));
  }
  section.append(make(
      'p', {class: 'caption'},
      'The same prompt, continued with each attention. What follows the ' +
          'first difference is marked; after it the texts differ, as ' +
          'both read what they wrote.'));
}
