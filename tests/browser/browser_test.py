"""Drives pages made by `sluice report` in a real headless Chromium.

    browser_test.py PROGRAM [unittest's arguments]
"""

import base64
import os
import re
import sys
import unittest

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import sample
from browser import Browser, CUT_TEXT, PageTest, VIEWS, visible
# Found by unittest:
from audit_test import Audit  # noqa: F401
from methods_test import Methods  # noqa: F401
from needle_test import Needles  # noqa: F401
from opened_test import Opened  # noqa: F401

setUpModule, tearDownModule = Browser.start, Browser.stop


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


class TokenMap(PageTest):
    def test_the_slider_shows_the_sets_of_the_results_at_every_layer(self):
        self.open(Browser.page)
        slider = self.one('input[data-role="layer"]')
        self.assertEqual(slider.get_attribute("max"), "5")
        slider.send_keys(Keys.HOME)
        for i, layer in enumerate(Browser.map["layers"]):
            if i > 0:
                slider.send_keys(Keys.ARROW_RIGHT)
            expected = {t: sample.STATUS[c] for t, c in enumerate(layer["status"])}
            self.assertEqual(self.statuses(), expected, f"layer {i}")

    def test_the_text_is_the_text_of_the_tokens(self):
        self.open(Browser.page)
        shown = self.js("""return [...document.querySelectorAll('[data-token]')]
                           .map((e) => e.textContent)""")
        self.assertEqual(shown, Browser.tokens)

    def test_pointing_shows_owner_cosine_and_cluster(self):
        self.open(Browser.page)
        for layer in (0, 3):
            self.js("window.sluice.showLayer(arguments[0])", layer)
            status = Browser.map["layers"][layer]["status"]
            for position in (0, 1, status.index("."), status.rindex("."), status.index("U")):
                chip = self.one(f'[data-token="{position}"] .w')
                ActionChains(self.driver).move_to_element(chip).perform()
                self.expect_details(layer, position)

    def test_focus_shows_the_same_by_keyboard_alone(self):
        self.open(Browser.page)
        self.one('[data-token="0"]').send_keys(Keys.ARROW_RIGHT)
        for position in range(1, 12):
            self.expect_details(0, position)
            self.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        self.driver.switch_to.active_element.send_keys("]")
        self.expect_details(1, 12)
        self.driver.switch_to.active_element.send_keys(Keys.END)
        self.expect_details(1, len(Browser.tokens) - 1)

    def test_a_click_keeps_the_token_while_the_layer_changes(self):
        self.open(Browser.page)
        self.one('[data-token="7"] .w').click()
        slider = self.one('input[data-role="layer"]')
        ActionChains(self.driver).move_to_element(self.one("[data-view=token-map] h2")).perform()
        for layer in range(1, 6):
            slider.send_keys(Keys.ARROW_RIGHT)
            self.expect_details(layer, 7)

    def test_a_token_pointed_at_stays_so_that_its_links_can_be_reached(self):
        self.open(Browser.page)
        layer = Browser.map["layers"][0]
        position = layer["status"].index(".")
        ActionChains(self.driver).move_to_element(
            self.one(f'[data-token="{position}"] .w')).perform()
        link = self.one('[data-role="token-details"] dd button')
        ActionChains(self.driver).move_to_element(link).click().perform()
        self.expect_details(0, layer["owner"][position])

    def test_a_token_is_named_with_its_status_and_owner(self):
        self.open(Browser.page)
        for index in (0, 2):
            self.js("window.sluice.showLayer(arguments[0])", index)
            layer = Browser.map["layers"][index]
            for letter, word in (("E", None), ("R", None), (".", "owner"), ("U", "nearest")):
                position = layer["status"].rindex(letter)
                chip = self.one(f'[data-token="{position}"]')
                name = chip.get_attribute("aria-label")
                self.assertEqual(chip.get_attribute("role"), "button")
                self.assertIn(", " + sample.STATUS[letter], name)
                self.assertEqual(f", {word} " in name, word is not None, name)
                if word:
                    self.assertTrue(name.endswith(f" at {layer['owner'][position]}"), name)

    def test_only_a_selection_is_read_out(self):
        self.open(Browser.page)
        panel = self.one('[data-role="token-details"]')
        ActionChains(self.driver).move_to_element(self.one('[data-token="5"] .w')).perform()
        self.assertEqual(panel.get_attribute("aria-live"), "off")
        self.one('[data-token="5"] .w').click()
        self.assertEqual(panel.get_attribute("aria-live"), "polite")
        self.assertIsNone(self.one("#tip").get_attribute("role"))

    def test_show_token_selects_it(self):
        self.open(Browser.page)
        self.js("window.sluice.showToken(50)")
        self.expect_details(0, 50)


class Directions(PageTest):
    def setUp(self):
        super().setUp()
        self.open(Browser.page)
        self.wait(lambda: self.labels("[data-view=fast-path] .point"), "the view is drawn")

    def test_the_layer_chooser_shows_that_layers_spectra(self):
        for layer in (0, 4):
            self.choose("spectrum-layer", layer)
            expected = [f"{name}, layer {layer}, {share} % in {g[f'effective_rank_{share}']} of "
                        f"{g['d']}"
                        for g in sample.calibrate()["groups"] if g["layer"] == layer
                        for name in [g["input"].replace("selection_", "selection, ")
                                     .replace("_", " ").replace("mlp", "MLP")]
                        for share in (90, 95, 99)]
            first = "figure:has([data-role=spectrum-layer]) .point"
            self.wait(lambda: self.labels(first), "the picture is drawn")
            self.assertEqual(self.labels(first), expected)

    def test_both_cascades_and_joint_selection_are_told(self):
        told = "\n".join(self.labels("[data-view=subspace] .point"))
        results = sample.analyze(Browser.map)
        for g in results["subspace"]["groups"]:
            if g["coherence_prev"] is not None:
                self.assertIn(f"mean cos² {g['coherence_prev']:.3f}", told)
        for layer in results["joint"]["layers"]:
            for r in layer["ranks"]:
                self.assertIn(f"k {r['rank']}, layer {layer['layer']}, "
                              f"{100 * r['dropped_fraction']:.1f} % of", told)
        self.assertIn("independent, layer 1, Jaccard with the layer before", told)

    def test_the_fast_path_map_has_every_layer_and_input_of_the_chosen_run(self):
        runs = [r for r in sample.evaluate()["runs"] if "linear" in r]
        for index, run in enumerate(runs):
            self.choose("fast-path", index)
            told = self.labels("[data-view=fast-path] .point")
            self.assertEqual(len(told), len(run["linear"]))
            for cell, g in zip(told, run["linear"]):
                self.assertTrue(cell.startswith(f"Layer {g['layer']}, "), cell)
                self.assertIn(f"ε {g['epsilon']}", cell)
                self.assertIn(f"{100 * g['fast_path_fraction']:.1f} % of the tokens", cell)


class Contract(PageTest):
    def decision(self):
        return self.one("[data-role=decision]").text

    def told(self):
        self.wait(lambda: self.labels("[data-view=contract] .point"), "the view is drawn")
        return self.labels("[data-view=contract] .point")

    def test_promise_finding_and_saving_are_told_in_words(self):
        self.open(Browser.report("contract", [sample.tune()]))
        self.assertEqual(self.decision().splitlines(), [
            "Promised: a KL from the dense model of at most 0.02 nats per token.",
            "Found on 1,536 tokens of text that it was not made from: KL 0.0132 ± 0.0018, with two "
            "standard errors 0.0168. The promise is kept.",
            "Saved: the cache takes 1.33 MiB where the dense one takes 4.5 MiB, 30 %."])
        [saved] = self.js("return [...document.querySelectorAll('.figures > div')]"
                          ".map((e) => e.textContent)")
        self.assertTrue(saved.startswith("30 % of the cache is left"), saved)

    def test_losses_and_speeds_are_points_with_their_spread(self):
        self.open(Browser.report("contract", [sample.tune()]))
        told = self.told()
        self.assertEqual(len(told), 3 + 2 * 3)
        self.assertIn("KL, held out, 0.0132 ± 0.0018 (standard error), "
                      "0.0168 with two standard errors, 1,536 tokens", told)
        self.assertIn("decoding after 512 tokens, 1.30× dense (1.20× to 1.50×), "
                      "dense 128 ms, plan 98.5 ms", told)
        limits = self.js("return [...document.querySelectorAll('[data-view=contract] .strong')]"
                         ".map((e) => e.textContent)")
        self.assertEqual(limits, ["contract 0.02"])
        captions = self.js("return [...document.querySelectorAll('[data-view=contract] figcaption')]"
                           ".map((e) => e.textContent)")
        self.assertIn("stays dense", captions[1])
        self.assertIn("from 256 tokens on", captions[2])

    def test_a_broken_promise_is_said_and_perplexity_may_be_the_contract(self):
        self.open(Browser.report("contract-both", [
            sample.tune(objective="decode", max_kl=0.015, max_ppl_ratio=1.02)]))
        self.assertIn("KL from the dense model of at most 0.015 nats per token and a perplexity of "
                      "at most 1.02 times", self.decision())
        self.assertIn("The promise is not kept.", self.decision())
        self.assertIn("Saved: decoding after 512 tokens runs at 1.30× the speed of dense",
                      self.decision())
        self.assertIn("perplexity 1.0066 ± 0.0011, with two standard errors 1.0088", self.decision())
        told = self.told()
        self.assertEqual([t.split(",")[:2] for t in told[:5]], [
            ["KL", " held out"], ["KL", " calibration"], ["KL", " predicted"],
            ["perplexity", " held out"], ["perplexity", " calibration"]])

    def test_a_dense_plan_says_why(self):
        why = "no change stays within the contract"
        self.open(Browser.report("contract-dense", [sample.tune(dense_because=why)]))
        self.assertIn(f"The plan is dense, which loses nothing: {why}.", self.decision())
        self.assertEqual(len(self.told()), 2 * 3)
        self.assertEqual(self.js("return document.querySelectorAll('.figures > div').length"), 0)

    def test_the_tables_have_every_number(self):
        self.open(Browser.report("contract", [sample.tune()]))
        tables = self.js("return [...document.querySelectorAll('[data-view=tables] table')]"
                         ".map((t) => [t.caption.textContent, t.tBodies[0].rows.length])")
        self.assertEqual(tables, [["What was found", 1],
                                  ["Loss against the contract (± standard error)", 4],
                                  ["Speed of the plan that was found", 6],
                                  ["Plans that were tried (± standard error)", 2]])
        text = self.one("[data-view=tables]").text
        for figure in ("-0.0004", "4,718,592", "1,398,336", "31.5", "0.0353 ± 0.0018"):
            self.assertIn(figure, text)


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

class Headline(PageTest):
    def figures(self):
        """(name, value and words) of each, as they are read."""
        return self.js("return [...document.querySelectorAll('.figures > div')]"
                       ".map((e) => e.textContent)")

    def test_quality_and_speed_are_of_one_setting(self):
        self.open(Browser.page)
        quality, speed = self.figures()[2:4]
        self.assertTrue(quality.startswith("61 % of the keys read, at KL 0.012"), quality)
        self.assertIn("keys, τ 0.3", quality)
        self.assertTrue(speed.startswith("1.30× as fast as dense"), speed)
        self.assertIn("pp2048, keys, τ 0.3 ", speed)
        self.assertIn("at KL 0.012", speed)

    def test_speed_alone_says_that_quality_is_unknown(self):
        self.open(Browser.report("speed-alone", [sample.bench()]))
        [speed] = self.figures()
        self.assertTrue(speed.startswith("1.70×"), speed)
        self.assertIn("not measured", speed)

    def test_speed_is_compared_with_what_is_dense_in_both(self):
        result = sample.bench()
        dense = result["cases"][0]
        for mode in ("gsi", "dense"):  # as files of before name it
            gated = {**dense, "mode": mode, "label": "gsi, rank 48, epsilon 1",
                     "settings": {"attention": "dense", "linear": "gsi", "rank": 48, "epsilon": 1},
                     "median_ms": dense["median_ms"] / 2, "samples_ms": [], "speedup_vs_dense": 2}
            result["cases"] = [gated, dense]
            self.open(Browser.report("gated-" + mode, [result]))
            [speed] = self.figures()
            self.assertTrue(speed.startswith("2.00× as fast as dense"), speed)
            self.assertIn("gsi, rank 48", speed)
            told = self.labels("[data-view=speed] .point")
            self.assertEqual(["× dense" in text for text in told], [True, False], told)

    def test_shared_tokens_are_of_the_leading_set(self):
        result = sample.analyze(Browser.map)
        layers = result["runs"][0]["layers"]
        self.open(Browser.report("shared", [result]))
        found = [layer["cascade"]["jaccard_prev"] for layer in layers[1:]]
        chance = [layer["controls"]["random"]["jaccard_prev"] for layer in layers[1:]]
        kept, shared = self.figures()
        self.assertTrue(shared.startswith(f"{100 * sum(found) / len(found):.0f} % shared"), shared)
        self.assertIn(f"share {100 * sum(chance) / len(chance):.0f} %", shared)
        self.assertIn("cascade-cover", kept)

    def test_a_rule_without_cascade_leads(self):
        result = sample.analyze(Browser.map)
        for layer in result["runs"][0]["layers"]:
            layer["cascades"] = []
            layer["cascade"] = layer["greedy"]
        result["runs"][0]["summary"]["rule"] = "greedy"
        self.open(Browser.report("greedy", [result]))
        self.assertIn("(greedy, ", self.figures()[0])


class Names(PageTest):
    def test_runs_and_cases_are_told_apart_by_what_differs(self):
        self.open(Browser.report("alike", [
            sample.evaluate(), sample.evaluate(select="greedy"), sample.bench(),
            sample.bench(dtype="bf16"), sample.evaluate(select="greedy")]))
        self.open_all()
        rows = self.js("""return [...document.querySelectorAll('table')].map((t) =>
            [t.caption.textContent, [...t.tBodies[0].rows].map((r) =>
              [...r.cells].filter((c) => c.className === 'text').map((c) => c.textContent).join('|')
            )])""")
        tables = dict(rows)
        for name in ("Quality of each run (± standard error)", "Times of each case", "Cache"):
            self.assertEqual(len(set(tables[name])), len(tables[name]), tables[name])
        quality = tables["Quality of each run (± standard error)"]
        runs = len(sample.evaluate()["runs"])
        self.assertEqual(quality[0], "keys, τ 0.3, cascade-cover · T 512")
        self.assertEqual(quality[runs], "keys, τ 0.3, greedy · T 512")
        self.assertEqual(quality[2 * runs], "keys, τ 0.3, greedy · T 512 (2)")
        plans = self.js("return [...document.querySelectorAll('[data-role=plan] option')]"
                        ".map((e) => e.textContent)")
        self.assertEqual(len(set(plans)), 12)
        places = self.js("return [...document.querySelectorAll('[data-view=speed] h3')]"
                         ".map((e) => e.textContent)")
        self.assertEqual(places, ["f32", "bf16"])
        self.wait(lambda: self.js("return document.querySelectorAll("
                                  "'[data-view=speed] .group-name').length") == 6,
                  "tests of each number format stand by themselves")


class HostileText(PageTest):
    def test_it_is_shown_as_text_and_is_nothing_else(self):
        tokens = sample.HOSTILE
        name = "".join(t for t in tokens if len(t) < 100)
        names = {"model_path": "models/" + name, "text_path": "text/" + name}
        harmless = Browser.report("harmless", [
            sample.analyze(sample.token_map(["a"] * len(tokens), 2, seed=3)),
            sample.evaluate(), sample.generate("a", "b"), sample.tune(),
            sample.tune(dense_because="a"), sample.refined(), sample.refined(rule="a"),
            sample.compared(), sample.needle(), sample.audited()])
        hostile = sample.evaluate(**names)
        hostile["runs"][0]["settings"]["attention"] = name
        hostile["machine"]["cpu"] = name
        audited = sample.audited(mode=name)
        audited["settings"]["plan"] = name
        page = Browser.report("hostile", [
            sample.analyze(sample.token_map(tokens, 2, seed=3), **names), hostile,
            sample.generate(name, name, **names), sample.tune(objective=name, **names),
            sample.tune(dense_because=name, **names), sample.refined(**names),
            sample.refined(rule=name, **names), sample.compared(**names), audited,
            sample.needle(tasks=(name, "keys"), labels=(name, "keys, tau 0.5"), **names)])
        count = """const n = {};
            for (const e of document.querySelectorAll('*')) n[e.tagName] = (n[e.tagName] || 0) + 1;
            return n"""
        self.open(harmless)
        self.open_all()
        expected = self.js(count)
        self.open(page)
        self.open_all()
        counted = self.js(count)
        self.assertEqual(set(counted) - set(expected), set(), "elements of other kinds")
        for tag in ("SCRIPT", "STYLE", "LINK", "META", "A", "INPUT"):
            self.assertEqual(counted.get(tag), expected.get(tag), tag)
        self.assertIsNone(self.js("return window.pwned"))
        shown = self.js("""return [...document.querySelectorAll('[data-token]')]
                           .map((e) => e.textContent)""")
        self.assertEqual(shown, [visible(t) for t in tokens])
        for view in ("generation", "about"):
            text = self.js(f"return document.querySelector('[data-view={view}]').textContent")
            self.assertIn(visible(name), text, view)
        for position in range(len(tokens)):
            self.js("window.sluice.showToken(arguments[0])", position)
        self.assertEqual(self.js("return document.querySelectorAll('.failed').length"), 0)
        self.assertIsNone(self.js("return window.pwned"))

    def test_it_does_not_widen_the_page(self):
        name = "".join(t for t in sample.HOSTILE if len(t) < 100)
        names = {"model_path": "models/" + name, "text_path": "text/" + name}
        hostile = sample.evaluate(**names)
        hostile["runs"][0]["settings"]["attention"] = name
        page = Browser.report("hostile-wide", [
            sample.analyze(sample.token_map(sample.HOSTILE, 2, seed=3), **names),
            hostile, sample.generate(name, name, **names),
            sample.bench(**names), sample.tune(objective=name, dense_because=name, **names),
            sample.refined(**names), sample.refined(rule=name, **names), sample.compared(**names),
            sample.needle(tasks=(name,), labels=(name, name), **names), sample.audited(mode=name)])
        for width in (380, 1600):
            self.resize(width)
            self.open(page)
            self.expect_no_overflow(width)


class LongText(PageTest):
    def test_8192_tokens_and_32_layers_are_a_small_page_that_moves(self):
        n_tokens, n_layers = 8192, 32
        map_ = sample.token_map(sample.words(n_tokens, seed=6), n_layers, seed=7)
        page = Browser.report("long", [sample.analyze(map_)])
        self.assertLess(page.stat().st_size, 5e6)
        self.open(page)
        self.assertLess(self.js("return document.querySelectorAll('[data-token]').length"),
                        n_tokens / 2, "tokens out of sight are not made")
        for position in range(0, n_tokens, 250):
            self.js("window.sluice.showToken(arguments[0])", position)
        built, near, painted = self.js(PAINTED)
        self.assertGreater(built, n_tokens * 0.9, "all was in sight once")
        self.assertGreater(painted, 0)
        # Whole blocks are painted, so one more at either end.
        self.assertLess(painted, near + 2 * 320, "a step of the slider waits for what is near alone")
        self.assertLess(near + 2 * 320, n_tokens / 2)
        for position in (0, 4000, n_tokens - 1):
            for layer in (0, n_layers - 1):
                self.js("window.sluice.showToken(arguments[0], arguments[1])", position, layer)
                status = map_["layers"][layer]["status"][position]
                self.assertEqual(self.statuses()[position], sample.STATUS[status])
                inside = self.js("""
                    const e = document.querySelector(`[data-token="${arguments[0]}"]`);
                    const at = e.getBoundingClientRect();
                    const box = document.querySelector('[data-role="token-text"]')
                      .getBoundingClientRect();
                    return at.top >= box.top - 1 && at.bottom <= box.bottom + 1""", position)
                self.assertTrue(inside, f"token {position} is in sight")

    def test_the_cluster_stays_lit_as_more_of_the_text_is_made(self):
        map_ = sample.token_map(sample.words(3000, seed=8), 1, seed=9)
        self.open(Browser.report("lit", [sample.analyze(map_)]))
        self.one('[data-token="10"] .w').click()
        ActionChains(self.driver).move_to_element(self.one("[data-view=token-map] h2")).perform()
        made = "return document.querySelectorAll('[data-token]').length"
        before = self.js(made)
        self.js("""const box = document.querySelector('[data-role="token-text"]');
                   box.scrollTop = box.scrollHeight / 2""")
        self.wait(lambda: self.js(made) > before, "more is made")
        self.assertTrue(self.js("return document.querySelector('[data-token=\"10\"]')"
                                ".classList.contains('self')"))


# Chips made, chips within the margin of the box, and chips whose status one step of the slider
# writes before it returns.
PAINTED = """
  const box = document.querySelector('[data-role="token-text"]');
  const frame = box.getBoundingClientRect();
  const chips = [...box.querySelectorAll('[data-token]')];
  const near = chips.filter((e) => {
    const at = e.getBoundingClientRect();
    return at.bottom > frame.top - 400 && at.top < frame.bottom + 400;
  });
  const observer = new MutationObserver(() => {});
  observer.observe(box, {attributes: true, attributeFilter: ['data-status'], subtree: true});
  const slider = document.querySelector('input[data-role="layer"]');
  slider.value = 1;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  return [chips.length, near.length, observer.takeRecords().length];
"""


if __name__ == "__main__":
    Browser.program = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
