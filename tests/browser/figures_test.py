"""Downloads of figures, and links to a token. browser_test.py runs it."""

import csv
import io

from browser import Browser, PageTest

# Keeps what would be downloaded: [name, type, text or size].
KEEP_FILES = """
  window.saved = [];
  saveFile = (name, type, content) => window.saved.push([name, type, content instanceof Blob ? content.size : content]);
"""


class Figures(PageTest):
    def saved(self, selector):
        """What the buttons save."""
        self.open(Browser.page)
        self.js(KEEP_FILES)
        self.wait(lambda: self.js("return document.querySelectorAll('svg.chart').length") > 10,
                  "figures are drawn")
        n = self.js("""const all = [...document.querySelectorAll(arguments[0])];
            all.forEach((b) => b.click()); return all.length""", selector)
        self.wait(lambda: self.js("return window.saved.length") == n, "all are saved")
        return self.js("return window.saved")

    def test_every_figure_can_be_saved_in_three_forms(self):
        self.open(Browser.page)
        self.wait(lambda: self.js("return document.querySelectorAll('svg.chart').length") > 10,
                  "figures are drawn")
        self.assertEqual(self.js("""return [...document.querySelectorAll('.plot')].filter((host) => {
            if (!host.querySelector('svg.chart')) return false;
            const tools = host.nextElementSibling;
            return !tools || !tools.classList.contains('figure-tools') ||
              [...tools.querySelectorAll('button')].map((b) => b.textContent).join() !== 'SVG,PNG,CSV';
            }).map((host) => host.outerHTML.slice(0, 120))"""), [])
        self.assertEqual(self.js("return document.querySelectorAll("
                                 "'[data-view=depth-map] .figure-tools button').length"), 3)

    def test_svg_files_stand_alone(self):
        files = self.saved('[data-role="save-svg"]')
        self.assertGreater(len(files), 10)
        wrong = self.js("""return window.saved.filter(([name, type, text]) => {
            const file = new DOMParser().parseFromString(text, 'image/svg+xml');
            return type !== 'image/svg+xml' || file.documentElement.localName !== 'svg' ||
              file.querySelector('parsererror') || file.querySelector('script, [class]') ||
              text.includes('var(') || !name.endsWith('.svg'); }).map(([name]) => name)""")
        self.assertEqual(wrong, [])

    def test_png_files_are_pictures(self):
        files = self.saved('[data-view=speed] [data-role="save-png"], [data-view=depth-map] [data-role="save-png"]')
        for name, kind, size in files:
            self.assertEqual(kind, "image/png", name)
            self.assertGreater(size, 1000, name)

    def test_csv_files_have_every_point(self):
        files = self.saved('[data-view=quality] [data-role="save-csv"], [data-view=heads] [data-role="save-csv"]')
        points = self.js("return ['quality', 'heads'].map((view) => [...document.querySelectorAll("
                         "`[data-view=${view}] .plot`)].map((p) => p.querySelectorAll('.point').length)).flat()")
        self.assertEqual(len(files), len(points))
        for (name, kind, text), n in zip(files, points):
            rows = list(csv.reader(io.StringIO(text)))
            self.assertEqual(kind, "text/csv")
            self.assertEqual(len(rows), n + 1, name)
            self.assertEqual(len({len(row) for row in rows[1:]} | {len(rows[0])}), 1, name)
        quality = list(csv.reader(io.StringIO(files[0][2])))
        self.assertIn("KL", quality[0][1])
        self.assertIn("0.0123", [row[1] for row in quality])

    def test_the_tokens_of_a_layer_are_a_table(self):
        [[name, _, text]] = self.saved('[data-view=token-map] [data-role="save-csv"]')
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([row["token"] for row in rows], Browser.tokens)
        layer = Browser.map["layers"][int(rows[0]["layer"])]
        self.assertEqual([int(row["owner"]) for row in rows], layer["owner"])
        self.assertIn(rows[0]["layer"], name)


class Links(PageTest):
    def at(self):
        return self.js("return [mapState.token, mapState.layer]")

    def open_at(self, fragment):
        self.driver.get("about:blank")
        self.driver.get(Browser.page.as_uri() + fragment)

    def test_a_link_opens_its_token_and_layer(self):
        self.open_at("#token=7&layer=2&window=0")
        self.assertEqual(self.at(), [7, 2])
        self.expect_details(2, 7)
        self.assertEqual(self.one('[data-role="layer-name"]').text, "Layer 3 of 6")
        self.js("location.hash = '#token=9&layer=5'")
        self.wait(lambda: self.at() == [9, 5], "another link is followed")
        self.assertEqual(self.one('[data-role="layer-name"]').text, "Layer 6 of 6")

    def test_links_that_lead_nowhere_change_nothing(self):
        self.open(Browser.page)
        before = self.at()
        for fragment in ("#token=100000", "#token=x", "#token=", "#token=-1&layer=2", "#speed", "#"):
            self.open_at(fragment)
            self.assertEqual(self.at(), before, fragment)

    def test_the_address_follows_what_is_selected_and_can_be_copied(self):
        self.open(Browser.page)
        self.js("""window.copied = [];
            Object.defineProperty(navigator, 'clipboard',
              {value: {writeText: async (text) => { window.copied.push(text); }}});""")
        self.js("window.sluice.showToken(5, 1)")
        self.assertTrue(self.driver.current_url.endswith("#token=5&layer=1&window=0"))
        self.one('[data-role="copy-link"]').click()
        self.assertEqual(self.js("return window.copied"), [self.driver.current_url])

    def test_it_opens_where_about_half_of_the_tokens_are_kept(self):
        self.open(Browser.page)
        shares = [sum(c in "RE" for c in layer["status"]) / len(Browser.tokens)
                  for layer in Browser.map["layers"]]
        least = min(abs(share - 0.5) for share in shares)
        self.assertAlmostEqual(abs(shares[self.at()[1]] - 0.5), least)
