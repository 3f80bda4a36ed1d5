"""The view of what an audit measured. browser_test.py runs it."""

import sample
from browser import Browser, CUT_TEXT, PageTest


class Audit(PageTest):
    VIEW = "[data-view=audit] "

    def show(self, name, results):
        self.open(Browser.report("audit-" + name, results))
        self.wait(lambda: self.labels(self.VIEW + ".point"), "the view is drawn")

    def count(self, selector):
        return self.js("return document.querySelectorAll(arguments[0]).length", self.VIEW + selector)

    def words(self):
        return self.one("[data-role=audit-words]").text

    def test_the_mean_and_its_interval_go_along_the_text(self):
        self.show("plain", [sample.audited(tightened=(), max_kl=None)])
        told = self.labels(self.VIEW + ".point")
        samples = sample.audit(tightened=())["samples"]
        self.assertEqual(len(told), len(samples))
        self.assertEqual(told[0], f"Position 576, KL {samples[0]['kl']:.2g}, 1 sample, delta × 1")
        self.assertRegex(told[5], r"^Position 896, KL 0\.\d+ \(0\.\d+ to 0\.\d+\), 6 samples, ")
        self.assertEqual((self.count("path.line"), self.count(".plot path.band")), (1, 1))
        self.assertEqual(self.count(".limit"), 0)
        self.assertRegex(self.words(), r"^KL 0\.\d+ \(0\.\d+ to 0\.\d+\) at the end, "
                                       r"1,536 of 1,541 tokens compared\.$")

    def test_the_contract_is_a_line_and_tightening_a_mark(self):
        self.show("tightened", [sample.audited(tightened=(5, 11))])
        self.assertEqual(self.count(".limit"), 1)
        self.assertEqual((self.count("path.line"), self.count(".plot path.band")), (3, 3))
        marks = [t for t in self.labels(self.VIEW + ".point") if "tightened here" in t]
        self.assertEqual([t.split(",")[0] for t in marks], ["Position 896", "Position 1"])
        names = self.js("return [...document.querySelectorAll(arguments[0])].map("
                        "(e) => e.textContent)", self.VIEW + ".chart .point-label")
        self.assertEqual(names, ["delta × 0.5", "delta × 0.25"])
        self.assertIn("Within the contract of 0.01. Delta was tightened 2 times, to 0.25 of what it "
                      "was.", self.words())

    def test_a_contract_that_is_not_kept_is_said(self):
        self.show("above", [sample.audited(tightened=(), max_kl=0.001)])
        self.assertIn("Above the contract of 0.001.", self.words())
        self.show("beyond", [sample.audited(tightened=(), max_kl=0.0125)])
        self.assertIn("The interval reaches beyond the contract of 0.0125.", self.words())
        self.show("short", [sample.audited(n_samples=1, tightened=())])
        self.assertIn("Too few samples", self.words())

    def test_cases_of_bench_have_one_each(self):
        bench = sample.bench()
        bench["cases"][1].update(name="tg@512", audit=sample.audit(mode="step"))
        self.show("bench", [bench])
        self.assertEqual(self.one(self.VIEW + "h3").text, "tg@512, keys, τ 0.5")
        self.assertIn("step: single steps", self.one(self.VIEW + ".hint").text)

    def test_without_samples_there_is_no_view(self):
        bench = sample.bench()
        bench["cases"][1]["audit"] = {"position": 9, "n_samples": 1, "kl": 0.1}  # of before
        self.open(Browser.report("audit-none", [sample.audited(n_samples=0, tightened=()), bench]))
        self.assertEqual(self.js("return document.querySelectorAll('[data-view=audit]').length"), 0)
        self.assertEqual(self.js("return document.querySelectorAll('.failed').length"), 0)

    def test_the_table_has_every_sample(self):
        self.show("table", [sample.audited()])
        self.open_all()
        self.assertEqual(self.count("tbody tr"), 24)

    def test_many_samples_fit_and_some_can_be_pointed_at(self):
        for width in (380, 1600):
            self.resize(width)
            self.show("many", [sample.audited(n_samples=1000, tightened=(5, 500), every=8)])
            self.assertLess(len(self.labels(self.VIEW + ".point")), 90)
            self.expect_no_overflow(width)
            self.assertEqual(self.js(CUT_TEXT), [], f"{width} px: text is cut")
