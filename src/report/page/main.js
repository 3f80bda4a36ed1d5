// Puts the page together: the headline, then every view that has data. A view that fails shows one
// line in its place; the others stand.

const kViews = [
  {
    view: 'compare',
    title: 'Two files compared',
    short: 'Compare',
    fill: compareView,
    has: (d) => filesOf(d).length > 1,
    lead: 'What both measured, and what differs by more than its noise.'
  },
  {
    view: 'token-map',
    title: 'The text, token by token',
    short: 'Text',
    fill: tokenMapView,
    has: (d) => d.maps.length,
    lead: 'Which tokens stand for the others, layer by layer.'
  },
  {
    view: 'depth-map',
    title: 'Through the depth of the model',
    short: 'Depth',
    fill: depthMapView,
    has: (d) => d.maps.length,
    lead: 'The same sets, all layers at once.'
  },
  {
    view: 'profile',
    title: 'Profile over layers',
    short: 'Profile',
    fill: profileView,
    has: (d) => d.profiles.length,
    lead: 'How many tokens each rule keeps, and how much of the set is inherited.'
  },
  {
    view: 'quality',
    title: 'Quality against work',
    short: 'Quality',
    fill: qualityView,
    has: (d) => comparedRuns(d).length,
    lead: 'What predictions lose, and what attention no longer reads.'
  },
  {
    view: 'loss',
    title: 'Loss, token by token',
    short: 'Loss',
    fill: tokenLossView,
    has: (d) => d.losses.length,
    lead: 'Where in the text predictions change, and by how much.'
  },
  {
    view: 'methods',
    title: 'KL against keys read',
    short: 'Methods',
    fill: methodsView,
    has: (d) => methodGroups(d).length,
    lead: 'Every method a curve: what it reads, and what predictions lose.'
  },
  {
    view: 'contract',
    title: 'Contract',
    short: 'Contract',
    fill: contractView,
    has: (d) => d.contracts.length,
    lead: 'The loss that was accepted, what the tuned plan loses, and what it saves.'
  },
  {
    view: 'heads',
    title: 'Heads',
    short: 'Heads',
    fill: headsView,
    has: (d) => d.plans.length || d.heads.length,
    lead: 'What is done in every key/value head.'
  },
  {
    view: 'opened',
    title: 'What queries open',
    short: 'Opened',
    fill: openedView,
    has: (d) => d.refined.length,
    lead: 'Which heads open clusters, and what is read along the text.'
  },
  {
    view: 'subspace',
    title: 'Directions',
    short: 'Directions',
    fill: subspaceView,
    has: (d) => d.directions.length || d.joint.length,
    lead: 'The hidden axis: how few directions activations take, and who shares them.'
  },
  {
    view: 'fast-path',
    title: 'Fast path',
    short: 'Fast path',
    fill: fastPathView,
    has: (d) => d.fastPath.length,
    lead: 'Which linear layers a token passes through its subspace.'
  },
  {
    view: 'speed',
    title: 'Speed',
    short: 'Speed',
    fill: speedView,
    has: (d) => timeGroups(d.speed).length,
    lead: 'Measured time, with its spread.'
  },
  {
    view: 'generation',
    title: 'Generated text',
    short: 'Generated',
    fill: generationView,
    has: (d) => d.generations.length,
    lead: 'One prompt, continued with each attention.'
  },
  {
    view: 'audit',
    title: 'Loss measured during the run',
    short: 'Audit',
    fill: auditView,
    has: (d) => d.audits.length,
    lead: 'The KL that an audit measured while text was read and decoded.'
  },
  {
    view: 'needle',
    title: 'Needles found',
    short: 'Needles',
    fill: needleView,
    has: (d) => d.needles.length,
    lead: 'Whether facts far back in a long text are found, by depth and length.'
  },
  {
    view: 'tables',
    title: 'Tables',
    short: 'Tables',
    fill: tablesView,
    has: (d) => d.quality.length || d.speed.length || d.profiles.length || d.cache.length ||
        d.maps.length || d.plans.length || d.directions.length || d.joint.length ||
        d.contracts.length,
    lead: 'Every number above, to read and to copy.'
  },
  {
    view: 'about',
    title: 'About this page',
    short: 'About',
    fill: aboutView,
    has: () => true,
    lead: 'How it was made, and on what.'
  },
];

function start() {
  theme.start();
  const content = document.getElementById('content');
  const nav = document.getElementById('nav');
  let data = null;
  guarded(content, () => {
    data = readData();
  });
  if (!data) return;
  guarded(content, () => content.append(headline(data)));
  for (const {view, title, short, fill, has, lead} of kViews) {
    const section = make(
        'section', {'data-view': view, id: view, 'aria-labelledby': view + '-title'},
        make('h2', {id: view + '-title'}, title), make('p', {class: 'section-lead'}, lead));
    guarded(section, () => {
      if (!has(data)) return;
      content.append(section);
      nav.append(make('a', {href: '#' + view}, short));
      fill(data, section);
    });
  }
  addEventListener('keydown', (e) => {
    if (e.key === 'Escape') tip.hide();
  });
  addEventListener('scroll', tip.hide, {passive: true});
  scrollCues.start();
}

start();
