"""Results of refined attention and of methods compared, to go with those of sample.py."""

import random

from sample import choice, header

SEGMENT, WINDOW, PAGE, SINKS = 256, 128, 16, 16


def refine_reads(rng, share, n_heads, n_window, context):
    """What a refined layer reads: each head but the last n_window, which have no clusters, opens
    about that share of what is in them."""
    by_head = [min(1, share * 10 ** rng.uniform(-2, 0.6)) for _ in range(n_heads - n_window)]
    by_head += [0] * n_window
    clustering = 1 - n_window / n_heads
    mean = sum(by_head) / n_heads
    positions, total, clustered = [], [0, 0, 0], 0
    for begin in range(0, context, SEGMENT):
        near = means = opened = dense = 0
        for t in range(begin, min(begin + SEGMENT, context)):
            border = max(0, t - WINDOW) // SEGMENT * SEGMENT
            far = max(0, border - SINKS)
            near, dense = near + t + 1 - far, dense + t + 1
            means += clustering * far / PAGE
            opened, clustered = opened + mean * far, clustered + far
        positions.append({"begin": begin, "near": near / dense, "clusters": means / dense,
                          "opened": opened / dense})
        total = [a + b for a, b in zip(total, (near, means, opened))]
    dense = context * (context + 1) / 2
    return {"near": total[0] / dense, "clusters": total[1] / dense, "opened": total[2] / dense,
            "opened_by_head": [x * clustered / dense for x in by_head], "positions": positions}


def refined(n_layers=6, n_heads=6, n_kv_heads=3, context=1024, rule="error-by-groups", **names):
    """An eval of refined attention; the first layer is dense, one head reads its window alone."""
    rng = random.Random(10)
    runs = []
    refine = {"window": WINDOW, "segment": SEGMENT, "page": PAGE, "tile": 64, "tile_factor": 1,
              "rule": rule}
    for delta, kl, share in ((0.003, 0.0035, 0.5), (0.1, 0.031, 0.03), (None, 0.13, 0)):
        reads = [None] + [refine_reads(rng, share, n_heads, n_heads // n_kv_heads, context)
                          for _ in range(1, n_layers)]
        read = [1 if r is None else r["near"] + r["clusters"] + r["opened"] for r in reads]
        heads = [{"kind": "clusters", "delta": delta}] * (n_kv_heads - 1) + [{"kind": "window"}]
        layers = [{"layer": i, "mode": "refine", "reuse": False, "block": None, "heads": heads,
                   **refine} for i in range(1, n_layers)]
        runs.append({
            "settings": {"attention": "refine", "delta": delta, "sinks": SINKS, "from_layer": 1,
                         **refine},
            "metrics": {"n_tokens": context - 1, "ppl_ratio": 1 + kl, "kl_mean": kl,
                        "kl_stderr": kl / 20, "top1_agreement": 0.95, "clusters_fraction": 1 / 16,
                        "keys_read_fraction": sum(read) / n_layers, "selection_products": 0},
            "plan": {"layers": [{"layer": 0, "mode": "dense", "window": None, "block": None,
                                 "heads": [{"kind": "dense"}] * n_kv_heads}] + layers},
            "refine_reads": reads})
    result = {**header("eval", **names), "runs": runs}
    result["settings"] = {"windows": 1, "context": context}
    return result


# Of every method the steps of its figure, with KL and keys read.
METHODS = {
    ("refine", 128): [(0.003, 0.0006, 0.42), (0.01, 0.002, 0.31), (0.03, 0.0067, 0.22),
                      (0.1, 0.021, 0.17)],
    ("refine", 1): [(0.003, 0.001, 0.3), (0.01, 0.003, 0.19), (0.03, 0.009, 0.12),
                    (0.1, 0.028, 0.09)],
    ("keys", None): [(0.3, 0.002, 0.66), (0.5, 0.024, 0.52)],
    ("baseline:window", None): [(0.05, 0.48, 0.1), (0.1, 0.36, 0.19), (0.2, 0.35, 0.37)],
    ("baseline:quest", None): [(0.05, 0.91, 0.14), (0.1, 0.39, 0.22), (0.4, 0.015, 0.7),
                               (1, 0, 1.06)],
    ("baseline:oracle", None): [(0.8, 0.12, 0.15), (0.9, 0.05, 0.25), (0.99, 0.004, 0.55)],
}


def compared(context=2048, **names):
    """An eval of several methods, one curve each; one run has no keys read."""
    runs = []
    for (attention, tile), steps in METHODS.items():
        for step, kl, keys in steps:
            settings = {"attention": attention}
            if attention == "keys":
                settings = choice("keys", step)
            elif attention == "refine":
                settings.update(delta=step, window=128, segment=128, early=32, page=16, tile=tile,
                                tile_factor=5, rule="error-by-groups", cache="exact",
                                sinks=16, from_layer=0)
            else:
                settings.update(keep=step, from_layer=0)
            runs.append({"settings": settings,
                         "metrics": {"n_tokens": context - 1, "ppl_ratio": 1 + kl,
                                     "ppl_ratio_stderr": 0.002, "kl_mean": kl,
                                     "kl_stderr": kl / 20, "top1_agreement": 0.95,
                                     "keys_read_fraction": keys}})
    runs.append({"settings": choice("copy", 0.3), "metrics": {"kl_mean": 0.1}})
    result = {**header("eval", **names), "runs": runs}
    result["settings"] = {"windows": 1, "context": context}
    return result
