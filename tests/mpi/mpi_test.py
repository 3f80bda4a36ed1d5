"""The program on several processes: the same figures on any number of them, and an end for all when one ends.

    mpi_test.py PROGRAM DEMO GOLDEN [unittest's arguments]

DEMO: the folder share/demo, GOLDEN: tests/golden. Exit status 77 (skipped) without mpirun or the module for MPI.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from rank_processes import left_after_waiting, pid_of_rank

# Most lists of these tests cannot be divided evenly by three.
RANKS = (1, 2, 3, 4) if os.environ.get("SLUICE_LONG_TESTS") else (1, 3)
# Open MPI refuses root and more processes than cores, unless it is told otherwise.
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
ENVIRONMENT = dict(os.environ, OMPI_MCA_mpi_yield_when_idle="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none")
SECONDS = 300  # of one run, on a machine that does much else
# What may differ from run to run: times, and what was typed.
TIMES = {"timestamp", "command_line", "seconds", "fresh_seconds", "n_ranks", "time", "auto"}


def letters():
    """A tokenizer of one token per character, with the vocabulary of the golden models and a mask."""
    characters = " \nabcdefghijklmnopqrstuvwxyz.,ABCDEFGHIJKLMNOPQRSTUVWXYZ01234"
    vocab = {"<unk>": 0, "[MASK]": 62, "<|endoftext|>": 63}
    vocab.update({c: i + 1 for i, c in enumerate(characters)})
    return {"version": "1.0", "added_tokens": [{"id": 63, "content": "<|endoftext|>", "special": True}],
            "normalizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated",
                              "invert": False},
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(x) for key, x in value.items() if key not in TIMES}
    return [without_times(x) for x in value] if isinstance(value, list) else value


class Mpi(unittest.TestCase):
    program = demo = golden = None

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-mpi-")
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)
        self.model, self.text = self.demo / "gpt2-nano", self.demo / "text.txt"

    def command(self, n_ranks, *words):
        return [*MPIRUN, "-n", str(n_ranks), self.program, *map(str, words)]

    def run_ranks(self, n_ranks, *words):
        return subprocess.run(self.command(n_ranks, *words), capture_output=True, text=True, timeout=SECONDS,
                              env=ENVIRONMENT, stdin=subprocess.DEVNULL)

    def complaints(self, ended):
        """The program's own lines; mpirun adds a paragraph about exit codes."""
        return [line for line in ended.stderr.splitlines() if line.startswith("sluice: ")]

    def results_of(self, n_ranks, *words, outputs=()):
        """results.json of a run, the bytes of other files that it writes, and what it prints."""
        folder = self.folder / str(n_ranks)
        folder.mkdir(exist_ok=True)
        written = [str(folder / name) for name in outputs]
        ended = self.run_ranks(n_ranks, *words, *(["-o", *written] if written else []), "-t", 1, "--quiet", "--json",
                               folder / "results.json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual([], [p.name for p in folder.iterdir() if "sluice" in p.name or p.name.endswith(".tmp")])
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        self.assertEqual(results["machine"]["n_ranks"], n_ranks)
        self.assertEqual(results["machine"]["threads"], 1)
        files = [pathlib.Path(name).read_bytes() for name in written]
        files = [without_times(json.loads(file)) if file.startswith(b"{") else file for file in files]
        return without_times(results), files, ended.stdout

    def golden_model(self, name):
        """A golden model with a tokenizer of letters, and a text of them."""
        model = self.folder / name
        shutil.copytree(self.golden / "models" / name, model)
        (model / "tokenizer.json").write_text(json.dumps(letters()), encoding="utf-8")
        text = self.folder / "letters.txt"
        text.write_text("the sea was calm, and nobody spoke of the storm. " * 18, encoding="utf-8")
        return ["-m", model, "-f", text]

    def expect_equal_on_all(self, *words, outputs=()):
        one = self.results_of(1, *words, outputs=outputs)
        for n_ranks in RANKS[1:]:
            with self.subTest(n_ranks=n_ranks):
                self.assertEqual(self.results_of(n_ranks, *words, outputs=outputs)[:2], one[:2])
        return one


class Equal(Mpi):
    def test_perplexity(self):
        # Nine windows and a shorter one, in batches of two.
        results, _, printed = self.expect_equal_on_all("eval", "-m", self.model, "-f", self.text, "-c", 256, "--batch", 2)
        self.assertGreater(results["metrics"]["n_tokens"], 4 * 256)
        self.assertEqual(printed.count("perplexity"), 1)

    def test_plans_against_dense(self):
        self.expect_equal_on_all("eval", "-m", self.model, "-f", self.text, "-c", 128, "--windows", 7, "--attention",
                                 "keys,refine", "--tau", "0.5", "--window", 16, "--predict", 4)

    def test_an_encoder(self):
        self.expect_equal_on_all("eval", *self.golden_model("bert"), "--attention", "keys", "--tau", "0.5")

    def test_analyze(self):
        # The random control is among the figures.
        self.expect_equal_on_all("analyze", "-m", self.model, "-f", self.text, "-c", 48, "--windows", 6, "--space",
                                 "residual,key", "--subspace", "--rank", 8)

    def test_calibrate(self):
        self.expect_equal_on_all("calibrate", *self.golden_model("llama-gqa-tied"), "-c", 64, "--windows", 6, "--rank", "4,8",
                                 "--selection", "normed,residual", "--running", "0.1", outputs=["bases.safetensors"])

    def test_tune(self):
        # By keys read, which are counted: times differ from run to run, and plans with them.
        results, _, _ = self.expect_equal_on_all(
            "tune", *self.golden_model("llama-gqa-tied"), "-c", 64, "--max-kl", "0.05", "--windows", 3, "--held-out", 3,
            "--objective", "reads", "--window", 8, "--segment", 16, "--page", 4, "--delta", "0.1,inf", "--no-needles",
            outputs=["plan.json"])
        self.assertIsNone(results["dense_because"])

    def test_the_profile_of_a_plan(self):
        plan = self.folder / "plan.json"
        made = subprocess.run([self.program, "tune", "-m", self.model, "-f", self.text, "-c", "64", "--max-kl", "0.5",
                               "--windows", "2", "--held-out", "2", "--attention", "keys", "--tau", "0.5", "--window", "8",
                               "--objective", "memory", "--no-needles", "--quiet", "-o", plan],
                              capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.expect_equal_on_all("analyze", "-m", self.model, "-f", self.text, "--plan", plan, "-c", 64, "--windows", 5)


class Ends(Mpi):
    def long_text(self):
        text = self.folder / "long.txt"
        text.write_text(self.text.read_text(encoding="utf-8") * 400, encoding="utf-8")
        return text

    def test_a_killed_rank_ends_all(self):
        results = self.folder / "results.json"
        process = subprocess.Popen(self.command(3, "eval", "-m", self.model, "-f", self.long_text(), "-c", 256, "-t", 1,
                                                "--json", results),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
                                   stdin=subprocess.DEVNULL)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        process.stdout.readline()  # the heading of the first window
        os.kill(pid_of_rank(1, self.folder), signal.SIGKILL)
        process.stdout.read()
        errors = process.stderr.read().decode()
        self.assertNotEqual(process.wait(timeout=SECONDS), 0)
        self.assertIn("rank 1", errors)
        self.assertEqual(left_after_waiting(self.folder), [])
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"long.txt"})

    def test_a_rank_that_fails_names_itself(self):
        words = ["eval", "-m", self.model, "-t", 1, "-c", 64, "--json", self.folder / "results.json", "-f"]
        missing = self.folder / "missing.txt"
        ended = subprocess.run([*self.command(1, *words, self.text), ":", *self.command(2, *words, missing)[len(MPIRUN):]],
                               capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT,
                               stdin=subprocess.DEVNULL)
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertEqual(len(self.complaints(ended)), 1, ended.stderr)
        self.assertRegex(self.complaints(ended)[0], r"^sluice: rank 1 of 3 \(.+\): .*missing\.txt")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_ranks_that_fail_alike_say_it_once(self):
        ended = self.run_ranks(3, "eval", "-m", self.model, "-f", self.folder / "missing.txt")
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(len(self.complaints(ended)), 1, ended.stderr)
        self.assertNotIn("rank", self.complaints(ended)[0])

    def test_wrong_usage_is_said_once(self):
        ended = self.run_ranks(2, "eval", "-m", self.model, "-f", self.text, "--windows", "many")
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(len(self.complaints(ended)), 1, ended.stderr)

    def test_other_commands_are_refused(self):
        ended = self.run_ranks(2, "inspect", "-m", self.model)
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(len(self.complaints(ended)), 1, ended.stderr)
        self.assertIn("eval, tune, analyze, calibrate and generate", self.complaints(ended)[0])
        self.assertEqual(self.run_ranks(1, "inspect", "-m", self.model).returncode, 0)

    def test_standard_input_is_refused(self):
        ended = self.run_ranks(2, "eval", "-m", self.model, "-f", "-")
        self.assertIn(ended.returncode, (1, 2))
        self.assertEqual(len(self.complaints(ended)), 1, ended.stderr)
        self.assertIn("standard input", self.complaints(ended)[0])

    def test_a_program_without_the_module_says_so_once(self):
        alone = self.folder / "bin" / "sluice"
        alone.parent.mkdir()
        shutil.copy(self.program, alone)
        ended = subprocess.run([*MPIRUN, "-n", "2", alone, "eval"], capture_output=True, text=True, timeout=SECONDS,
                               env=ENVIRONMENT, stdin=subprocess.DEVNULL)
        self.assertEqual(ended.returncode, 1)
        # mpirun ends the other ranks before they say it too, unless the machine is busy for seconds.
        self.assertGreaterEqual(len(self.complaints(ended)), 1, ended.stderr)
        for line in self.complaints(ended):
            self.assertIn("module for MPI", line)


if __name__ == "__main__":
    Mpi.program = sys.argv[1]
    Mpi.demo, Mpi.golden = (pathlib.Path(path) for path in sys.argv[2:4])
    module = list(pathlib.Path(Mpi.program).resolve().parent.parent.glob("lib*/**/libsluice_mpi.so"))
    if not module and os.environ.get("SLUICE_HAS_MPI") == "1":
        sys.exit("the module for MPI was built and is not there")
    if not shutil.which("mpirun") or not module:
        print("skipped: no mpirun, or a build without the module for MPI (scripts/install-deps test)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
