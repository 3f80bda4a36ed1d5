"""A headless Chromium, and what every test of a page needs."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import sample
from sample_attention import refined

VIEWS = ["compare", "token-map", "depth-map", "profile", "quality", "loss", "methods", "contract", "heads", "opened",
         "subspace", "fast-path", "speed", "generation", "audit", "needle", "tables", "about"]

# As the page shows it: what is invisible, or would reorder its neighbours, by its number.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200c\u200e\u200f"
                       "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def visible(text):
    return INVISIBLE.sub(lambda c: f"⟨U+{ord(c[0]):04X}⟩", text) if text else "∅"


def start_browser(folder):
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-first-run", "--disable-gpu", "--window-size=1200,900",
                 # The pages are our own, and containers seldom have what its sandbox needs.
                 "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
                 f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # What is drawn is not logged.
    options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
    return webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)


class Browser:
    """One browser and one folder for all tests; made once, because starting takes seconds."""

    program = None

    @classmethod
    def start(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-browser-"))
        cls.driver = start_browser(cls.folder)
        cls.tokens = ["First", " gate"] + sample.words(94, seed=1)
        cls.map = sample.token_map(cls.tokens, n_layers=6, seed=2)
        cls.page = cls.report("page", [
            sample.analyze(cls.map), sample.evaluate(),
            sample.generate("The gate", " opens at noon"),
            sample.generate("The gate", " opens at dawn", "keys"), sample.bench(),
            sample.calibrate(), sample.tune(), refined(),
            sample.audited(), sample.needle()])
        cls.driver.get("about:blank")  # not the browser's own first page, which asks for much

    @classmethod
    def stop(cls):
        cls.driver.quit()
        shutil.rmtree(cls.folder, ignore_errors=True)

    @classmethod
    def report(cls, name, results):
        files = []
        for i, result in enumerate(results):
            files.append(cls.folder / f"{name}-{i}.json")
            files[-1].write_text(json.dumps(result), encoding="utf-8")
        page = cls.folder / f"{name}.html"
        subprocess.run([cls.program, "report", *files, "-o", page], check=True,
                       stdout=subprocess.DEVNULL)
        return page

    @classmethod
    def complaints(cls):
        """Warnings and errors of the console since the last call."""
        return [e for e in cls.driver.get_log("browser") if e["level"] in ("WARNING", "SEVERE")]

    @classmethod
    def requests(cls):
        """What left the page since the last call: requests other than for files and data."""
        urls = []
        for entry in cls.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        return [u for u in urls if not u.startswith(("file:", "data:", "about:", "blob:"))]


# Texts that their box hides a part of. Boxes that scroll show everything; .offscreen is for
# screen readers alone.
CUT_TEXT = """
  const cut = [];
  const shown = (e) => e.getClientRects().length && !e.closest('.offscreen, .skip');
  for (const e of document.body.querySelectorAll('*')) {
    if (!shown(e) || !e.textContent.trim() || e.closest('svg')) continue;
    const hides = ['hidden', 'clip'].includes(getComputedStyle(e).overflowX);
    if (hides && e.scrollWidth > e.clientWidth + 1) cut.push(e.outerHTML.slice(0, 200));
  }
  for (const e of document.body.querySelectorAll('svg text')) {
    if (!shown(e) || !e.textContent.trim()) continue;
    const at = e.getBoundingClientRect(), box = e.ownerSVGElement.getBoundingClientRect();
    if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 ||
        at.bottom > box.bottom + 1) cut.push(e.outerHTML.slice(0, 200));
  }
  return cut;
"""


# Large pages, of seconds each: `make nightly` asks for them.
long_test = unittest.skipUnless(os.environ.get("SLUICE_LONG_TESTS"), "a large page, in make nightly")


class PageTest(unittest.TestCase):
    def setUp(self):
        self.driver = Browser.driver
        Browser.complaints()
        Browser.requests()

    def tearDown(self):
        # Whatever a test does, the page stays silent and asks for nothing.
        self.assertEqual(Browser.complaints(), [])
        self.assertEqual(Browser.requests(), [])

    def open(self, page):
        self.driver.get(page.as_uri())

    def js(self, script, *args):
        return self.driver.execute_script(script, *args)

    def labels(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map("
                       "(e) => e.getAttribute('aria-label'))", selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def choose(self, role, index):
        self.js("const s = document.querySelector(`[data-role=${arguments[0]}]`);"
                "s.selectedIndex = arguments[1]; s.dispatchEvent(new Event('change'))", role, index)

    def wait(self, condition, message):
        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(lambda _: condition(), message)

    def resize(self, width):
        # The window itself cannot be as narrow as a phone.
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        self.addCleanup(self.driver.execute_cdp_cmd, "Emulation.clearDeviceMetricsOverride", {})

    def open_all(self):
        self.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        self.wait(lambda: self.js("return [...document.querySelectorAll('details')].every("
                                  "(d) => d.querySelector(':scope > :not(summary)'))"),
                  "opened parts are filled")

    def expect_no_overflow(self, width):
        """With everything open, the page scrolls down and never sideways."""
        self.open_all()
        inner, outer = self.js("const e = document.documentElement;"
                               "return [e.scrollWidth, e.clientWidth]")
        self.assertEqual(outer, width)
        self.assertLessEqual(inner, outer, f"{width} px: the page is wider than the window")

    def statuses(self):
        """data-status of every token in the page, by position."""
        return dict(self.js("""
            return [...document.querySelectorAll('[data-view="token-map"] [data-token]')]
              .map((e) => [Number(e.dataset.token), e.dataset.status])"""))

    def expect_details(self, layer, position):
        layer_data = Browser.map["layers"][layer]
        size = sample.cluster_size(layer_data, position)
        text = self.one('[data-role="token-details"]').text
        where = f"layer {layer}, token {position}: {text}"
        self.assertIn(f"Position {position}.", text, where)
        self.assertRegex(text, rf"(Owner|Nearest)\n[^\n]*\bat {layer_data['owner'][position]}\n",
                         where)
        self.assertRegex(text, rf"Cosine\n{layer_data['cosine'][position]:.4f}\b", where)
        self.assertRegex(text, rf"Cluster\n{size} tokens?\n", where)
