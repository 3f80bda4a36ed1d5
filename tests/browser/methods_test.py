"""The view of KL against keys read, a curve for each method. browser_test.py runs it."""

import math

from browser import Browser, CUT_TEXT, PageTest
from sample_attention import METHODS, compared


class Methods(PageTest):
    VIEW = "[data-view=methods] "

    def setUp(self):
        super().setUp()
        self.results = compared()
        self.show("methods", [self.results])

    def show(self, name, results):
        self.open(Browser.report(name, results))
        self.wait(lambda: self.labels(self.VIEW + ".point"), "the view is drawn")

    def texts(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map("
                       "(e) => e.textContent)", self.VIEW + selector)

    def test_every_method_is_a_curve_and_tiles_are_apart_from_strict(self):
        names = ["refine, tile 128", "refine, strict", "keys", "baseline:window", "baseline:quest",
                 "baseline:oracle"]
        self.assertEqual(self.texts(".legend-item"), names)
        self.assertEqual(self.js("return document.querySelectorAll(arguments[0]).length",
                                 self.VIEW + ".plot path.line"), len(names))
        styles = self.js("return [...document.querySelectorAll(arguments[0])].map("
                         "(e) => e.getAttribute('class'))", self.VIEW + ".plot path.line")
        self.assertEqual(len(set(styles)), len(names))

    def test_every_run_with_keys_read_is_a_point_named_by_its_setting(self):
        told = self.labels(self.VIEW + ".point")
        self.assertEqual(len(told), sum(len(steps) for steps in METHODS.values()))
        self.assertIn("refine, strict, delta 0.01, keys read 19 %, KL 0.00300 ± 0.00015, same first "
                      "choice 95.0 %", told)
        self.assertIn("baseline:quest, keep 0.4, keys read 70 %, KL 0.01500 ± 0.00075, same first "
                      "choice 95.0 %", told)
        self.assertIn("keys, τ 0.5, keys read 52 %, KL 0.0240 ± 0.0012, same first choice 95.0 %",
                      told)
        self.assertTrue([t for t in told if "(0 or less: on the axis)" in t])
        self.assertFalse([t for t in told if t.startswith("copy")], "it has no keys read")

    def test_both_axes_are_logarithmic(self):
        ratios = self.js("""
            const at = (i) => {
              const box = document.querySelectorAll(arguments[0])[i].getBoundingClientRect();
              return [box.left + box.width / 2, box.top + box.height / 2];
            };
            const [a, b, c] = [at(0), at(1), at(3)];
            return [(b[0] - a[0]) / (c[0] - a[0]), (b[1] - a[1]) / (c[1] - a[1])]""",
                         self.VIEW + ".point .hit")
        steps = METHODS["refine", 128]
        for ratio, column in zip(ratios, (2, 1)):
            a, b, c = (math.log(steps[i][column]) for i in (0, 1, 3))
            self.assertAlmostEqual(ratio, (b - a) / (c - a), delta=0.01)

    def test_model_and_length_are_the_title_and_a_sentence_says_who_reads_least(self):
        self.assertEqual(self.texts("h3"), ["gpt2-nano, windows of 2,048 tokens"])
        self.assertEqual(self.one("[data-role=methods-words]").text,
                         "Least read within KL 0.02 of dense: refine, strict: 12 %; "
                         "refine, tile 128: 22 %; baseline:oracle: 55 %; keys: 66 %; "
                         "baseline:quest: 70 %. Not within it with the settings measured: "
                         "baseline:window.")

    def test_each_length_and_model_has_a_picture_of_its_own(self):
        self.show("methods-two", [self.results, compared(4096),
                                  compared(dtype="bf16")])
        self.assertEqual(self.texts("h3"), ["gpt2-nano · f32, windows of 2,048 tokens",
                                            "gpt2-nano · f32, windows of 4,096 tokens",
                                            "gpt2-nano · bf16, windows of 2,048 tokens"])

    def test_a_button_of_the_legend_hides_a_curve(self):
        before = len(self.labels(self.VIEW + ".point"))
        self.js("document.querySelectorAll(arguments[0])[2].click()", self.VIEW + ".legend-item")
        self.assertEqual(len(self.labels(self.VIEW + ".point")), before - 2)
        for i in range(6):
            if i != 2:
                self.js("document.querySelectorAll(arguments[0])[arguments[1]].click()",
                        self.VIEW + ".legend-item", i)
        self.assertEqual(self.labels(self.VIEW + ".point"), [])

    def test_the_table_has_every_point(self):
        self.open_all()
        rows = self.js("return [...document.querySelectorAll(arguments[0])].map("
                       "(r) => [...r.cells].map((c) => c.textContent))", self.VIEW + "tbody tr")
        self.assertEqual(len(rows), sum(len(steps) for steps in METHODS.values()))
        self.assertIn(["refine, strict", "delta 0.03", "0.12", "0.00900 ± 0.00045",
                       "1.0090 ± 0.0020", "0.95"], rows)

    def test_one_run_alone_is_no_comparison(self):
        self.results["runs"] = self.results["runs"][:1]
        self.open(Browser.report("methods-one", [self.results]))
        self.assertEqual(self.js("return document.querySelectorAll('[data-view=methods]').length"),
                         0)

    def test_it_fits(self):
        for width in (380, 1600):
            self.resize(width)
            self.show("methods", [self.results])
            self.expect_no_overflow(width)
            self.assertEqual(self.js(CUT_TEXT), [], f"{width} px: text is cut")
