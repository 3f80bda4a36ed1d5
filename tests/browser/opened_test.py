"""The view of what queries of refined attention open. browser_test.py runs it."""

from browser import Browser, CUT_TEXT, PageTest, long_test
from sample_attention import refined


class Opened(PageTest):
    def setUp(self):
        super().setUp()
        self.results = refined()
        self.open(Browser.report("opened", [self.results]))
        self.wait(lambda: self.labels(self.ALONG), "the view is drawn")

    GRID = "[data-view=opened] [aria-label='Opened by head'] .point"
    ALONG = "[data-view=opened] [aria-label='Read along the text'] .point"

    def words(self):
        return self.one("[data-role=opened-words]").text

    @staticmethod
    def share(x):
        """As the page shows it: without an exponent, without zeros at the end."""
        return f"{float(f'{100 * x:.{2 if x < 0.1 else 3}g}'):g} %"

    def test_every_refined_layer_and_query_head_of_the_chosen_run_is_a_cell(self):
        for index, run in enumerate(self.results["runs"]):
            self.choose("opened-run", index)
            delta = run["settings"]["delta"]
            choices = [f"delta {'∞' if delta is None else delta}"] * 4 + ["window only"] * 2
            self.assertEqual(self.labels(self.GRID), [
                f"Layer {layer}, head {h}, opens {self.share(x)}, {choices[h]}"
                for layer, reads in enumerate(run["refine_reads"]) if reads
                for h, x in enumerate(reads["opened_by_head"])])

    def test_a_sentence_says_what_is_read_and_who_opens_most(self):
        layers = [r for r in self.results["runs"][0]["refine_reads"] if r]
        near, means, opened = (sum(r[key] for r in layers) / len(layers)
                               for key in ("near", "clusters", "opened"))
        most, layer, head = max((x, i + 1, h) for i, r in enumerate(layers)
                                for h, x in enumerate(r["opened_by_head"]))
        self.assertTrue(self.words().startswith(
            f"refine, delta 0.003 · T 1,024: in 5 layers queries read "
            f"{self.share(near + means + opened)} of the keys that dense attention scores: "
            f"near keys {self.share(near)}, means of clusters {self.share(means)}, "
            f"members of opened clusters {self.share(opened)}. "
            f"Head {head} of layer {layer} opens most, {self.share(most)}; half of the heads "),
            self.words())
        self.choose("opened-run", 2)
        self.assertTrue(self.words().endswith(" No head opens anything."), self.words())

    def test_the_sentence_says_so_where_heads_are_alike_or_most_open_nothing(self):
        for name, opened, end in (("alike", [0.25] * 6, " Every head opens 25 %."),
                                  ("few", [0, 0, 0, 0, 0, 0.5], "; 25 of 30 heads open nothing.")):
            results = refined()
            results["runs"] = results["runs"][:1]
            for reads in results["runs"][0]["refine_reads"][1:]:
                reads["opened_by_head"] = opened
            self.open(Browser.report("opened-" + name, [results]))
            self.assertTrue(self.words().endswith(end), self.words())

    def test_positions_are_the_mean_of_the_layers_or_those_of_one(self):
        layers = [r for r in self.results["runs"][0]["refine_reads"] if r]
        for choice, chosen in ((0, layers), (2, layers[1:2])):
            self.choose("opened-layer", choice)
            told = self.labels(self.ALONG)
            self.assertEqual(len(told), 4)
            for i, text in enumerate(told):
                here = [r["positions"][i] for r in chosen]
                opened = sum(p["opened"] for p in here) / len(here)
                self.assertTrue(text.startswith(f"Positions {256 * i:,} to {256 * i + 255:,}, near "
                                                f"keys {self.share(here[0]['near'])}, "), text)
                self.assertIn(f"members of opened clusters {self.share(opened)}, read in all", text)
        areas = self.js("return document.querySelectorAll('[data-view=opened] .area').length")
        self.assertEqual(areas, 3)

    def test_runs_and_heads_are_named_by_delta(self):
        self.wait(lambda: self.labels("[data-view=quality] .point"), "quality is drawn")
        told = self.labels("[data-view=quality] .point")
        self.assertEqual([text.split(" · ")[0] for text in told],
                         ["refine, delta 0.003", "refine, delta 0.1", "refine, delta ∞"])
        marked = self.js("return [...document.querySelectorAll('[data-view=quality] .point-label')]"
                         ".map((e) => e.textContent)")
        self.assertEqual(marked, ["delta 0.003", "delta 0.1", "delta ∞"])
        told = self.labels("[data-view=heads] .point")
        self.assertIn("Layer 1, head 0, clusters, delta 0.003, refine, window 128, segment 256, "
                      "page 16, tile 64", told)
        legend = self.js("return [...document.querySelectorAll('[data-view=heads] .legend-item')]"
                         ".map((e) => e.textContent)")
        self.assertEqual(legend, ["delta 0.003", "window only", "dense"])
        self.assertIn("Refined attention", self.one(".lead").text)

    def test_the_tables_have_every_number(self):
        self.open_all()
        tables = dict(self.js("return [...document.querySelectorAll('[data-view=tables] table')]"
                              ".map((t) => [t.caption.textContent, t.tBodies[0].rows.length])"))
        for delta in ("0.003", "0.1", "∞"):
            name = f"refine, delta {delta} · T 1,024"
            self.assertEqual(tables[f"{name}: read by layer, of what dense attention scores"], 5)
            self.assertEqual(tables[f"{name}: opened by query head"], 5)
            self.assertEqual(tables[f"{name}: read by position, mean of the layers"], 4)
            self.assertEqual(tables[f"{name}: opened by position"], 4)
        text = self.one("[data-view=tables]").text
        for reads in self.results["runs"][0]["refine_reads"][1:]:
            figures = [reads["near"], reads["clusters"], reads["opened"], *reads["opened_by_head"],
                       *(at["opened"] for at in reads["positions"])]
            for figure in figures:
                self.assertIn(f"{float(f'{figure:.4g}'):g}", text)

    def test_layers_that_differ_in_heads_and_segments_are_drawn(self):
        results = refined()
        first, second, third, *_ = results["runs"][0]["refine_reads"][1:]
        first["opened_by_head"] = []
        second["positions"] = []
        third["positions"] = third["positions"][2::-2]  # segments of 512, the last one first
        results["runs"] = results["runs"][:1]
        self.open(Browser.report("opened-odd", [results]))
        self.wait(lambda: self.labels(self.ALONG), "the view is drawn")
        self.assertEqual(len(self.labels(self.GRID)), 4 * 6)
        self.assertEqual(len(self.labels(self.ALONG)), 4)
        self.choose("opened-layer", 2)
        self.assertIn("No positions were counted", self.one("[data-view=opened]").text)
        self.choose("opened-layer", 3)
        self.assertEqual([text.split(", near")[0]
                          for text in self.labels(self.ALONG)],
                         ["Positions 0 to 511", "Positions 512 to 1,023"])
        self.assertEqual(self.js("return document.querySelectorAll('.failed').length"), 0)

    @long_test
    def test_many_layers_heads_and_positions_fit(self):
        page = Browser.report("opened-large", [refined(32, 32, 8, 16384)])
        for width in (380, 1600):
            self.resize(width)
            self.open(page)
            self.expect_no_overflow(width)
            self.assertEqual(self.js(CUT_TEXT), [], f"{width} px: text is cut")
