"""The sentences at the top, the loss of each token, and two files compared. browser_test.py runs it."""

import sample
from browser import Browser, PageTest


class Story(PageTest):
    def story(self):
        return self.one('[data-role="story"]').text.splitlines()

    def test_three_sentences_say_what_it_is_what_ran_and_what_came_out(self):
        self.open(Browser.page)
        what, ran, result = self.story()
        self.assertTrue(what.startswith("Sluice runs transformer language models"), what)
        self.assertIn("analyze, eval, generate, bench, calibrate, tune and needle were run with gpt2-nano on "
                      "demo.txt, on a processor with 2 threads, in f32.", ran)
        self.assertIn("keys, τ 0.3 · T 512 reads 61 % of the keys and loses KL 0.012", result)
        self.assertIn("in pp2048 keys, τ 0.3 runs at 1.30× the speed of dense (1.17× to 1.43×)", result)
        self.assertIn("the cache takes 1.33 MiB where the dense one takes 4.5 MiB", result)

    def test_words_are_explained_where_they_occur(self):
        terms = "return [...document.querySelectorAll('[data-role=terms] dfn')].map((e) => e.textContent)"
        self.open(Browser.page)
        self.assertEqual(self.js(terms), ["KL", "τ", "delta", "keys", "pp, tg"])
        self.open(Browser.report("terms", [sample.bench()]))
        self.assertEqual(self.js(terms), ["τ", "pp, tg"])

    def test_a_ratio_within_its_noise_is_no_headline(self):
        result = sample.bench()
        for case in result["cases"]:
            if case["mode"] != "dense":
                case.update(speedup_low=0.8, speedup_high=1.9)
        self.open(Browser.report("noise", [result]))
        self.assertEqual(self.js("return document.querySelectorAll('.figures > div').length"), 0)
        self.assertIn("in pp2048 keys, τ 0.5 shows no difference from dense (0.80× to 1.90×)",
                      self.story()[2])
        self.assertNotIn("1.70×", self.one("header.headline").text)
        told = [t for t in self.labels("[data-view=speed] .point") if ", dense" not in t]
        self.assertTrue(told)
        for text in told:
            self.assertIn("no difference from dense (0.80× to 1.90×)", text)
        self.assertIn("no difference", self.one("[data-view=speed]").text)
        self.assertNotIn("1.70×", self.one("[data-view=speed] .plot").text)

    def test_no_clear_case_stands_in_for_one_that_is_not(self):
        result = sample.bench()
        for case in result["cases"]:
            if case["name"] == "pp2048" and case["mode"] != "dense":
                case.update(speedup_low=0.8, speedup_high=1.9)
        self.open(Browser.report("stand-in", [result]))
        self.assertEqual(self.js("return document.querySelectorAll('.figures > div').length"), 0)
        self.assertNotIn("1.70×", self.one("header.headline").text)
        for case in result["cases"]:
            case.pop("speedup_low")
            case.pop("speedup_high")
        self.open(Browser.report("no-noise", [result]))
        self.assertEqual(self.js("return document.querySelectorAll('.figures > div').length"), 0)
        self.assertIn("was timed without its noise", self.story()[2])

    def test_the_time_is_told(self):
        self.open(Browser.report("time", [sample.evaluate()]))
        self.assertIn("Measured 2026-01-31 12:00 UTC", self.one(".kicker").text)
        self.assertIn("Measured 2026-01-31 12:00 UTC", self.one("[data-view=about]").text)

    def test_the_tuned_plan_is_the_first_of_heads(self):
        self.open(Browser.page)
        plans = self.js("return [...document.querySelectorAll('[data-role=plan] option')]"
                        ".map((e) => e.textContent)")
        self.assertEqual(plans[0], "tuned plan")
        self.assertGreater(len(plans), 3)


class TokenLoss(PageTest):
    def test_tokens_have_the_step_of_their_loss(self):
        result = sample.evaluate()
        self.open(Browser.report("loss", [result]))
        for i, run in enumerate(result["runs"]):
            self.choose("loss-run", i)
            shown = self.js("return [...document.querySelectorAll('[data-position]')].map((e) => "
                            "[e.textContent, e.dataset.loss ?? null])")
            steps = [None if kl is None else str(sum(kl >= s for s in (0.001, 0.01, 0.1, 1)))
                     for kl in run["token_kl"]]
            self.assertEqual(shown, [list(pair) for pair in zip(result["window"]["tokens"], steps)])

    def test_the_worst_token_is_named_and_can_be_reached(self):
        result = sample.evaluate()
        self.open(Browser.report("loss", [result]))
        self.choose("loss-run", 0)
        kls = result["runs"][0]["token_kl"]
        worst = max(range(1, len(kls)), key=lambda t: kls[t])
        self.one("[data-view=loss] .token-link").click()
        self.assertEqual(self.js("return document.activeElement.dataset.position"), str(worst))
        self.assertIn("KL ", self.one("#tip").text)

    def test_there_is_none_without_tokens(self):
        result = sample.evaluate()
        for run in result["runs"]:
            run["token_kl"].pop()
        self.open(Browser.report("no-loss", [result]))
        self.assertEqual(self.js("return document.querySelectorAll('[data-view=loss]').length"), 0)


class Compare(PageTest):
    def rows(self):
        return self.js("return [...document.querySelectorAll('[data-view=compare] tbody tr')].map("
                       "(r) => [...r.cells].map((c) => c.textContent))")

    def test_what_both_files_have_stands_next_to_each_other(self):
        first, second = sample.evaluate(), sample.evaluate()
        second["runs"][0]["metrics"]["kl_mean"] = 0.0124      # 0.0123 ± 0.0006
        second["runs"][1]["metrics"]["kl_mean"] = 0.06        # 0.0456 ± 0.0023
        second["runs"].pop()
        self.open(Browser.report("two", [first, second]))
        rows = {row[0]: row[1:] for row in self.rows()}
        self.assertEqual(rows["KL, keys, τ 0.3 · T 512"],
                         ["0.01230 ± 0.00062", "0.01240 ± 0.00062", "no difference"])
        self.assertEqual(rows["KL, keys, τ 0.5 · T 512"][2], "+0.0144")
        self.assertEqual(rows["keys read, keys, τ 0.3 · T 512"], ["61.0 %", "61.0 %", "the same"])
        self.assertIn("in one file alone", self.one("[data-role=compared]").text)
        self.assertIn("1 differs by more than noise", self.one("[data-role=compared]").text)

    def test_speed_ups_differ_where_their_ranges_are_apart_and_times_decide_nothing(self):
        first, second = sample.bench(), sample.bench()
        for case in second["cases"]:
            case["median_ms"] /= 2
            if case["mode"] != "dense":  # 1.7 and 1.3, with 10% on either side
                by = 1.3 if "0.5" in case["label"] else 1.1
                for key in ("speedup_vs_dense", "speedup_low", "speedup_high"):
                    case[key] *= by
        self.open(Browser.report("times", [first, second]))
        changes = {row[0]: row[3] for row in self.rows()}
        self.assertEqual(changes["speed over dense, pp512, keys, τ 0.5"], "+0.51")
        self.assertEqual(changes["speed over dense, pp512, keys, τ 0.3"], "no difference")
        self.assertEqual(changes["time, pp512, dense"], "2.00× the speed, noise unknown")
        self.assertIn("3 differ by more than noise", self.one("[data-role=compared]").text)

    def test_files_with_nothing_in_common_say_so(self):
        self.open(Browser.report("other", [sample.evaluate(), sample.bench()]))
        self.assertIn("measured nothing in common", self.one("[data-role=compared]").text)
        self.assertEqual(self.rows(), [])

    def test_one_file_has_nothing_to_compare(self):
        self.open(Browser.report("single", [sample.evaluate()]))
        self.assertEqual(self.js("return document.querySelectorAll('[data-view=compare]').length"), 0)
