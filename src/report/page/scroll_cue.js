// Boxes that scroll sideways say so: their edge fades where there is more, and on a narrow screen a
// line in words stands above.

const scrollCues = {
  sizes: null,
  start() {
    scrollCues.sizes = new ResizeObserver((entries) => {
      for (const entry of entries) scrollCues.update(entry.target.scrollBox || entry.target);
    });
    document.addEventListener('scroll', (e) => {
      if (e.target instanceof Element && e.target.dataset.cue !== undefined)
        scrollCues.update(e.target);
    }, true);
    new MutationObserver(scrollCues.find).observe(document.body, {childList: true, subtree: true});
    scrollCues.find();
  },
  find() {
    for (const box of document.querySelectorAll('.scroll:not([data-cue]), #nav:not([data-cue])')) {
      box.dataset.cue = '';
      if (box.id !== 'nav')
        box.before(make('p', {class: 'scroll-hint', 'aria-hidden': 'true'}, 'Scroll sideways for more →'));
      scrollCues.sizes.observe(box);
      for (const child of box.children) {
        child.scrollBox = box;
        scrollCues.sizes.observe(child);
      }
    }
  },
  update(box) {
    const left = box.scrollLeft > 2;
    const right = box.scrollLeft + box.clientWidth < box.scrollWidth - 2;
    box.dataset.cue = [left ? 'left' : '', right ? 'right' : ''].filter(Boolean).join(' ');
    if (box.id !== 'nav' && box.previousElementSibling)
      box.previousElementSibling.classList.toggle('shown', left || right);
  },
};
