"""sluice generate under mpirun: the texts of one process, and one message where a rank fails.

  tests/split/split_test.py SLUICE MODEL
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

SLUICE, MODEL = sys.argv[1:3]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PROMPT = "Once upon a time there was a ship that sailed to the north and"


def run(n_ranks, *arguments, stdin=""):
    """n_ranks of 0: without mpirun."""
    launcher = ["mpirun", "--oversubscribe", "-n", str(n_ranks)] if n_ranks else []
    return subprocess.run([*launcher, SLUICE, "generate", "-t", "1", *arguments], input=stdin,
                          capture_output=True, text=True, timeout=120, env=ENVIRONMENT)


def said(result):
    """Lines of the program, without mpirun's own."""
    return [line for line in result.stderr.splitlines() if line.startswith("sluice:")]


class Split(unittest.TestCase):
    def expect_same(self, *arguments, stdin=""):
        expected = run(0, *arguments, stdin=stdin)
        self.assertEqual(expected.returncode, 0, expected.stderr)
        for n_ranks in (2, 3, 4):
            got = run(n_ranks, *arguments, stdin=stdin)
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assertEqual(got.stdout, expected.stdout)

    def test_texts_are_those_of_one_process(self):
        for mode in ([], ["--attention", "keys", "--window", "16"],
                     ["--attention", "refine", "--segment", "32"]):
            self.expect_same("-m", MODEL, "-p", PROMPT, "-n", "24", *mode)

    def test_batches_are_those_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            prompts = pathlib.Path(folder) / "prompts.jsonl"
            prompts.write_text("".join(json.dumps({"prompt": PROMPT[:n]}) + "\n"
                                       for n in range(4, 40, 4)))
            self.expect_same("-m", MODEL, "-f", str(prompts), "--batch", "5", "-n", "12")

    def test_a_prompt_from_a_pipe_is_refused(self):
        result = run(2, "-m", MODEL, "-n", "8", stdin=PROMPT)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(said(result)), 1)

    def test_the_largest_share_of_weights_falls_with_the_ranks(self):
        largest = []
        for n_ranks in (2, 4):
            rows = [line.split("|") for line in
                    run(n_ranks, "-m", MODEL, "-p", PROMPT, "-n", "4").stderr.splitlines()
                    if line.startswith("|")][2:]
            self.assertEqual(len(rows), n_ranks)
            largest.append(max(float(row[3]) for row in rows))
        self.assertLess(largest[1], 0.6 * largest[0])

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
