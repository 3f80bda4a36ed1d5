#!/usr/bin/env python3
"""Times one layer of attention through sluice.hf's functions on the CPU: copies, Sluice, and torch's sdpa.

    python bench/python_attention.py [N_TOKENS]

Needs torch, transformers and the package sluice. Shapes are those of a layer of Llama 3 8B: 32 query heads, 8 key
heads, 128 numbers each. Keys are those of a random walk, so that neighbours are alike. Runs are interleaved;
medians of five, in milliseconds of this machine. Queries, keys and values lie head by head here, so all are copied,
and float16 is converted; the last column says what that adds to attention.
"""

import statistics
import sys
import time

import torch

import sluice
from sluice.hf._enable import _rows
from sluice.hf._layers import computed_in

N_HEADS, N_KV_HEADS, DIM = 32, 8, 128


def inputs(n, dtype):
    torch.manual_seed(0)
    query, value = torch.randn(N_HEADS, n, DIM), torch.randn(N_KV_HEADS, n, DIM)
    key = torch.randn(N_KV_HEADS, n, DIM).cumsum(1)
    key = key / key.norm(dim=-1, keepdim=True) * DIM**0.5
    return [x.to(dtype) for x in (query, key, value)]


def seconds(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def refine(rows):
    attention = sluice.Attention(n_heads=N_HEADS, n_kv_heads=N_KV_HEADS, head_dim=DIM, capacity=len(rows[0]),
                                 mode="refine", dtype="bf16" if rows[0].dtype == torch.bfloat16 else "f32")
    out = torch.empty_like(rows[0])
    attention.append_rows(*rows, out)
    return out


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    sluice.set_threads(torch.get_num_threads())
    print(f"| dtype | copy {n} tokens, ms | attend, ms | sdpa, ms | copies / attention |")
    print("| --- | --- | --- | --- | --- |")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        heads = inputs(n, dtype)
        rows = [_rows(x, computed_in(x)) for x in heads]
        out = refine(rows)
        actions = {
            "copy": lambda: ([_rows(x, computed_in(x)) for x in heads], out.to(dtype)),
            "attend": lambda: refine(rows),
            "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(
                *(x[None] for x in heads), is_causal=True, enable_gqa=True),
        }
        times = {name: [] for name in actions}
        for _ in range(5):
            for name, action in actions.items():
                times[name].append(seconds(action))
        ms = {name: 1000 * statistics.median(each) for name, each in times.items()}
        print(f"| {str(dtype)[6:]} | {ms['copy']:.1f} | {ms['attend']:.1f} | {ms['sdpa']:.1f} | "
              f"{ms['copy'] / ms['attend']:.1%} |")


if __name__ == "__main__":
    main()
