"""The view of needles found. browser_test.py runs it."""

import math

import sample
from browser import Browser, CUT_TEXT, PageTest, long_test

READERS = ["dense", "refine, delta 0.03", "keys, τ 0.5"]


def found_by(reader, case):
    return case["dense"]["found"] if reader == 0 else case["runs"][reader - 1]["found"]


class Needles(PageTest):
    VIEW = "[data-view=needle] "

    def setUp(self):
        super().setUp()
        self.results = sample.needle()
        self.show("needle", self.results)

    def show(self, name, results):
        self.open(Browser.report(name, [results]))
        self.wait(lambda: self.labels(self.VIEW + ".point"), "the view is drawn")

    def cases(self, **where):
        return [c for c in self.results["cases"] if all(c[k] == v for k, v in where.items())]

    def test_each_task_has_a_map_for_dense_and_for_each_choice(self):
        self.assertEqual(self.labels(self.VIEW + ".plot"),
                         [f"{task}, {name}" for task in ("needle", "keys") for name in READERS])
        for task in ("needle", "keys"):
            for reader, name in enumerate(READERS):
                told = self.labels(f"{self.VIEW}[aria-label='{task}, {name}'] .point")
                expected = []
                for depth in (0.1, 0.3, 0.5, 0.7, 0.9):
                    for n in (2048, 4096, 8192):
                        found = sum(found_by(reader, c) for c in
                                    self.cases(task=task, n_tokens=n, depth=depth))
                        expected.append(f"{task}, {name}, {n:,} tokens, depth {100 * depth:.0f} %, "
                                        f"{found} of 20 found, ")
                self.assertEqual(len(told), len(expected))
                for text, begin in zip(told, expected):
                    self.assertTrue(text.startswith(begin), (text, begin))

    def test_cells_say_what_was_found_and_what_was_lost(self):
        found = sum(c["dense"]["found"] for c in self.cases(task="needle", n_tokens=2048,
                                                            depth=0.1))
        texts = self.js("return [...document.querySelectorAll(arguments[0])].map("
                        "(e) => e.textContent)", self.VIEW + ".point text")
        self.assertEqual(texts[0], f"{found} of 20")
        told = "\n".join(self.labels(self.VIEW + ".point"))
        self.assertRegex(told, r"keys, τ 0.5, 8,192 tokens, depth 10 %, .* found, .* %, "
                               r"dense \d+; lost \d+")
        framed = self.js("return document.querySelectorAll(arguments[0]).length",
                         self.VIEW + ".point .fewer")
        self.assertGreater(framed, 10)
        self.assertLess(framed, 35, "a few lost by chance are not marked")

    def test_a_sentence_has_the_totals(self):
        all_of = [sum(found_by(i, c) for c in self.results["cases"]) for i in range(3)]
        text = self.one("[data-role=needle-words]").text
        self.assertTrue(text.startswith(
            f"Dense finds {all_of[0]} of 600; refine, delta 0.03: {all_of[1]} (lost "), text)
        self.assertIn(f"; keys, τ 0.5: {all_of[2]} (lost ", text)

    def test_the_table_has_accuracies_with_their_errors(self):
        head = self.js("return [...document.querySelectorAll(arguments[0])].map("
                       "(c) => c.textContent)", self.VIEW + "thead th")
        self.assertEqual(head, ["task", "tokens", "cases", *READERS])
        rows = self.js("return [...document.querySelectorAll(arguments[0])].map("
                       "(r) => [...r.cells].map((c) => c.textContent))", self.VIEW + "tbody tr")
        self.assertEqual([row[:3] for row in rows], [[task, n, "100"] for task in ("needle", "keys")
                                                     for n in ("2,048", "4,096", "8,192")])
        for row, (task, n) in zip(rows, ((t, n) for t in ("needle", "keys")
                                         for n in (2048, 4096, 8192))):
            for reader in range(3):
                share = sum(found_by(reader, c) for c in self.cases(task=task, n_tokens=n)) / 100
                error = 100 * math.sqrt(share * (1 - share) / 100)
                shown = row[3 + reader]
                if 0 < share < 1:
                    mean, spread = (float(x) for x in shown.split(" ± "))
                    self.assertAlmostEqual(mean, 100 * share)
                    self.assertAlmostEqual(spread, error, delta=0.051)
                else:
                    self.assertEqual(shown, f"{100 * share:g}")

    def test_arrows_walk_over_the_cells(self):
        self.js("document.querySelector(arguments[0]).focus()", self.VIEW + ".point")
        self.js("""for (const key of ['ArrowRight', 'ArrowDown'])
                     document.activeElement.dispatchEvent(
                       new KeyboardEvent('keydown', {key, bubbles: true}))""")
        self.assertIn("4,096 tokens, depth 30 %",
                      self.js("return document.activeElement.getAttribute('aria-label')"))

    def test_dense_alone_is_drawn(self):
        self.show("needle-dense", sample.needle(labels=()))
        self.assertEqual(self.labels(self.VIEW + ".plot"), ["needle, dense", "keys, dense"])
        self.assertEqual(self.js("return document.querySelectorAll('.failed').length"), 0)

    def test_labels_are_made_of_settings_where_a_file_has_none(self):
        for run in self.results["summary"]["runs"]:
            del run["label"]
        self.show("needle-unlabelled", self.results)
        self.assertEqual(self.labels(self.VIEW + ".plot")[:3],
                         [f"needle, {name}" for name in READERS])

    @long_test
    def test_many_depths_and_lengths_fit(self):
        many = sample.needle(lengths=tuple(range(1024, 17 * 1024, 1024)), n_depths=60, n_cases=1)
        for name, results in (("needle", self.results), ("needle-many", many)):
            for width in (380, 1600):
                self.resize(width)
                self.show(name, results)
                self.expect_no_overflow(width)
                self.assertEqual(self.js(CUT_TEXT), [], f"{width} px: text is cut")
