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


class Stepping:
    """An engine that is fed token by token: it has vocab, known (tokens of the cache that are
    benchmark tokens), truncate(n) and read(tokens)."""

    def prefill(self, n):
        tokens = benchmark_tokens(n, self.vocab)
        self.truncate(0)
        watch = Stopwatch()
        self.read(tokens)
        ms = watch.ms()
        self.known = n
        return ms

    def decode(self, depth, n):
        tokens = benchmark_tokens(depth + n, self.vocab)
        self.truncate(min(self.known, depth))
        if self.known < depth:
            self.read(tokens[self.known:depth])
        watch = Stopwatch()
        for token in tokens[depth:]:
            self.read([token])
        ms = watch.ms() / n
        self.known = depth + n
        return ms


class Generating:
    """An engine that generates by itself: it has vocab, and generate(tokens, n), the n tokens that
    follow and when each came, in ms."""

    def prefill(self, n):
        return self.generate(benchmark_tokens(n, self.vocab), 1)[1][0]

    def decode(self, depth, n):
        # The first token comes with the prompt. An empty context has one token here.
        times = self.generate(benchmark_tokens(max(depth, 1), self.vocab), n + 1)[1]
        return (times[-1] - times[0]) / n

    def greedy(self, tokens, n):
        return self.generate(tokens, n)[0]
