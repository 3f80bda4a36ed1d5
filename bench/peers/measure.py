"""Runs engines in alternation on the same weights and threads, and compares what they answer."""

import pathlib
import time

import workers
from engines import ENGINES, benchmark_tokens
from workers import say

OURS = "sluice"
PAUSE_S = 0.3  # threads of the engine before have stopped spinning by then: Clang's OpenMP spins for 0.2 s
# A peer whose first sample takes more than this many times the fastest engine's is far from being the
# best one: it keeps that sample and is not asked again.
FAR_BEHIND = 4
# Prompts that are continued by one token each. Activations rounded to 8 bits in some twenty layers
# move a score by about 3% of the scores' deviation, and the difference of two by 1.4 times as much.
# MIN_MARGIN is three times that, and some: where our likeliest token leads by less, rounding may
# change it and the prompt does not count. Where it leads by more, a tenth of the tokens may still
# differ. Engines that compute different things agree in one of the vocabulary.
N_PROMPTS, LONGEST_PROMPT = 32, 48
MIN_MARGIN, MIN_AGREEMENT, MIN_DECIDED = 0.15, 0.9, 8
N_GREEDY = 16
PROMPT = ("The lighthouse stood at the end of a long spit of rock, and every evening the keeper climbed "
          "its stairs with a can of oil, trimmed the wick, and lit the lamp, so that the ships which "
          "came up the coast from the south would know where the harbour was and stay clear of the "
          "sands that lay under the water to the west of it.")


def prompt_of(path, model):
    """The tokens of a fixed text; of a random model, whose vocabulary has no words, any."""
    import llama_cpp  # pylint: disable=import-outside-toplevel  # the page is tested without it

    vocabulary = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    if model["random"]:
        return benchmark_tokens(LONGEST_PROMPT, vocabulary.n_vocab())
    tokens = vocabulary.tokenize(PROMPT.encode(), add_bos=False)
    if len(tokens) < LONGEST_PROMPT:
        raise RuntimeError(f"{path}: the text of the comparison has {len(tokens)} tokens only")
    return tokens[:LONGEST_PROMPT]


class Comparison:
    """One file on one number of threads: the workers and what they measured."""

    def __init__(self, settings, path, model, n_threads, cpus, log):
        self.settings, self.path, self.model = settings, path, model
        self.n_threads, self.cpus = n_threads, cpus[:n_threads]
        self.context = min(model["context"], settings.capacity())
        self.workers, self.failed = [], []
        self.log = log

    def start(self, peers):
        say(f"{self.path.name}, {self.n_threads} thread(s)")
        self.workers.append(workers.start_ours(self.settings.program, self.path, self.settings.dtype,
                                               self.context, self.cpus, self.log))
        for name in peers:
            try:
                self.workers.append(
                    workers.start_peer(name, self.path, self.context, self.cpus, self.log))
            except workers.Failed as error:
                self.drop(name, error)

    def drop(self, name, error):
        say(f"  {name} is left out: {error}")
        self.failed.append({"model": self.label(), "threads": self.n_threads, "engine": name,
                            "reason": str(error)})
        for worker in [worker for worker in self.workers if worker.name == name]:
            self.workers.remove(worker)
            worker.stop()

    def stop(self):
        for worker in self.workers:
            worker.stop()

    def label(self):
        return f"{self.model['name']} {self.model['format']}"

    def versions(self):
        return {worker.name: {"versions": worker.started["versions"],
                              "weights": worker.started["weights"]}
                for worker in self.workers if worker.name != OURS}

    def ask(self, worker, op, **more):
        """An answer, or nothing where the engine failed; ours may not."""
        try:
            return worker.ask(op, **more)
        except workers.Failed as error:
            if worker.name == OURS:
                raise
            self.drop(worker.name, error)
            return None

    def agreement(self, prompt):
        """What each engine takes for likeliest after prompts, against ours."""
        found = {}
        for worker in list(self.workers):
            say(f"  outputs of {worker.name}")
            first = LONGEST_PROMPT - N_PROMPTS + 1
            replies = [self.ask(worker, "greedy", tokens=prompt[:n], n=1)
                       for n in range(first, LONGEST_PROMPT + 1) if worker in self.workers]
            text = self.ask(worker, "greedy", tokens=prompt, n=N_GREEDY) if None not in replies else None
            if text is not None:
                found[worker.name] = ([reply["tokens"][0] for reply in replies], text["tokens"])
            if worker.name == OURS:
                margins = [reply["margins"][0] for reply in replies]
        return [agreement_of(name, answers, found[OURS], margins) |
                {"model": self.label(), "threads": self.n_threads}
                for name, answers in found.items() if name != OURS]

    def memory(self):
        """The peak of ours, before anything but the model was read."""
        ours = self.workers[0]
        if self.settings.prefill:
            ours.ask("prefill", n=max(self.settings.prefill))
        for depth in self.settings.decode:
            ours.ask("decode", depth=depth, n=self.settings.predict)
        return ours.ask("memory") | {"model": self.label(), "threads": self.n_threads,
                                     "n_tokens": self.context}

    def row(self, test, n):
        """Samples of every engine at one length, interleaved, and of a plain read of as many bytes as
        a decode step must read."""
        request = ({"n": n} if test == "prefill" else {"depth": n, "n": self.settings.predict})
        read_bytes = self.model["read_bytes"]
        if test == "decode":
            read_bytes += self.model["cache_bytes_per_token"] * (n + self.settings.predict // 2)
        samples = {worker.name: [] for worker in self.workers}
        warm, read_ms = {}, []
        for index in range(-1, self.settings.samples):  # -1 warms up
            for worker in list(self.workers):
                if is_far_behind(worker.name, warm):
                    continue
                time.sleep(PAUSE_S)
                reply = self.ask(worker, test, **request)
                if reply is None:
                    continue
                if index < 0:
                    warm[worker.name] = reply["ms"]
                else:
                    samples[worker.name].append(reply["ms"])
            if test == "decode":
                reply = self.workers[0].ask("read", bytes=read_bytes)
                if index >= 0:
                    read_ms.append(reply["ms"])
        engines = [{"engine": name, "samples_ms": samples[name] or [ms], "warm_up_alone": not samples[name]}
                   for name, ms in warm.items()]
        for engine in engines:
            say(f"  {test} {n:5d} {engine['engine']:28s} {min(engine['samples_ms']):10.2f} ms at best")
        return {"model": self.label(), "threads": self.n_threads, "test": test, "n_tokens": n,
                "engines": engines, "read_bytes": read_bytes, "read_samples_ms": read_ms}


def is_far_behind(name, warm):
    """Whether a first sample rules an engine out; warm: {engine: ms}."""
    return name != OURS and name in warm and warm[name] > FAR_BEHIND * min(warm.values())


def agreement_of(name, answers, ours, margins):
    """answers, ours: (the likeliest token of each prompt, the tokens of the greedy text); margins: of
    ours for each prompt."""
    alike = [a == b for a, b in zip(answers[0], ours[0])]
    decided = [same for same, margin in zip(alike, margins) if margin >= MIN_MARGIN]
    match = next((i for i, (a, b) in enumerate(zip(answers[1], ours[1])) if a != b), len(ours[1]))
    return {"engine": name, "n_prompts": len(alike), "top1_agreement": sum(alike) / len(alike),
            "n_decided": len(decided), "n_decided_alike": sum(decided),
            "n_greedy": len(ours[1]), "greedy_match_tokens": match,
            "agrees": len(decided) >= MIN_DECIDED and sum(decided) >= MIN_AGREEMENT * len(decided)}


class Settings:
    """What is measured, as the options say."""

    def __init__(self, options):
        self.program = pathlib.Path(options.sluice).resolve()
        self.dtype = options.dtype
        self.prefill, self.decode = options.prefill, options.decode
        self.predict, self.samples, self.threads = options.predict, options.samples, options.threads

    def capacity(self):
        return max([1, LONGEST_PROMPT + N_GREEDY, *self.prefill,
                    *(depth + self.predict for depth in self.decode)])

    def as_json(self):
        return {"dtype": self.dtype, "prefill": self.prefill, "decode": self.decode,
                "predict": self.predict, "samples": self.samples, "threads": self.threads}


def compare(settings, models, peers, cpus, log, results):
    """Adds rows, agreement, memory and failures of every file and number of threads to results."""
    for path, model in models:
        prompt = prompt_of(path, model)
        for n_threads in settings.threads:
            comparison = Comparison(settings, path, model, n_threads, cpus, log)
            try:
                comparison.start([name for name in ENGINES if ENGINES[name][0] in peers])
                results["memory"].append(comparison.memory())
                results["sluice_version"] = comparison.workers[0].started["sluice_version"]
                results["engines"] |= comparison.versions()
                results["agreement"] += comparison.agreement(prompt)
                for test, lengths in (("prefill", settings.prefill), ("decode", settings.decode)):
                    for n in lengths:
                        results["rows"].append(comparison.row(test, n))
            finally:
                comparison.stop()
                results["failed"] += comparison.failed
