#!/usr/bin/env python3
"""Times a model of transformers with Sluice's attention against transformers' own, on one GPU.

    python bench/python_cuda.py [--tokens N] [--reads SHARE] [--json FILE]

Needs torch, transformers and the package sluice, built with CUDA. The model is random and has the shape of Llama 3
8B: 32 layers, 32 query heads and 8 key heads of 128 numbers, width 4096, MLP 14336, vocabulary 128256; bfloat16, made
on the GPU. Tokens are random too, drawn by Zipf's law.

Attention of a random model is not that of a trained one. So delta is searched for in every layer until a prefill reads
the share of keys that is asked for; docs/results/refine.md has shares of trained models. --sharpen multiplies query
projections: above 1 attention is more concentrated. What was read is printed.

Every implementation runs generate() on one prompt, with 1 new token and with more; the difference is what decoding
takes. transformers computes logits of the last prompt token alone. Runs are interleaved; medians.

"calls alone": attention itself, timed on the queries, keys and values of every layer by CUDA events: the function that
transformers calls against Attention.append_rows. From these and the time of the model with its own attention, Amdahl's
law predicts the model's time with Sluice. "survives" is the share of the time saved by the calls alone that the model
saves; above 100% where Sluice's cache spares the copy of all keys that transformers' makes for every token. Calls of
one token are bound by the host that launches them; "-" stands where they save less than 2% of the model's time.
"""

import argparse
import json
import math
import statistics
import sys
import time
import warnings

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sluice
from sluice import hf
from sluice.hf._enable import _append

LLAMA = dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
             num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072, rope_theta=5e5)
# To try this program on any machine.
TINY = dict(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16384)
PROBE = "sluice_bench"  # the name of an attention function that measures the others


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32768, help="of the prompt")
    parser.add_argument("--new-tokens", type=int, default=65, help="that are generated, the first by the prefill")
    parser.add_argument("--reads", type=float, default=0.22, help="share of keys that a prefill is to read")
    parser.add_argument("--sharpen", type=float, default=1.0, help="factor of query projections")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--tiny", action="store_true", help="a small model, also on the CPU")
    return parser.parse_args()


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(action):
    synchronize()
    begin = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - begin


def call_ms(action, n=1):
    """Of one of n calls in a row, on the device where there is one; the first time does not count."""
    action()
    if not torch.cuda.is_available():
        return 1000 * seconds(lambda: [action() for _ in range(n)]) / n
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(n):
        action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / n


class Probe:
    """An attention function: finds delta for each layer, and times the calls of the others there."""

    def __init__(self, own, reads, device, capacity):
        self.own, self.reads, self.device, self.capacity = own, reads, device, capacity
        self.deltas, self.found, self.calls = [], [], []
        self.found_decoding = []

    def attention(self, query, key, delta):
        return sluice.Attention(n_heads=query.shape[1], n_kv_heads=key.shape[1], head_dim=query.shape[3],
                                capacity=self.capacity, mode="refine", delta=delta, device=self.device)

    def find_delta(self, query, key, value, out):
        """Halves the interval of log(delta) until the reads are within 2% of those asked for."""
        low, high = math.log(1e-8), math.log(10)  # reads too much, reads too little
        for _ in range(12):
            delta = math.exp((low + high) / 2)
            attention = self.attention(query, key, delta)
            _append(attention, query[0], key[0], value[0], out)
            share = attention.keys_read
            if abs(share - self.reads) < 0.02 * self.reads:
                break
            low, high = (math.log(delta), high) if share > self.reads else (low, math.log(delta))
        return delta, attention

    def __call__(self, module, query, key, value, mask, **options):
        def own(name, q=query):
            """What transformers calls; flash attention looks into the config for its name."""
            module.config._attn_implementation_internal = name
            try:
                return ALL_ATTENTION_FUNCTIONS[name](module, q, key, value, mask, **options)
            finally:
                module.config._attn_implementation_internal = PROBE

        out = torch.empty_like(query[0].transpose(0, 1), memory_format=torch.contiguous_format)
        delta, attention = self.find_delta(query, key, value, out)
        self.deltas.append(delta)
        self.found.append(attention.keys_read)

        def prefill():
            attention.clear()
            _append(attention, query[0], key[0], value[0], out)

        last, row = [x[0, :, -1:] for x in (query, key, value)], torch.empty_like(out[:1])
        prefill_ms, read = call_ms(prefill), reads_of(attention)
        decode_ms = call_ms(lambda: _append(attention, *last, row), 20)
        more = reads_of(attention)
        self.found_decoding.append((more[0] - read[0]) / (more[1] - read[1]))
        times = {"sluice": (prefill_ms, decode_ms)}
        for name in self.own:
            times[name] = (call_ms(lambda: own(name)), call_ms(lambda: own(name, query[:, :, -1:]), 20))
        self.calls.append(times)
        return own("sdpa")


def reads_of(attention):
    """Keys that an attention has read, and those that dense attention reads, of one head."""
    dense = len(attention) * (len(attention) + 1) / 2
    return attention.keys_read * dense, dense


def make_model(args, device):
    torch.manual_seed(0)
    sizes = TINY if args.tiny else LLAMA
    config = transformers.LlamaConfig(**sizes, bos_token_id=0, eos_token_id=None, pad_token_id=1)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(args.sharpen)
    ranks = torch.arange(1, sizes["vocab_size"], dtype=torch.float64)
    ids = torch.multinomial(1 / ranks, args.tokens, replacement=True).to(device)[None] + 1
    return model, ids


def own_implementations(model, ids):
    """Those of transformers that run here."""
    found = ["sdpa"]
    for name in ("flash_attention_2", "flash_attention_3"):
        try:
            model.set_attn_implementation(name)
            with torch.no_grad():
                model(ids[:, :128], logits_to_keep=1)
            found.append(name)
        except Exception as error:  # a package that is missing says so in many types
            print(f"{name}: not here ({str(error).splitlines()[0][:100]})", file=sys.stderr)
    model.set_attn_implementation("sdpa")
    return found


def generate(model, ids, n, cache=None):
    more = {} if cache is None else {"past_key_values": cache}
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n,
                          do_sample=False, **more)


def time_generate(model, ids, args, own, enabled):
    """{name: (prefill s, decode s per token)}, and keys read by name and number of new tokens."""
    names = own + ["sluice", "sluice, its cache"]
    times = {(name, n): [] for name in names for n in (1, args.new_tokens)}
    reads = {}

    def run(name, n):
        ours = name.startswith("sluice")
        model.set_attn_implementation(hf.NAME if ours else name)
        cache = hf.Cache(model) if name == "sluice, its cache" else None
        taken = seconds(lambda: generate(model, ids, n, cache))
        if ours:
            reads[name, n] = statistics.mean(enabled.keys_read().values())
        return taken

    for name in names:
        run(name, 2)
    for _ in range(args.repeat):
        for name, n in times:
            times[name, n].append(run(name, n))
    medians = {key: statistics.median(each) for key, each in times.items()}
    found = {name: (medians[name, 1], (medians[name, args.new_tokens] - medians[name, 1])
                    / (args.new_tokens - 1)) for name in names}
    return found, reads


def survival(model_own, model_ours, calls_own, calls_ours):
    predicted, saved = model_own - calls_own + calls_ours, calls_own - calls_ours
    return {"calls_own": calls_own, "calls_sluice": calls_ours, "calls_speedup": calls_own / calls_ours,
            "predicted_speedup": model_own / predicted, "measured_speedup": model_own / model_ours,
            # What is not saved cannot survive.
            "survives": (model_own - model_ours) / saved if saved > 0.02 * model_own else None}


def report(args, found, probe, own, results):
    print(f"\n| attention | prefill of {args.tokens} tokens, s | decode, ms per token |\n| --- | --- | --- |")
    for name, (prefill, decode) in found.items():
        print(f"| {name} | {prefill:.3f} | {1000 * decode:.2f} |")
    print(f"\nkeys read by prefill: {statistics.mean(probe.found):.3f} of dense attention's (layers "
          f"{min(probe.found):.3f} to {max(probe.found):.3f}), by decoding "
          f"{statistics.mean(probe.found_decoding):.3f}; delta {min(probe.deltas):.2g} to "
          f"{max(probe.deltas):.2g}; query projections times {args.sharpen:g}, random weights")
    best = [min(own, key=lambda name: found[name][phase]) for phase in (0, 1)]
    print("\n| | transformers' best | calls alone, ms | sluice's, ms | speed-up of calls | predicted of the model "
          "| measured | survives |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    for phase, title in enumerate(("prefill", "decode")):
        total = {name: sum(layer[name][phase] for layer in probe.calls) / 1000 for name in own + ["sluice"]}
        row = survival(found[best[phase]][phase], found["sluice, its cache"][phase], total[best[phase]],
                       total["sluice"])
        results[title] = {"best": best[phase], "calls_s": total, **row}
        print(f"| {title} | {best[phase]} | {1000 * row['calls_own']:.1f} | {1000 * row['calls_sluice']:.1f} | "
              f"{row['calls_speedup']:.2f}x | {row['predicted_speedup']:.2f}x | {row['measured_speedup']:.2f}x | "
              f"{'-' if row['survives'] is None else format(row['survives'], '.0%')} |")


def main():
    args = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.tiny:
        sys.exit("python_cuda.py: torch has no CUDA device (hint: --tiny runs a small model on the CPU)")
    warnings.filterwarnings("error", message="sluice:")  # a fall-back would be timed as Sluice
    begin = time.perf_counter()
    model, ids = make_model(args, device)
    own = own_implementations(model, ids)
    stream = {"stream": torch.cuda.current_stream().cuda_stream} if device == "cuda" else {}
    probe = Probe(own, args.reads, sluice.AttentionDevice(device, "bf16", **stream),
                  model.config.max_position_embeddings)
    AttentionInterface.register(PROBE, probe)
    AttentionMaskInterface.register(PROBE, sdpa_mask)
    model.set_attn_implementation(PROBE)
    with torch.no_grad():
        model(ids, logits_to_keep=1)
    model.set_attn_implementation("sdpa")
    with hf.enable(model, delta=probe.deltas) as enabled:
        found, reads = time_generate(model, ids, args, own, enabled)
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, sluice {sluice.__version__}")
    results = {"tokens": args.tokens, "new_tokens": args.new_tokens, "sharpen": args.sharpen, "device": name,
               "deltas": probe.deltas, "prefill_reads": probe.found,
               "decode_reads": probe.found_decoding,
               "reads": {f"{key}, {n} new": share for (key, n), share in reads.items()},
               "seconds": {key: {"prefill": a, "decode_per_token": b} for key, (a, b) in found.items()}}
    report(args, found, probe, own, results)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
