"""CTranslate2, which generates by itself: times are taken when its tokens come."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import ctranslate2

from engines import Generating, Stopwatch
from engines.ctranslate2_convert import token_name

weights = "int8 per row, from expanded"


def versions():
    return {"ctranslate2": importlib.metadata.version("ctranslate2")}


def converted(path):
    folder = pathlib.Path(f"{path}.ctranslate2")
    if not folder.exists():
        done = subprocess.run([sys.executable, "-m", "engines.ctranslate2_convert", path, folder],
                              cwd=pathlib.Path(__file__).parents[1], stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError("not converted: " + (done.stderr.splitlines() or ["no reason"])[-1])
    return folder


class Engine(Generating):
    def __init__(self, path, threads, context, variant):
        del context  # its cache grows
        folder = converted(path)
        self.vocab = len(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8")))
        self.generator = ctranslate2.Generator(str(folder), device="cpu", compute_type=variant,
                                               inter_threads=1, intra_threads=threads)

    def generate(self, tokens, n):
        """The n tokens that follow, and when each came, in ms."""
        watch, answer, times = Stopwatch(), [], []

        def take(step):
            times.append(watch.ms())
            answer.append(step.token_id)
            return False

        self.generator.generate_batch([[token_name(token) for token in tokens]], max_length=n,
                                      min_length=n, include_prompt_in_result=False, beam_size=1,
                                      callback=take)
        if len(answer) != n:
            raise RuntimeError(f"{len(answer)} tokens came, {n} were asked for")
        return answer, times
