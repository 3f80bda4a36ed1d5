"""Counts of representatives and losses of attention modes, from docs/algorithm.md, sections 1 to 3.

Plain NumPy in float64 for the three trained families; shares no code with the program. Of each
checkpoint it takes the first window of the demo's text in which no decision lies within MARGIN of
the threshold, so that float32 activations decide the same.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from golden.numpy_models import Model

N_TOKENS, TAU, WINDOW, MARGIN = 192, 0.3, 32, 4e-6
THETA = 1 - TAU * TAU
RULES = ["independent", "greedy", "cascade-paper", "cascade-causal", "cascade-cover"]
CHECKPOINTS = ["share/demo/gpt2-nano", "../shared/models/gptj-nano", "../shared/models/opt-nano"]


def gram_of(rows):
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.array([(unit * row).sum(1) for row in unit])


def exempt_tokens(x, sinks, ratio):
    size = np.linalg.norm(x, axis=1)
    return np.array([t < sinks or (ratio > 0 and size[t] > ratio * np.median(size[sinks:min(t, sinks + 255) + 1]))
                     for t in range(len(x))])


def select(rule, gram, inherited, exempt, margins):
    """The set as flags; inherited: the flags of the layer before, or None at the first."""
    if inherited is None:
        rule = "greedy" if rule in ("greedy", "cascade-cover") else "independent"
    size, tokens, kept = np.abs(gram), np.arange(len(gram)), exempt.copy()

    def below(cosines, among):
        largest = cosines[among & ~exempt].max(initial=-1)
        margins.append(abs(largest - THETA))
        return largest < THETA

    others = []
    for t in np.flatnonzero(~exempt):
        before = tokens < t
        if rule == "independent":
            kept[t] = below(size[t], before)
        elif rule == "greedy":
            kept[t] = below(gram[t], before & kept)
        elif inherited[t]:
            kept[t] = below(gram[t], before & kept & inherited) if rule == "cascade-cover" else below(size[t], before & inherited)
        else:
            others.append(t)
    stayed = kept & inherited if others else kept
    for t in others:
        before = tokens < t
        if rule == "cascade-cover":
            kept[t] = below(gram[t], before & stayed) and below(gram[t], before & kept & ~inherited)
        else:
            kept[t] = below(size[t], stayed if rule == "cascade-paper" else before & stayed)
    return kept


def owners_of(mode, gram, kept, exempt):
    """The token that stands for each; itself for those kept and for those that nobody covers."""
    owner, tokens = np.arange(len(gram)), np.arange(len(gram))
    for t in np.flatnonzero(~kept):
        among = np.flatnonzero(kept & ~exempt & ((mode == "paper") | (tokens < t)))
        cosines = np.abs(gram[t, among]) if mode == "paper" else gram[t, among]
        if len(among) and (mode == "paper" or cosines.max() >= THETA):
            owner[t] = among[cosines.argmax()]
    return owner


def counted(q, k, v, n):
    """Softmax of one query over n copies of each key: q (h, d), k and v (m, h, d)."""
    scores = np.einsum("hd,mhd->hm", q, k) / q.shape[1] ** 0.5 + np.log(n)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.einsum("hm,mhd->hd", weights / weights.sum(1, keepdims=True), v)


def attend(mode, q, k, v, owner, exempt):
    out, tokens = np.zeros_like(q), np.arange(len(q))
    for t in tokens:
        if mode == "dense":
            out[t] = counted(q[t], k[:t + 1], v[:t + 1], np.ones(t + 1))
        elif mode == "keys":
            border = WINDOW * (max(0, t - WINDOW) // WINDOW)
            near = np.flatnonzero((tokens <= t) & ((tokens >= border) | exempt))
            groups = [np.flatnonzero((owner == j) & (tokens < border) & ~exempt) for j in range(border)]
            groups = [group for group in groups if len(group)] + [[i] for i in near]
            means = [np.array([x[group].mean(0) for group in groups]) for x in (k, v)]
            out[t] = counted(q[t], *means, [len(group) for group in groups])
        elif owner[t] == t:
            seen = np.flatnonzero((owner == tokens) & (tokens <= t))
            n = [(owner[:t + 1] == j).sum() if mode == "copy" else 1 for j in seen]
            out[t] = counted(q[t], k[seen], v[seen], n)
    return out[owner] if mode in ("paper", "copy") else out


def run(model, ids, mode, margins):
    """Counts by rule and layer, and the loss."""
    rules = {"dense": RULES, "paper": ["cascade-paper"]}.get(mode, ["cascade-cover"])
    sinks, ratio = (4, 8) if mode in ("copy", "keys") else (0, 0)
    counts, before, x = {rule: [] for rule in rules}, {}, model.embed(ids)
    for layer in range(model.n_layers):
        stem = model.names[0].format(layer)
        normed = model.norm(stem + model.names[1], x)
        gram, exempt = gram_of(normed if sinks else x), exempt_tokens(x, sinks, ratio)
        for rule in rules:
            was = before.get(rule)
            kept = before[rule] = select(rule, gram, was, exempt, margins)
            was = kept if was is None else was
            counts[rule].append([int(kept.sum()), int((kept & ~was).sum()), int((was & ~kept).sum())])
        owner = owners_of(mode, gram, kept, exempt)
        a = model.linear(stem + model.names[3], attend(mode, *model.qkv(stem, normed), owner, exempt).reshape(x.shape))
        if model.names[2] is None:
            x = x + a + model.mlp(stem, normed)
        else:
            x = x + a
            x = x + model.mlp(stem, model.norm(stem + model.names[2], x))
    return {"counts": counts, "loss": model.loss(x, ids)}


def make(out_dir):
    (out_dir / "selection").mkdir(parents=True, exist_ok=True)
    text = Path("share/demo/text.txt").read_text(encoding="utf-8")
    for folder in filter(Path.exists, map(Path, CHECKPOINTS)):
        ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
        model, margins = Model(folder), [0]
        for first in range(0, len(ids) - N_TOKENS, N_TOKENS):
            window, margins = np.array(ids[first:first + N_TOKENS]), []
            modes = {mode: run(model, window, mode, margins) for mode in ("dense", "paper", "copy", "keys")}
            print(folder.name, first, min(margins))
            if min(margins) > MARGIN:
                break
        assert min(margins) > MARGIN, "every window has a close call"
        golden = {"ids": window.tolist(), "tau": TAU, "window": WINDOW, "margin": float(min(margins)), "modes": modes}
        (out_dir / "selection" / f"{folder.name}.json").write_text(json.dumps(golden) + "\n")
