"""sluice generate under mpirun: the texts of one process, and one message where a rank fails.

  tests/split/split_test.py SLUICE MODEL
"""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from rank_processes import left_after_waiting, pid_of_rank

SLUICE, MODEL = sys.argv[1:3]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1"}
PROMPT = "Once upon a time there was a ship that sailed to the north and"


def launched(n_ranks, *arguments):
    """n_ranks of 0: without mpirun."""
    launcher = ["mpirun", "--oversubscribe", "-n", str(n_ranks)] if n_ranks else []
    return [*launcher, SLUICE, "generate", "-t", "1", *arguments]


def run(n_ranks, *arguments, stdin=""):
    return subprocess.run(launched(n_ranks, *arguments), input=stdin, capture_output=True, text=True,
                          timeout=120, env=ENVIRONMENT)


def said(result):
    """Lines of the program, without mpirun's own."""
    return [line for line in result.stderr.splitlines() if line.startswith("sluice:")]


def ranks_of(result):
    """Rows of the table of ranks."""
    return [line.split("|") for line in result.stderr.splitlines() if line.startswith("|")][2:]


MODES = ([], ["--attention", "keys", "--window", "16"], ["--attention", "refine", "--segment", "32"])


class Split(unittest.TestCase):
    def expect_same(self, *arguments, numbers=(2, 3, 4), split=()):
        expected = run(0, *arguments)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        for n_ranks in numbers:
            got = run(n_ranks, *arguments, *split)
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assertEqual(got.stdout, expected.stdout)

    def test_texts_are_those_of_one_process(self):
        for mode in MODES:
            self.expect_same("-m", MODEL, "-p", PROMPT, "-n", "24", *mode)

    def test_texts_of_heads_on_ranks_are_those_of_one_process(self):
        for mode in MODES:
            self.expect_same("-m", MODEL, "-p", PROMPT, "-n", "24", *mode, numbers=(2, 3),
                             split=("--split", "tensor"))

    def test_batches_are_those_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts = pathlib.Path(folder) / "prompts.jsonl"
            prompts.write_text("".join(json.dumps({"prompt": PROMPT[:n]}) + "\n"
                                       for n in range(4, 40, 4)))
            for numbers, split in (((2, 3, 4), ()), ((2, 3), ("--split", "tensor"))):
                self.expect_same("-m", MODEL, "-f", str(prompts), "--batch", "5", "-n", "12",
                                 numbers=numbers, split=split)

    def test_a_prompt_from_a_pipe_is_refused(self):
        result = run(2, "-m", MODEL, "-n", "8", stdin=PROMPT)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(said(result)), 1)

    def test_the_largest_share_of_weights_falls_with_the_ranks(self):
        largest = []
        for n_ranks in (2, 4):
            rows = ranks_of(run(n_ranks, "-m", MODEL, "-p", PROMPT, "-n", "4"))
            self.assertEqual(len(rows), n_ranks)
            largest.append(max(float(row[3]) for row in rows))
        self.assertLess(largest[1], 0.6 * largest[0])

    def test_ranks_of_equal_heads_have_equal_shares(self):
        rows = ranks_of(run(3, "-m", MODEL, "-p", PROMPT, "-n", "4", "--split", "tensor"))
        self.assertEqual([row[2].strip() for row in rows], ["0 to 0", "1 to 1", "2 to 2"])
        weights = [float(row[3]) for row in rows]
        self.assertLess(max(weights), 1.02 * min(weights))

    def test_more_ranks_than_key_heads_are_refused(self):
        result = run(4, "-m", MODEL, "-p", PROMPT, "--split", "tensor")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(said(result), ["sluice: 4 ranks cannot share the 3 key heads of this model "
                                        "(hint: mpirun -n 3 or less, or --split pipeline)"])

    def test_a_killed_rank_leaves_no_process(self):
        for split in ("pipeline", "tensor"):
            with tempfile.TemporaryDirectory() as folder:
                prompt = pathlib.Path(folder) / "prompt.txt"  # in the command line of every rank
                prompt.write_text(PROMPT)
                process = subprocess.Popen(
                    launched(2, "-m", MODEL, "-f", str(prompt), "-n", "1900", "--ignore-eos",
                             "--split", split),
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                    env=ENVIRONMENT)
                with process.stdout:
                    process.stdout.read(1)  # it generates
                    os.kill(pid_of_rank(1, folder), signal.SIGKILL)
                    process.stdout.read()
                self.assertNotEqual(process.wait(timeout=120), 0)
                self.assertEqual(left_after_waiting(folder), [])

    def test_an_error_of_all_ranks_is_said_once(self):
        result = run(3, "-m", "/nowhere", "-p", PROMPT)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(said(result), ["sluice: /nowhere: no such file or folder (hint: -m takes "
                                        "a Hugging Face model folder or a .gguf file)"])

    def test_wrong_usage_is_said_once(self):
        result = run(2, "-m", MODEL, "-p", PROMPT, "--attention", "keys", "--audit", "4")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(len(said(result)), 1)
        self.assertEqual(run(0, "-m", MODEL, "-p", PROMPT, "--split", "auto").returncode, 2)

    def test_a_rank_that_fails_alone_ends_all_and_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            shutil.copytree(MODEL, model)
            damage_last_norm(model / "model.safetensors")
            result = run(2, "-m", str(model), "-p", PROMPT)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(len(said(result)), 1)
            self.assertIn("rank 1 of 2", said(result)[0])
            self.assertIn("not finite", said(result)[0])


def damage_last_norm(path):
    """Only the last rank reads it."""
    data = bytearray(path.read_bytes())
    n_header = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n_header])
    tensor = next(value for name, value in header.items() if name.endswith("ln_f.weight"))
    begin, end = (8 + n_header + offset for offset in tensor["data_offsets"])
    data[begin:end] = b"\xff" * (end - begin)  # nan in every float type
    path.write_bytes(data)


if __name__ == "__main__":
    if shutil.which("mpirun") is None:
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
