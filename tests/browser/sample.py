"""Results as sluice writes them (docs/results.md), with numbers from a seeded generator."""

import random

STATUS = {".": "redundant", "R": "representative", "E": "exempt", "U": "uncovered"}


def token_map(tokens, n_layers, seed):
    """A map in which every set is one that a cascade could find: owners come before."""
    rng = random.Random(seed)
    layers = []
    for layer in range(n_layers):
        status, owner, cosine, kept = [], [], [], []
        for t in range(len(tokens)):
            kind = "E" if t == 0 else "R" if t == 1 else rng.choices(".RU", (6, 3, 1))[0]
            status.append(kind)
            if kind in "ER":
                owner.append(t)
                cosine.append(1)
            else:
                owner.append(rng.choice(kept))
                near = rng.uniform(0.91, 1) if kind == "." else rng.uniform(-0.2, 0.9)
                cosine.append(round(near, 4))
            if kind == "R":
                kept.append(t)
        layers.append({"layer": layer, "status": "".join(status), "owner": owner,
                       "cosine": cosine})
    return {"tau": 0.3, "n_tokens": len(tokens), "space": "normed", "rule": "cascade-cover",
            "tokens": tokens, "layers": layers}


def cluster_size(layer, position):
    """Tokens with the same owner; an uncovered token is its own cluster."""
    def cluster(t):
        return t if layer["status"][t] == "U" else layer["owner"][t]
    return sum(cluster(t) == cluster(position) for t in range(len(layer["owner"])))


def header(command, model_path="models/gpt2-nano", text_path="text/demo.txt", dtype="f32"):
    return {"schema": 1, "command": command, "sluice_version": "0.1.0",
            "command_line": f"sluice {command} -m '{model_path}' -f '{text_path}'",
            "machine": {"cpu": "a processor", "isa": "NEON", "threads": 2, "gpu": None},
            "model": {"path": model_path, "family": "gpt2", "n_layers": 6, "d_model": 192, "n_heads": 6,
                      "n_kv_heads": 6, "head_dim": 32, "vocab": 8192, "dtype": dtype,
                      "sha256": "0123456789abcdef" * 4},
            "text": {"path": text_path, "sha256": "fedcba9876543210" * 4, "n_tokens": 512},
            "settings": {"windows": 1, "context": 512}}


def analyze(map_, **names):
    rng = random.Random(5)
    n_tokens = map_["n_tokens"]

    def one(rule, layer):
        first = layer == 0
        return {"rule": rule, "n_reps": rng.uniform(0.2, 0.5) * n_tokens, "n_reps_sd": 2.5,
                "jaccard_prev": None if first else rng.uniform(0.6, 0.9),
                "turnover": None if first else rng.uniform(0.05, 0.3)}

    layers = [{"layer": i, "independent": one("independent", i), "greedy": one("greedy", i),
               "cascade": one("cascade-cover", i), "cascades": [one("cascade-paper", i)],
               "controls": {"random": one("random", i), "unvalidated": one("unvalidated", i)}}
              for i in range(len(map_["layers"]))]
    run = {"tau": 0.3, "n_tokens": n_tokens, "space": "normed", "n_windows": 2, "layers": layers,
           "summary": {"rule": "cascade-cover", "mean_n_reps_cascade": 100.5}}
    paper = {"name": "GPT-2", "tau": 0.3, "n_tokens": 512, "space": "residual",
             "counts": [{"layer": 0, "n_reps": 200}, {"layer": 5, "n_reps": 150}],
             "coherence": [{"layer": 1, "jaccard": 0.7}],
             "layers": [{"layer": 0, "n_reps_independent": 200, "n_reps_cascade": 200,
                         "jaccard_prev": None, "turnover": None},
                        {"layer": 5, "n_reps_independent": 150, "n_reps_cascade": 160,
                         "jaccard_prev": 0.7, "turnover": 0.2}]}
    return {**header("analyze", **names), "runs": [run], "map": map_, "paper": paper,
            "subspace": subspace(len(layers)), "joint": joint(len(layers), n_tokens)}


def group(layer, name, rng):
    d = 768 if name == "mlp_inner" else 192
    r90 = rng.randint(d // 8, d // 3)
    return {"layer": layer, "input": name, "d": d, "energy": rng.uniform(0.7, 0.95),
            "effective_rank_90": r90, "effective_rank_95": r90 + d // 8,
            "effective_rank_99": r90 + d // 3}


LINEAR_INPUTS = ["attention_input", "attention_output", "mlp_input", "mlp_inner"]


def subspace(n_layers):
    rng = random.Random(6)
    groups = [{**group(layer, name, rng),
               "coherence_prev": rng.uniform(0.3, 0.9) if layer else None,
               "smallest_cosine_prev": rng.uniform(0, 0.2) if layer else None}
              for layer in range(n_layers) for name in LINEAR_INPUTS]
    return {"rank": 48, "n_tokens": 1024, "groups": groups}


def joint(n_layers, n_tokens):
    rng = random.Random(7)
    pairs = n_tokens * n_tokens / 4
    layers = []
    for layer in range(n_layers):
        ranks = []
        for rank in (24, 48, 96):
            dropped = rng.uniform(0.1, 0.3) + rank / 160
            ranks.append({"rank": rank, "energy": 0.5 + rank / 250, "pairs": pairs,
                          "products": pairs * (1 - dropped), "dropped_fraction": dropped,
                          "dropped_fraction_sd": 0.01, "seconds": 0.002 * rng.uniform(0.8, 1.4),
                          "seconds_where_pays": 0.002 * rng.uniform(0.9, 1.02)})
        layers.append({"layer": layer, "products": pairs, "seconds": 0.002, "ranks": ranks})
    return {"rule": "cascade-cover", "tau": 0.3, "space": "normed", "n_tokens": n_tokens,
            "n_windows": 2, "layers": layers,
            "bases": {"path": None,
                      "text": {"path": "text/demo.txt", "sha256": "00", "n_tokens": 8192},
                      "same_text": None}}


def calibrate(**names):
    rng = random.Random(8)
    groups = []
    for layer in range(6):
        for name in LINEAR_INPUTS + ["selection_normed"]:
            made = group(layer, name, rng)
            decay = rng.uniform(0.93, 0.98)
            raw = [decay ** k for k in range(made["d"])]
            total = sum(raw)
            shares = [x / total for x in raw]
            for share in (90, 95, 99):
                energy, k = 0, 0
                while energy < share / 100 and k < len(shares):
                    energy += shares[k]
                    k += 1
                made[f"effective_rank_{share}"] = k
            groups.append({**made, "rank": 48, "energy": sum(shares[:48]), "spectrum": shares,
                           "energies": [{"rank": 48, "energy": sum(shares[:48])}],
                           "inherited": layer > 2, "iterations": 2, "start_energy": None,
                           "work_saved": 0.2, "seconds": 0.05, "fresh_energy": None,
                           "fresh_seconds": None})
    return {**header("calibrate", **names), "groups": groups,
            "summary": {"n_groups": len(groups), "work_saved": 0.2}}


def choice(attention, tau, select="cascade-cover"):
    """Settings of one accelerated run or case, defaults filled in."""
    settings = {"attention": attention, "select": select, "space": "normed", "tau": tau,
                "sinks": 4, "outlier_ratio": 8, "from_layer": 0}
    if attention == "keys":
        settings.update(far="centroid", window=128, block=128)
    return settings


def evaluate(select="cascade-cover", **names):
    runs = []
    for mode, tau, kl, keys in (("keys", 0.3, 0.0123, 0.61), ("keys", 0.5, 0.0456, 0.42),
                                ("copy", 0.3, 0.0789, 0.55), ("paper", 0.3, 0.31, 0.3)):
        heads = [{"kind": "clusters", "tau": tau, "far": "centroid"}] * 4
        runs.append({
            "settings": choice(mode, tau, select),
            "metrics": {"n_tokens": 511, "ppl_base": 21.5, "ppl": 21.9, "ppl_ratio": 1 + kl,
                        "ppl_ratio_stderr": 0.002, "kl_mean": kl, "kl_stderr": kl / 20,
                        "kl_median": kl / 2, "kl_max": kl * 30, "top1_agreement": 0.95,
                        "keys_read_fraction": keys, "clusters_fraction": 0.4,
                        "selection_products": 0.37,
                        "generation_match_tokens": None, "fast_path_fraction": None},
            "cache": {"n_tokens": 512, "exact_bytes": 4096, "clusters_bytes": 65536,
                      "selection_rows_bytes": 0, "outputs_bytes": 0, "dense_bytes": 262144},
            "plan": {"layers": [{"layer": i, "mode": mode, "reuse": False, "window": 128,
                                 "block": 128, "heads": heads + [{"kind": "dense"},
                                                                 {"kind": "window"}]}
                                for i in range(6)]}})
    for epsilon in (0.1, 0.3):
        rng = random.Random(9)
        linear = [{"layer": i, "input": name, "kind": "gsi", "rank": 48, "epsilon": epsilon,
                   "fast_path_fraction": round(rng.uniform(0, 1) * min(1, 3 * epsilon), 4),
                   "bytes_fraction": rng.uniform(0.5, 1.1), "residual_median": 0.2,
                   "residual_p90": 0.35, "kept_fraction": None}
                  for i in range(6) for name in LINEAR_INPUTS]
        runs.append({"settings": {"attention": "dense", "linear": "gsi", "rank": 48,
                                  "epsilon": epsilon},
                     "metrics": {**runs[0]["metrics"], "keys_read_fraction": 1,
                                 "clusters_fraction": 1, "weight_bytes_fraction": 0.9 - epsilon,
                                 "kl_mean": epsilon / 10, "fast_path_fraction": 0.4},
                     "linear": linear})
    tokens = ["First"] + words(95, seed=3)
    for i, run in enumerate(runs):
        rng = random.Random(20 + i)
        mean = run["metrics"]["kl_mean"]
        run["token_kl"] = [None] + [float(f"{mean * rng.lognormvariate(-1, 1.4):.4g}") for _ in tokens[1:]]
    return {**header("eval", **names), "schema": 2, "timestamp": "2026-01-31T12:00:00Z", "runs": runs,
            "window": {"tokens": tokens}}


def needle(tasks=("needle", "keys"), lengths=(2048, 4096, 8192), n_depths=5, n_cases=20,
           labels=("refine, delta 0.03", "keys, tau 0.5"), seed=11, **names):
    """Needles that dense finds mostly, the first choice nearly as often, the others less the
    further back they are."""
    rng = random.Random(seed)
    cases = []
    for task in tasks:
        for n_tokens in lengths:
            for i in range(n_depths):
                depth = (i + 0.5) / n_depths
                for _ in range(n_cases):
                    dense = rng.random() < (0.99 if task == "needle" else 0.8)
                    runs = [rng.random() < (0.98 if dense else 0.02) if k == 0 else
                            dense and rng.random() < depth * lengths[0] / n_tokens + 0.1
                            for k in range(len(labels))]
                    cases.append({"task": task, "n_tokens": n_tokens, "depth": depth,
                                  "seed": len(cases), "answer": "12345",
                                  "dense": {"found": dense, "logp": -0.5},
                                  "runs": [{"found": r, "logp": -1} for r in runs]})
    settings = [{"attention": "refine", "delta": 0.03} if label.startswith("refine") else
                choice("keys", 0.5) for label in labels]
    result = {**header("needle", **names), "cases": cases,
              "summary": {"n_cases": len(cases),
                          "dense_found": sum(c["dense"]["found"] for c in cases),
                          "runs": [{"label": label, "settings": settings[i],
                                    "found": sum(c["runs"][i]["found"] for c in cases),
                                    "lost": sum(c["dense"]["found"] and not c["runs"][i]["found"]
                                                for c in cases)}
                                   for i, label in enumerate(labels)]}}
    result["settings"] = {"tasks": list(tasks), "context": list(lengths), "depths": n_depths,
                          "cases": n_cases, "seed": 0}
    return result


def audit(n_samples=24, tightened=(9,), max_kl=0.01, every=64, mode="replay", seed=12):
    """An audit whose samples fall after each tightening."""
    rng = random.Random(seed)
    samples, since, factor, level = [], [], 1, 0.011
    for i in range(n_samples):
        since.append(level * rng.lognormvariate(0, 0.5))
        mean = sum(since) / len(since)
        sd = (sum((x - mean) ** 2 for x in since) / max(1, len(since) - 1)) ** 0.5
        half = 2.2 * sd / len(since) ** 0.5
        if i in tightened:
            factor, level = factor / 2, level / 2
        samples.append({"position": 512 + every * (i + 1), "n_samples": len(since), "kl": mean,
                        "kl_low": max(0, mean - half),
                        "kl_high": mean + 1.4 * half if len(since) > 1 else None,
                        "delta_factor": factor, "tightened": i in tightened})
        if i in tightened:
            since = []
    last = samples[-1] if samples else {}
    return {"mode": mode, "every": every, "seed": 0, "max_kl": max_kl,
            "n_steps": every * n_samples + 5, "n_compared": every * n_samples,
            **{k: last.get(k) for k in ("n_samples", "kl", "kl_low", "kl_high", "delta_factor")},
            "samples": samples}


def audited(**options):
    """A generation with an audit."""
    result = generate("The gate", " opens at dusk", "refine")
    result["settings"] = {"attention": "refine", "delta": 0.01}
    result["audit"] = audit(**options)
    return result


def generate(prompt, text, attention="dense", **names):
    result = {**header("generate", **names),
              "generation": {"prompt": prompt, "text": text, "tokens": [1, 2, 3], "end": "length",
                             "n_prompt_tokens": 4, "prefill_tokens_per_s": 1234.5,
                             "decode_tokens_per_s": 56.7},
              "cache": {"n_tokens": 7, "dense_bytes": 1024}}
    result["settings"] = {"attention": attention, "tau": 0.3}
    return result


def bench(**names):
    cases = []
    for n in (512, 1024, 2048):
        for mode, tau, speedup, share in (("dense", 0, 1, None), ("keys", 0.5, 1.7, 0.3),
                                          ("keys", 0.3, 1.3, 0.4)):
            time = n / 20 / speedup
            cases.append({"name": f"pp{n}", "n_tokens": n, "mode": mode,
                          "label": "dense" if mode == "dense" else f"{mode}, tau {tau}",
                          "settings": choice(mode, tau) if tau else {"attention": "dense"},
                          "samples_ms": [time, time * 1.1],
                          "median_ms": time, "tokens_per_s": 1000 * n / time,
                          "speedup_vs_dense": speedup,
                          "speedup_low": speedup if mode == "dense" else speedup * 0.9,
                          "speedup_high": speedup if mode == "dense" else speedup * 1.1,
                          "parts_ms": {"select": 0.0 if mode == "dense" else time / 10,
                                       "attend": time / 3, "rest": time / 2},
                          "n_reps_fraction": share})
    return {**header("bench", **names), "cases": cases}


def tune(objective="memory", max_kl=0.02, max_ppl_ratio=None, dense_because=None, **names):
    def loss(kl, n_documents):
        return {"kl_mean": kl, "kl_stderr": 0.0018, "ppl_ratio": 1 + kl / 2,
                "ppl_ratio_stderr": 0.0011, "n_tokens": 256 * n_documents,
                "n_documents": n_documents}

    def times(first, last):
        return [{"n_tokens": n, "dense_ms": n / 4, "plan_ms": n / 4 / speedup, "speedup": speedup,
                 "speedup_low": speedup - 0.1, "speedup_high": speedup + 0.2}
                for n, speedup in ((128, first), (256, (first + last) / 2), (512, last))]

    heads = [{"kind": "clusters", "tau": 0.85, "far": "centroid"}, {"kind": "window"},
             {"kind": "dense"}]
    result = {**header("tune", **names),
              "contract": {"max_kl": max_kl, "max_ppl_ratio": max_ppl_ratio},
              "objective": objective, "calibration": loss(0.0136, 2),
              "held_out": loss(0.0132, 6), "predicted_kl": 0.0115,
              "generalisation_gap": -0.0004,
              "candidates": [{"budget": 0.02, "predicted_kl": 0.0199, "held_out": False,
                              "loss": loss(0.0353, 2)},
                             {"budget": 0.012, "predicted_kl": 0.0115, "held_out": True,
                              "loss": loss(0.0132, 6)}],
              "cost": {"dense": 4718592, "plan": 1398336},
              "time": {"dense_ms": 128, "plan_ms": 140, "prefill": times(0.8, 0.9),
                       "decode": times(0.9, 1.3)},
              "auto": {"prefill_from": None, "decode_from": None if dense_because else 256},
              "dense_because": dense_because, "seconds": 31.5,
              "plan": {"layers": [{"layer": i, "mode": "keys", "reuse": False, "window": 32,
                                   "block": 32, "heads": heads} for i in range(6)],
                       "linear": []}}
    result["settings"] = {"context": 512, "windows": [32], "tau": [0.85], "far": ["centroid"],
                          "n_calibration": 2, "n_held_out": 6, "seed": 0}
    return result


def words(n, seed):
    """Tokens of n words with sentences and paragraphs."""
    rng = random.Random(seed)
    tokens = []
    while len(tokens) < n:
        word = "".join(rng.choice("aeioulmnrstdg") for _ in range(rng.randint(1, 9)))
        tokens.append(rng.choice([word, " " + word, " " + word, " " + word]))
        if rng.random() < 0.1:
            tokens.append(".")
            if rng.random() < 0.2:
                tokens.append("\n")
    return tokens[:n]


# Each a token of its own; none may become anything but text.
HOSTILE = [
    "<script>window.pwned=1</script>", "</script><script>window.pwned=1</script>",
    "<img src=x onerror='window.pwned=1'>", '"><svg onload=window.pwned=1>', "<!--", "-->", "]]>",
    "<style>*{display:none}</style>", "&lt;b&gt;&amp;", "javascript:window.pwned=1", "'\"`${1}",
    "</textarea></title></style>", "\\u003cb>\\", "__proto__", "constructor", "👩‍👩‍👧‍👦", "é", "e\u0301",
    "שלום", "مرحبا", "\u202edesrever", "\u2066isolate\u2069", "\u200b", "\ufeff", "\u2028", "\u2029",
    "\x00", "\x07", "\x1b[31m", "\x7f", "\x85", "\t", "\r\n", "\n", " ", "", "\ufffe", "𝒳", "<0xE2>",
    "very" * 500, " long" * 200,
]
