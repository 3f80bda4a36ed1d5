"""Processes that answer requests: the engines, and sluice_bench."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def say(line):
    """To who watches the run."""
    print(line, file=sys.stderr, flush=True)


class Failed(Exception):
    """Why a worker did not start or did not answer."""


class Worker:
    """A process on given CPUs. Its standard error goes to a log."""

    def __init__(self, name, command, cpus, log):
        self.name = name
        environment = dict(os.environ, OMP_NUM_THREADS=str(len(cpus)))
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        try:
            self.started = self.read()
        except Failed:
            self.stop()
            raise

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):  # sluice_bench says first what machine it is on
                reply = json.loads(line)
                if "error" in reply:
                    raise Failed(reply["error"][:300])
                return reply
        raise Failed(f"it ended with status {self.process.wait()}")

    def ask(self, op, **more):
        try:
            self.process.stdin.write(json.dumps({"op": op, **more}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() then says how it ended
        return self.read()

    def stop(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def start_peer(name, path, context, cpus, log):
    return Worker(name, [sys.executable, HERE / "worker.py", name, path, len(cpus), context], cpus, log)


def start_ours(program, path, dtype, context, cpus, log):
    """sluice_bench with a case of kind requests."""
    with tempfile.TemporaryDirectory() as folder:
        case = pathlib.Path(folder) / "case.json"
        case.write_text(json.dumps({"name": "peers", "kind": "requests", "model": str(path),
                                    "dtype": dtype, "context": context}), encoding="utf-8")
        return Worker("sluice", [program, "--threads", len(cpus), case], cpus, log)
