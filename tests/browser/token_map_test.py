"""The token map: sets, pointing, the keyboard, and long texts. browser_test.py runs it."""

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import sample
from browser import Browser, PageTest, long_test


class TokenMap(PageTest):
    def open(self, page):
        """At the first layer; the page opens at another."""
        super().open(page)
        self.js("window.sluice.showLayer(0)")

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
                ActionChains(self.driver, duration=0).move_to_element(chip).perform()
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
        ActionChains(self.driver, duration=0).move_to_element(self.one("[data-view=token-map] h2")).perform()
        for layer in range(1, 6):
            slider.send_keys(Keys.ARROW_RIGHT)
            self.expect_details(layer, 7)

    def test_a_token_pointed_at_stays_so_that_its_links_can_be_reached(self):
        self.open(Browser.page)
        layer = Browser.map["layers"][0]
        position = layer["status"].index(".")
        ActionChains(self.driver, duration=0).move_to_element(
            self.one(f'[data-token="{position}"] .w')).perform()
        link = self.one('[data-role="token-details"] dd button')
        ActionChains(self.driver, duration=0).move_to_element(link).click().perform()
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
        ActionChains(self.driver, duration=0).move_to_element(self.one('[data-token="5"] .w')).perform()
        self.assertEqual(panel.get_attribute("aria-live"), "off")
        self.one('[data-token="5"] .w').click()
        self.assertEqual(panel.get_attribute("aria-live"), "polite")
        self.assertIsNone(self.one("#tip").get_attribute("role"))

    def test_show_token_selects_it(self):
        self.open(Browser.page)
        self.js("window.sluice.showToken(50)")
        self.expect_details(0, 50)


class LongText(PageTest):
    @long_test
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
        ActionChains(self.driver, duration=0).move_to_element(self.one("[data-view=token-map] h2")).perform()
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
