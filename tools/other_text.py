#!/usr/bin/env python3
"""Text of another kind than prose, made by a seed: `code` or `table`. Usage: other_text.py KIND SEED LINES"""

import random
import sys

NAMES = "count total index value row column limit offset buffer width node parent left right".split()
TYPES = "int float bool str list".split()


def code(rng):
    """One function of a few assignments, a loop and a condition."""
    args = rng.sample(NAMES, 3)
    lines = [f"def {rng.choice(NAMES)}_{rng.randrange(100)}({', '.join(f'{a}: {rng.choice(TYPES)}' for a in args)}):"]
    for _ in range(rng.randrange(2, 5)):
        a, b = rng.choice(args), rng.choice(args)
        kind = rng.randrange(3)
        if kind == 0:
            lines.append(f"    {a} = {b} {rng.choice('+-*/')} {rng.randrange(1000)}")
        elif kind == 1:
            lines += [f"    for i in range({rng.randrange(64)}):", f"        {a} += {b}[i]"]
        else:
            lines += [f"    if {a} > {b}:", f"        return {rng.choice(args)}"]
    return lines + [f"    return {rng.choice(args)}", ""]


def table(rng):
    """One row of numbers under the same columns."""
    return [" | ".join([f"{rng.choice(NAMES):8}"] + [f"{rng.uniform(0, 1000):8.2f}" for _ in range(5)])]


def main():
    kind, seed, n_lines = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    lines = []
    while len(lines) < n_lines:
        lines += {"code": code, "table": table}[kind](rng)
    print("\n".join(lines[:n_lines]))


main()
