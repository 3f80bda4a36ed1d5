"""Text from outside stays text. browser_test.py runs it."""

import sample
from browser import Browser, PageTest, visible
from sample_attention import compared, refined


class HostileText(PageTest):
    def test_it_is_shown_as_text_and_is_nothing_else(self):
        tokens = sample.HOSTILE
        name = "".join(t for t in tokens if len(t) < 100)
        names = {"model_path": "models/" + name, "text_path": "text/" + name}
        harmless = Browser.report("harmless", [
            sample.analyze(sample.token_map(["a"] * len(tokens), 2, seed=3)),
            sample.evaluate(), sample.generate("a", "b"), sample.tune(),
            sample.tune(dense_because="a"), refined(), refined(rule="a"),
            compared(), sample.needle(), sample.audited()])
        hostile = sample.evaluate(**names)
        hostile["runs"][0]["settings"]["attention"] = name
        hostile["machine"]["cpu"] = name
        audited = sample.audited(mode=name)
        audited["settings"]["plan"] = name
        page = Browser.report("hostile", [
            sample.analyze(sample.token_map(tokens, 2, seed=3), **names), hostile,
            sample.generate(name, name, **names), sample.tune(objective=name, **names),
            sample.tune(dense_because=name, **names), refined(**names),
            refined(rule=name, **names), compared(**names), audited,
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
            refined(**names), refined(rule=name, **names), compared(**names),
            sample.needle(tasks=(name,), labels=(name, name), **names), sample.audited(mode=name)])
        for width in (380, 1600):
            self.resize(width)
            self.open(page)
            self.expect_no_overflow(width)
