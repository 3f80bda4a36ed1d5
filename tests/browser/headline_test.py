"""The figures at the top, and the names that tell runs apart. browser_test.py runs it."""

import sample
from browser import Browser, PageTest


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
                     "median_ms": dense["median_ms"] / 2, "samples_ms": [], "speedup_vs_dense": 2,
                     "speedup_low": 1.9, "speedup_high": 2.1}
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
        self.assertEqual(quality[runs], "keys, τ 0.3, greedy · T 512 · alike-1.json")
        self.assertEqual(quality[2 * runs], "keys, τ 0.3, greedy · T 512 · alike-4.json")
        plans = self.js("return [...document.querySelectorAll('[data-role=plan] option')]"
                        ".map((e) => e.textContent)")
        self.assertEqual(len(set(plans)), 12)
        places = self.js("return [...document.querySelectorAll('[data-view=speed] h3')]"
                         ".map((e) => e.textContent)")
        self.assertEqual(places, ["f32", "bf16"])
        self.wait(lambda: self.js("return document.querySelectorAll("
                                  "'[data-view=speed] .group-name').length") == 6,
                  "tests of each number format stand by themselves")
