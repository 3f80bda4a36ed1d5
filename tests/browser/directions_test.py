"""The views of directions: spectra, joint selection, the fast path. browser_test.py runs it."""

import sample
from browser import Browser, PageTest


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
