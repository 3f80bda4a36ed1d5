"""One engine with one model, in a process of its own that answers requests.

    python worker.py ENGINE MODEL.gguf THREADS CONTEXT

Requests and answers are those of bench/requests.h, a JSON object a line, without `read`.
"""

import importlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from engines import ENGINES  # noqa: E402  pylint: disable=wrong-import-position


def peak_bytes():
    for line in pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


def answer(engine, request):
    if request["op"] == "prefill":
        return {"ms": engine.prefill(request["n"])}
    if request["op"] == "decode":
        return {"ms": engine.decode(request["depth"], request["n"])}
    if request["op"] == "greedy":
        return {"tokens": engine.greedy(request["tokens"], request["n"])}
    if request["op"] == "memory":
        return {"peak_bytes": peak_bytes()}
    raise ValueError(f"there is no op {request['op']}")


def main():
    # Libraries print; answers alone go to standard output.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(line):
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    name, path, threads, context = sys.argv[1:]
    _, module, variant = ENGINES[name]
    try:
        code = importlib.import_module(f"engines.{module}")
        engine = code.Engine(path, int(threads), int(context), variant)
        say({"ready": True, "versions": code.versions(), "weights": code.weights})
    except Exception as error:  # pylint: disable=broad-except  # whatever it is, it is the reason
        say({"error": " ".join(str(error).split()) or type(error).__name__})
        return
    for line in sys.stdin:
        try:
            say(answer(engine, json.loads(line)))
        except Exception as error:  # pylint: disable=broad-except
            say({"error": " ".join(str(error).split()) or type(error).__name__})


if __name__ == "__main__":
    main()
