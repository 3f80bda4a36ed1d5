"""Engines that are compared, one module each.

A module has `versions()`, the packages it runs as {name: version}, `weights`, in words what it keeps
of a GGUF file, and `Engine(path, threads, context, variant)` with

    prefill(n)         ms of n tokens into an empty cache, and the scores after the last
    decode(depth, n)   ms of one token of n, after depth others
    greedy(tokens, n)  the n likeliest tokens after these, one after another

The tokens that are timed are benchmark_tokens(), as those of sluice_bench are. An engine that
generates by itself decodes its own.
"""

import time


def benchmark_tokens(n, vocab):
    """The tokens of every timed sequence: bench/timed_model.cpp has the same."""
    return [i * 7919 % vocab for i in range(n)]


class Stopwatch:
    """Milliseconds since it was made."""

    def __init__(self):
        self.start = time.perf_counter()

    def ms(self):
        return 1e3 * (time.perf_counter() - self.start)


# What can be measured, in the order of the tables: the pins it needs, its module, and its variant.
ENGINES = {
    "llama.cpp": ("llama.cpp", "llama_cpp_engine", "plain"),
    "llama.cpp, flash attention": ("llama.cpp", "llama_cpp_engine", "flash"),
    "PyTorch bf16": ("pytorch", "pytorch_engine", "bfloat16"),
    "CTranslate2 int8": ("ctranslate2", "ctranslate2_engine", "int8"),
    "OpenVINO": ("openvino", "openvino_engine", "default"),
}
