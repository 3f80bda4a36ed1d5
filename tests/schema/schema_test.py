"""What every command writes with --json is valid by docs/results.schema.json.

    schema_test.py PROGRAM [unittest's arguments]
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "share/demo/gpt2-nano"
TEXT = ROOT / "share/demo/text.txt"
SCHEMA = json.loads((ROOT / "docs/results.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def problems(results):
    """Where results differ from the schema, in words; the innermost causes."""
    def causes(error):
        for inner in error.context or ():
            yield from causes(inner)
        if not error.context:
            yield f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    return [text for error in VALIDATOR.iter_errors(results) for text in causes(error)]


class Schema(unittest.TestCase):
    program = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="sluice-schema-")
        cls.short = cls.path("short.txt")
        pathlib.Path(cls.short).write_text(TEXT.read_text(encoding="utf-8")[:24000], encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def run_program(self, *words, epoch="1700000000"):
        environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True,
                              env=environment, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stderr}")

    def results(self, *words, model=True):
        """Of a command, found valid."""
        file = self.path("results.json")
        where = ["-m", MODEL] if model else []
        self.run_program(words[0], *where, *words[1:], "--json", file)
        found = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
        self.assertEqual(problems(found), [], words)
        self.assertEqual(found["timestamp"], "2023-11-14T22:13:20Z")
        self.assertEqual(found["command"], words[0])
        return found

    def test_the_schema_is_one(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def test_analyze(self):
        found = self.results("analyze", "-f", self.short, "-c", 64, "--windows", 2, "--tau", "0.3,0.5",
                             "--space", "normed,key", "--subspace", "--joint", "--rank", "8", "--running", "0.5")
        self.assertEqual(len(found["runs"]), 4)
        rows = found["runs"][0]["rows"]
        pairs = [(row["layer"], row["rule"]) for row in rows]
        self.assertEqual(len(pairs), len(set(pairs)), "a row for each layer and rule")
        self.assertEqual(len({layer for layer, _ in pairs}), found["model"]["n_layers"])
        heads = next(run for run in found["runs"] if run["space"] == "key")["heads"]
        self.assertEqual(len(heads), found["model"]["n_layers"] * found["model"]["n_kv_heads"])

    def test_eval(self):
        eval_ = ["eval", "-f", self.short, "-c", 256, "--windows", 1]
        found = self.results(*eval_)
        self.assertEqual([run["settings"]["attention"] for run in found["runs"]], ["dense"])
        self.assertEqual(found["runs"][0]["metrics"], found["metrics"])
        found = self.results(*eval_, "--attention", "keys,copy,paper", "--tau", "0.3,0.5",
                             "--window", 32, "--block", 32)
        self.assertEqual(len(found["runs"]), 6)
        for run in found["runs"]:
            kls = run["token_kl"]
            self.assertEqual(len(kls), len(found["window"]["tokens"]))
            self.assertIsNone(kls[0])
            self.assertAlmostEqual(sum(kls[1:]) / len(kls[1:]), run["metrics"]["kl_mean"], 4)
        self.results(*eval_, "--attention", "refine", "--delta", "0.1", "--window", 32,
                     "--segment", 64, "-n", 4)
        self.results(*eval_, "--attention", "keys", "--tau", "auto")
        self.results(*eval_, "--attention", "baseline:quest", "--keep", "0.2")

    def test_calibrate_and_linear_layers(self):
        bases = self.path("bases.safetensors")
        self.results("calibrate", "-f", self.short, "-c", 128, "--rank", "16", "--compare", "--running", "0.3",
                     "-o", bases)
        linear = ["--bases", bases, "--linear", "gsi", "--epsilon", "0.3"]
        self.results("eval", "-f", self.short, "-c", 128, "--windows", 1, *linear)
        self.results("generate", "-p", "The gate", "-n", 4, *linear)

    def test_tune_and_plans(self):
        plan = self.path("plan.json")
        self.results("tune", "-f", self.short, "-c", 96, "--max-kl", "0.5", "--objective", "memory",
                     "--attention", "keys", "--window", "32", "--tau", "0.85", "--far", "centroid",
                     "--windows", 1, "--held-out", 2, "--no-needles", "-o", plan)
        self.results("inspect", plan, model=False)
        found = self.results("analyze", "-f", self.short, "--plan", plan, "--windows", 1)
        self.assertIsNone(found["runs"][0]["tau"])
        found = self.results("generate", "-p", "The gate", "-n", 4, "--plan", plan)
        self.assertIn(found["settings"]["ran"], ("plan", "dense"))
        self.results("eval", "-f", self.short, "-c", 96, "--windows", 1, "--plan", plan)
        self.results("bench", "-f", self.short, "-c", 96, "-n", 2, "--repeat", 1, "--plan", plan)

    def test_generate(self):
        found = self.results("generate", "-p", "The gate", "-n", 8)
        self.assertEqual([run["prompt"] for run in found["runs"]], ["The gate"])
        self.results("generate", "-p", "The gate", "-n", 40, "--attention", "refine", "--audit", 4)
        prompts = self.path("prompts.jsonl")
        lines = [json.dumps({"prompt": text}) for text in ("The gate", "A river")]
        pathlib.Path(prompts).write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = self.results("generate", "-f", prompts, "-n", 4)
        self.assertEqual(len(found["runs"]), 2)

    def test_bench_needle_and_inspect(self):
        self.results("bench", "-f", self.short, "-c", 128, "-n", 4, "--repeat", 2, "--attention",
                     "keys", "--tau", "0.3")
        self.results("bench", "-c", 64, "-n", 4, "--repeat", 1)
        self.results("needle", "-f", self.short, "-c", 256, "--depths", 1, "--cases", 1,
                     "--attention", "keys", "--tau", "0.5")
        self.results("inspect")

    def test_demo(self):
        results = os.environ.get("SLUICE_DEMO_RESULTS")  # of the demo that cli_test ran
        if results is None:
            self.skipTest("SLUICE_DEMO_RESULTS names no results of the demo")
        found = json.loads(pathlib.Path(results).read_text(encoding="utf-8"))
        self.assertEqual(problems(found), [])
        commands = [part["command"] for part in found["parts"]]
        self.assertEqual(commands[:7], ["analyze", "analyze", "eval"] + 3 * ["generate"] + ["bench"])

    def test_other_results_are_refused(self):
        good = self.results("eval", "-f", self.short, "-c", 64, "--windows", 1)

        def damaged(change):
            bad = copy.deepcopy(good)
            change(bad)
            return problems(bad)
        self.assertTrue(damaged(lambda r: r.pop("timestamp")))
        self.assertTrue(damaged(lambda r: r.pop("runs")))
        self.assertTrue(damaged(lambda r: r.update(schema=1)))
        self.assertTrue(damaged(lambda r: r.update(command="evaluate")))
        self.assertTrue(damaged(lambda r: r.update(unknown=1)))
        self.assertTrue(damaged(lambda r: r.update(timestamp="2026-01-31 12:00")))
        self.assertTrue(damaged(lambda r: r["runs"][0].update(unknown=1)))
        self.assertTrue(damaged(lambda r: r["runs"][0]["metrics"].update(ppl="21")))
        self.assertTrue(damaged(lambda r: r["machine"].update(threads=0)))


if __name__ == "__main__":
    Schema.program = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
