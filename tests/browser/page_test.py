"""The page as a whole: its views, its policy, its layout, printing. browser_test.py runs it."""

import base64
import re
import unittest

from selenium.webdriver.support.ui import WebDriverWait

import sample
from browser import Browser, CUT_TEXT, PageTest, VIEWS


class Watchers(unittest.TestCase):
    def test_console_and_network_are_watched(self):
        page = Browser.folder / "noisy.html"
        page.write_text("<script>fetch('http://127.0.0.1:9/out').catch(() => {});"
                        "console.warn('w'); console.error('e'); nothing();</script>")
        Browser.driver.get(page.as_uri())
        seen, sent = [], []

        def all_seen(_):
            seen.extend(Browser.complaints())
            sent.extend(Browser.requests())
            return sent and len(seen) >= 3
        WebDriverWait(Browser.driver, 20).until(all_seen)
        self.assertIn("http://127.0.0.1:9/out", sent)


class WholePage(PageTest):
    def test_every_view_is_there_and_none_without_data(self):
        self.open(Browser.page)
        views = "return [...document.querySelectorAll('section')].map((e) => e.dataset.view)"
        self.assertEqual(self.js(views), VIEWS)
        self.assertEqual(self.js("return document.querySelectorAll('.failed').length"), 0)
        self.open(Browser.report("bench", [sample.bench()]))
        self.assertEqual(self.js(views), ["speed", "tables", "about"])

    def test_a_policy_forbids_requests(self):
        self.open(Browser.page)
        policy = self.one('meta[http-equiv="Content-Security-Policy"]').get_attribute("content")
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("http", policy)
        self.assertEqual(self.js("""
            const load = (e) => e.src || (e.tagName === 'LINK' && e.href) || '';
            return [...document.querySelectorAll('[src], link')].map(load)
              .filter((url) => !url.startsWith('data:'))"""), [])

    def test_layout_holds_on_phones_and_wide_screens(self):
        for width in (380, 1600):
            self.resize(width)
            self.open(Browser.page)
            self.expect_no_overflow(width)
            self.assertEqual(self.js(CUT_TEXT), [], f"{width} px: text is cut")

    def test_light_and_dark_alternate(self):
        self.open(Browser.page)
        colours = []
        for _ in range(3):
            colours.append(self.js("return getComputedStyle(document.body).backgroundColor"))
            self.one('[data-role="theme"]').click()
        self.assertNotEqual(colours[0], colours[1])
        self.assertEqual(colours[0], colours[2])

    def test_copy_puts_the_table_on_the_clipboard(self):
        self.open(Browser.page)
        self.js("""window.copied = [];
            Object.defineProperty(navigator, 'clipboard',
              {value: {writeText: async (text) => { window.copied.push(text); }}});
            """)
        self.open_all()
        tables = self.js("return document.querySelectorAll('table').length")
        self.assertEqual(self.js("""
            const buttons = [...document.querySelectorAll('[data-role="copy"]')];
            buttons.forEach((b) => b.click());
            return buttons.length"""), tables)
        rows = self.js("return [...document.querySelectorAll('table')].map("
                       "(t) => t.querySelectorAll('tr').length)")
        copied = self.js("return window.copied")
        self.assertEqual([text.count("\n") for text in copied], [n + 1 for n in rows])
        for text in copied:
            lines = text.splitlines()
            self.assertRegex(lines[1], r"^\|( -+:? \|)+$")
            cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
            self.assertEqual(len(cells), 1, text)
        everything = "\n".join(copied)
        for number in ("0.0123", "0.0456", "0.0789", "keys, τ 0.3"):
            self.assertIn(number, everything)
        self.js("""document.querySelector('[data-role="copy-csv"]').click()""")
        self.assertIn(",", self.js("return window.copied.at(-1)").splitlines()[0])

    def test_errors_and_deviations_are_told_apart(self):
        self.open(Browser.page)
        self.js("""window.copied = [];
            Object.defineProperty(navigator, 'clipboard',
              {value: {writeText: async (text) => { window.copied.push(text); }}});""")
        self.open_all()
        self.js("document.querySelectorAll('[data-role=\"copy-csv\"]').forEach((b) => b.click())")
        heads = [text.splitlines()[0].split(",") for text in self.js("return window.copied")]
        names = self.js("return [...document.querySelectorAll('.table-name')]"
                        ".map((e) => e.textContent)")
        by_name = dict(zip(names, heads))
        quality = by_name["Quality of each run (± standard error)"]
        self.assertIn("KL mean se", quality)
        self.assertIn("selection products", quality)
        self.assertEqual([c for c in quality if c.endswith(" sd")], [])
        sets = by_name["All sets by layer (± standard deviation)"]
        self.assertIn("cascade-cover r sd", sets)
        self.assertEqual([c for c in sets if c.endswith(" se")], [])
        self.assertIn("decode tokens per s", by_name["Generated texts"])
        paper = by_name["GPT-2: τ 0.3 · T 512 · residual"]
        self.assertIn("cascade turnover", paper)

    def test_tiny_figures_are_not_zeros(self):
        self.open(Browser.page)
        shown = [self.js("return withError(arguments[0], arguments[1])", x, error)
                 for x, error in ((1.664e-11, 1.84e-12), (0.0123, 0.0006), (0.99999994, 2.6e-7))]
        self.assertEqual(shown, ["1.66e-11 ± 1.8e-12", "0.01230 ± 0.00060", "1 ± 2.6e-7"])

    def test_printing_leaves_the_page_as_it_was(self):
        self.open(Browser.page)
        state = "return [...document.querySelectorAll('details')].map((d) => d.open)"
        before = self.js(state)
        self.js("dispatchEvent(new Event('beforeprint'))")
        self.assertNotIn(False, self.js(state))
        self.js("dispatchEvent(new Event('afterprint'))")
        self.assertIn(False, before)
        self.assertEqual(self.js(state), before)

    def test_states_differ_in_lightness_and_controls_have_edges(self):
        self.open(Browser.page)
        for _ in ("one theme", "the other"):
            contrasts, edge = self.js(CONTRASTS)
            for pair, contrast in contrasts.items():
                self.assertGreater(contrast, 1.9, pair)
            self.assertGreater(edge, 3)
            self.one('[data-role="theme"]').click()

    def test_every_line_of_the_profile_has_points(self):
        self.open(Browser.page)
        self.wait(lambda: self.js("return document.querySelectorAll("
                                  "'[data-view=profile] .point').length"), "the profile is drawn")
        told = self.js("return [...document.querySelectorAll('[data-view=profile] .point')]"
                       ".map((e) => e.getAttribute('aria-label'))")
        for name in ("cascade-cover", "random control", "unvalidated control"):
            self.assertTrue([t for t in told if t.startswith(name + ", layer 3")], name)

    def test_it_prints(self):
        self.open(Browser.page)
        pdf = base64.b64decode(self.driver.print_page())
        self.assertTrue(pdf.startswith(b"%PDF"))
        self.assertGreater(len(pdf), 20000)


# Contrasts between the states of the depth map, and the least of a button's edge on its ground.
CONTRASTS = """
  const luminance = (colour) => {
    const linear = colour.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (a, b) => {
    const [lo, hi] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (hi + 0.05) / (lo + 0.05);
  };
  const rgb = (text) => text.match(/[0-9]+/g).slice(0, 3).map(Number);
  const states = ['redundant', 'representative', 'exempt', 'uncovered'];
  const found = {};
  states.forEach((a, i) => states.slice(i + 1).forEach((b) => {
    found[a + ', ' + b] = contrast(parseColour(cssColour('--map-' + a)),
                                   parseColour(cssColour('--map-' + b)));
  }));
  const edges = [...document.querySelectorAll('button, select')]
    .map((e) => getComputedStyle(e)).filter((s) => s.borderTopWidth !== '0px')
    .map((s) => contrast(rgb(s.borderTopColor), rgb(s.backgroundColor)));
  return [found, Math.min(...edges)];
"""
