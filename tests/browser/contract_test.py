"""The view of a contract: promise, finding, saving. browser_test.py runs it."""

import sample
from browser import Browser, PageTest


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
        # As `generate` has it: a plan for memory is followed whatever its speed.
        for caption in captions[1:]:
            self.assertIn("A plan for memory is followed whatever its speed, by prompts of up to 512 "
                          "tokens.", caption)

    def test_plans_for_time_are_followed_where_they_were_faster(self):
        self.open(Browser.report("contract-time", [sample.tune(objective="decode")]))
        self.told()
        captions = self.js("return [...document.querySelectorAll('[data-view=contract] figcaption')]"
                           ".map((e) => e.textContent)")
        self.assertIn("stays dense", captions[1])
        self.assertIn("from 256 tokens on", captions[2])

    def test_a_speed_within_its_noise_is_no_difference_and_no_headline(self):
        result = sample.tune(objective="decode")
        last = result["time"]["decode"][-1]
        last.update(speedup=1.3, speedup_low=0.9, speedup_high=1.6)
        self.open(Browser.report("contract-noise", [result]))
        self.assertIn("decoding after 512 tokens shows no difference from dense (0.90× to 1.60×)",
                      self.decision())
        self.assertEqual(self.js("return document.querySelectorAll('.figures > div').length"), 0)
        self.assertIn("decoding after 512 tokens, no difference from dense (0.90× to 1.60×), "
                      "dense 128 ms, plan 98.5 ms", self.told())

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
