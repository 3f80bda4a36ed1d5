"""Boxes and colours as the browser measures them, on phones and wide screens, light and dark.
browser_test.py runs it."""

from browser import Browser, CUT_TEXT, PageTest

# Buttons higher than two lines of their own text, or that hide some of it.
TALL_BUTTONS = """
  return [...document.querySelectorAll('button')].filter((b) => {
    if (!b.getClientRects().length || !b.textContent.trim()) return false;
    const style = getComputedStyle(b), line = parseFloat(style.lineHeight) || 1.6 * parseFloat(style.fontSize);
    const inner = b.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const range = document.createRange();
    range.selectNodeContents(b);
    const text = range.getBoundingClientRect();
    return text.height > 2.2 * line || (inner > 2.2 * line && text.height > line * 1.5) ||
      text.width > b.getBoundingClientRect().width + 1;
  }).map((b) => b.outerHTML.slice(0, 160));
"""

# Plots without the names of their axes, and names that leave their drawing.
AXES = """
  const bad = [];
  for (const svg of document.querySelectorAll('svg.chart')) {
    if (!svg.getClientRects().length) continue;
    const box = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll('.axis-label')];
    if (svg.querySelector('.axes') && !labels.length) bad.push('no label: ' + svg.getAttribute('aria-label'));
    for (const text of labels) {
      const at = text.getBoundingClientRect();
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        bad.push(text.textContent);
    }
  }
  return bad;
"""

# Texts with a contrast below 4.5 to what they stand on: the grounds of their elements, blended; in
# drawings the page, or the cell that they are written on.
PALE_TEXT = """
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const cache = new Map();
  const parse = (colour) => {
    if (!cache.has(colour)) {
      context.clearRect(0, 0, 1, 1);
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
      cache.set(colour, [r, g, b, a / 255]);
    }
    return cache.get(colour);
  };
  const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3])).concat(1);
  const light = (c) => {
    const f = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]);
  };
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  const groundOf = (element) => {
    if (!element || element === document.documentElement) return paper;
    const below = groundOf(element.parentElement);
    return over(parse(getComputedStyle(element).backgroundColor), below);
  };
  const pale = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    if (element.closest('script, style, .offscreen, .skip, option')) continue;
    const style = getComputedStyle(element);
    let ink, ground;
    if (element.ownerSVGElement) {
      const cell = element.closest('.point') && element.closest('.point').querySelector('rect.head');
      ground = groundOf(element.ownerSVGElement.parentElement);
      if (cell) ground = over(parse(getComputedStyle(cell).fill), ground);
      ink = over(parse(style.fill), ground);
    } else {
      ground = groundOf(element);
      ink = over(parse(style.color), ground);
    }
    const [a, b] = [light(ink), light(ground)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) pale.set(element.className.baseVal ?? element.className, contrast.toFixed(2) + ' ' + node.data.trim().slice(0, 40));
  }
  return [...pale];
"""


class Layout(PageTest):
    def each(self):
        """The page open in every width and scheme, with all of its parts."""
        for width in (390, 1600):
            self.resize(width)
            self.open(Browser.page)
            self.open_all()
            for theme in ("light", "dark"):
                self.js("theme.set(arguments[0])", theme)
                yield f"{width} px, {theme}", width

    def test_nothing_is_cut_or_wider_than_the_window(self):
        for where, width in self.each():
            self.expect_no_overflow(width)
            self.assertEqual(self.js(CUT_TEXT), [], where)

    def test_buttons_keep_their_words_together(self):
        for where, _ in self.each():
            self.assertEqual(self.js(TALL_BUTTONS), [], where)

    def test_a_button_of_letters_would_be_found(self):
        self.open(Browser.page)
        self.js("""const b = document.querySelector('[data-role=copy-command]');
            b.style.cssText = 'white-space: normal; overflow-wrap: anywhere; width: 2.2rem';""")
        self.assertEqual(len(self.js(TALL_BUTTONS)), 1)

    def test_axes_have_names_inside_their_drawings(self):
        for where, _ in self.each():
            self.wait(lambda: self.js("return document.querySelectorAll('svg.chart').length") > 10,
                      "figures are drawn")
            self.assertEqual(self.js(AXES), [], where)

    def test_text_can_be_read_in_both_schemes(self):
        for where, _ in self.each():
            for colour in range(3):
                self.js("document.querySelectorAll('[aria-label=\"Colour by\"] button')[arguments[0]].click()",
                        colour)
                self.assertEqual(self.js(PALE_TEXT), [], where)

    def test_pale_text_would_be_found(self):
        self.open(Browser.page)
        self.js("document.querySelector('.lead').style.color = 'color-mix(in srgb, var(--ink) 30%, var(--paper))'")
        self.assertIn("lead", [name for name, _ in self.js(PALE_TEXT)])

    def test_what_scrolls_sideways_says_so(self):
        self.resize(390)
        self.open(Browser.page)
        self.open_all()
        self.wait(lambda: self.js("""return [...document.querySelectorAll('.scroll')].every((box) => {
            const more = box.scrollWidth > box.clientWidth + 2;
            return more === box.dataset.cue.includes('right') &&
              more === box.previousElementSibling.classList.contains('shown'); })"""),
                  "boxes have cues where there is more")
        self.assertGreater(self.js("return document.querySelectorAll('.scroll-hint.shown').length"), 0)
        cue = self.js("""const box = [...document.querySelectorAll('.scroll')].find((b) => b.dataset.cue);
            box.scrollLeft = box.scrollWidth;
            return new Promise((done) => setTimeout(() => done(box.dataset.cue), 200))""")
        self.assertEqual(cue, "left")
