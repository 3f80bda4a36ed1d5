"""Tests of bench/peers: its figures, its tables and page, and requests to workers.

    peers_test.py
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
sys.path.insert(0, str(PEERS))
# pylint: disable=wrong-import-position
import figures  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import tables  # noqa: E402
import workers  # noqa: E402
from engines import ENGINES, benchmark_tokens  # noqa: E402


def engine(name, samples, warm_up_alone=False):
    return {"engine": name, "samples_ms": samples, "warm_up_alone": warm_up_alone}


def agreed(name, agrees=True):
    return {"model": "Tiny Q4_0", "threads": 2, "engine": name, "n_prompts": 32, "n_greedy": 16,
            "n_decided": 20, "n_decided_alike": 20 if agrees else 3,
            "top1_agreement": 0.9375 if agrees else 0.25, "greedy_match_tokens": 7, "agrees": agrees}


# Made up: nothing was measured.
RESULTS = {
    "schema": 1, "command": "peers", "command_line": "bench/peers/run tiny.gguf", "sluice_version": "0.0",
    "machine": {"cpu": "An abacus", "cores": 2, "architecture": "wood", "system": "Table 1",
                "memory_bytes": 8 << 30},
    "settings": {"dtype": "bf16", "prefill": [128], "decode": [512], "predict": 32, "samples": 3,
                 "threads": [2]},
    "skipped": {"openvino": "no wheel"},
    "engines": {"slow": {"versions": {"slow": "1.2"}, "weights": "as stored"},
                "quick": {"versions": {"quick": "3"}, "weights": "expanded to bf16"},
                "wrong": {"versions": {"wrong": "4"}, "weights": "as stored"}},
    "models": [{"name": "Tiny", "format": "Q4_0", "made": "quantised from F16", "types": ["Q4_0", "Q6_K"],
                "file_bytes": 100_000_000}],
    "rows": [
        {"model": "Tiny Q4_0", "threads": 2, "test": "prefill", "n_tokens": 128, "read_bytes": 90_000_000,
         "read_samples_ms": [],
         "engines": [engine("sluice", [100.0, 100.0, 100.0]), engine("quick", [150.0, 160.0, 300.0]),
                     engine("slow", [900.0], True)]},
        {"model": "Tiny Q4_0", "threads": 2, "test": "decode", "n_tokens": 512, "read_bytes": 90_000_000,
         "read_samples_ms": [3.0, 3.0, 3.0],
         "engines": [engine("sluice", [4.0, 4.0, 5.0]), engine("quick", [5.0, 5.0, 5.0]),
                     engine("slow", [6.0, 6.0, 6.0]), engine("wrong", [1.0, 1.0, 1.0])]}],
    "agreement": [agreed("slow"), agreed("quick"), agreed("wrong", False)],
    "memory": [{"model": "Tiny Q4_0", "threads": 2, "peak_bytes": 142_000_000, "file_bytes": 100_000_000,
                "cache_bytes": 26_000_000}],
    "failed": [{"model": "Tiny Q4_0", "threads": n, "engine": "odd", "reason": "it fell over"}
               for n in (1, 2)],
}


def cells(text):
    """The rows of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


class Figures(unittest.TestCase):
    def test_spread_is_of_the_middle_half(self):
        self.assertAlmostEqual(figures.spread([1, 2, 3, 4, 5]), 2 / 3)
        self.assertEqual(figures.spread([10, 10, 10, 10, 50]), 0)
        self.assertIsNone(figures.spread([1, 9]))

    def test_spreads_beyond_a_tenth_are_flagged(self):
        self.assertFalse(figures.is_flagged([100, 105, 110]))
        self.assertTrue(figures.is_flagged([100, 115, 130]))

    def test_ratios_are_of_the_same_round(self):
        self.assertEqual(figures.ratio([2, 9, 4], [1, 3, 4]), (2, 1, 3))

    def test_one_cpu_of_each_core_is_taken(self):
        siblings = {0: {0, 2}, 1: {1, 3}, 2: {0, 2}, 3: {1, 3}}
        self.assertEqual(machine.first_siblings([0, 1, 2, 3], siblings.get), [0, 1])
        self.assertEqual(machine.first_siblings([1, 2, 3], siblings.get), [1, 2])
        self.assertEqual(machine.parse_list("0-2,5\n"), {0, 1, 2, 5})

    def test_the_processor_has_the_name_that_lscpu_gives(self):
        self.assertEqual(machine.model_name("Vendor ID:  ARM\n  Model name:  Neoverse-V1\n"), "Neoverse-V1")
        self.assertIsNone(machine.model_name("Vendor ID:  ARM\n"))
        self.assertTrue(machine.processor())

    def test_tokens_are_those_of_sluice_bench(self):
        source = (ROOT / "bench" / "timed_model.cpp").read_text(encoding="utf-8")
        self.assertIn("i * 7919 % vocab", source)
        self.assertEqual(benchmark_tokens(4, 10000), [0, 7919, 5838, 3757])


class Agreement(unittest.TestCase):
    OURS = (list(range(20)), [1, 2, 3])

    def test_prompts_that_are_near_ties_do_not_count(self):
        margins = [0.5] * 10 + [0.01] * 10
        answers = (list(range(10)) + [99] * 10, [1, 2, 9])
        found = measure.agreement_of("it", answers, self.OURS, margins)
        self.assertTrue(found["agrees"])
        self.assertEqual((found["n_decided"], found["n_decided_alike"], found["top1_agreement"],
                          found["greedy_match_tokens"]), (10, 10, 0.5, 2))

    def test_one_decided_token_in_ten_may_differ_and_no_more(self):
        for wrong, agrees in ((2, True), (3, False)):
            answers = ([99] * wrong + list(range(wrong, 20)), [1, 2, 3])
            found = measure.agreement_of("it", answers, self.OURS, [0.5] * 20)
            self.assertEqual(found["agrees"], agrees, wrong)

    def test_too_few_decided_prompts_show_nothing(self):
        found = measure.agreement_of("it", self.OURS, self.OURS, [0.5] * 7 + [0.0] * 13)
        self.assertFalse(found["agrees"])

    def test_an_engine_far_behind_is_sampled_once(self):
        warm = {"sluice": 10.0, "near": 39.0, "far": 41.0}
        self.assertFalse(measure.is_far_behind("near", warm))
        self.assertTrue(measure.is_far_behind("far", warm))
        self.assertFalse(measure.is_far_behind("sluice", {"sluice": 100.0, "near": 1.0}))


class Tables(unittest.TestCase):
    def setUp(self):
        self.results = copy.deepcopy(RESULTS)
        self.made = tables.all_tables(self.results)

    def test_decode_compares_with_the_fastest_peer_that_agrees(self):
        self.assertEqual(cells(self.made["peers-decode"]), [
            ["Tiny Q4_0", "2", "512", "250.0 (spread 12%)", "200.0", "quick", "1.25 (1.00-1.25)",
             "75% of 30.0 GB/s"]])

    def test_prefill_has_the_rate_of_all_its_tokens(self):
        self.assertEqual(cells(self.made["peers-prefill"]), [
            ["Tiny Q4_0", "2", "128", "1280.0", "800.0 (spread 47%)", "quick", "1.60 (1.50-3.00)"]])

    def test_every_engine_is_listed_with_what_is_wrong_with_it(self):
        first, second = cells(self.made["peers-all"])
        self.assertEqual(first[2:], ["pp128", "1280.0", "142.2 (one sample)", "800.0 (spread 47%)", "-"])
        self.assertEqual(second[2:], ["tg@512", "250.0 (spread 12%)", "166.7", "200.0",
                                      "1000.0 (does not agree)"])

    def test_peers_that_were_not_compared_do_not_count(self):
        self.results["agreement"] = [agreed("wrong", False)]
        self.assertEqual(cells(tables.all_tables(self.results)["peers-decode"])[0][4:7],
                         ["-", "none agrees", "-"])

    def test_memory_is_against_its_bound(self):
        self.assertEqual(cells(self.made["peers-memory"]),
                         [["Tiny Q4_0", "2", "100", "26", "142", "71%"]])

    def test_who_is_missing_is_named_once_with_the_reason(self):
        lines = self.made["peers-setting"].splitlines()
        self.assertIn("- openvino cannot be had here: no wheel", lines)
        self.assertIn("- odd is left out of Tiny Q4_0, 1 threads; Tiny Q4_0, 2 threads: it fell over", lines)
        self.assertIn("- slow: slow 1.2; weights as stored.", lines)

    def test_runs_of_one_machine_make_one_page(self):
        other = copy.deepcopy(RESULTS)
        other["command_line"] += " --threads 1"
        for row in other["rows"]:
            row["threads"] = 1
        together = tables.joined([RESULTS, other])
        self.assertEqual([row["threads"] for row in together["rows"]], [2, 2, 1, 1])
        self.assertEqual(together["models"], RESULTS["models"])
        self.assertEqual(tables.setting(together).split("\n")[:2],
                         ["    $ bench/peers/run tiny.gguf", "    $ bench/peers/run tiny.gguf --threads 1"])
        with self.assertRaisesRegex(tables.Refused, "the same row"):
            tables.joined([RESULTS, RESULTS])
        other["models"][0]["file_bytes"] += 1
        with self.assertRaisesRegex(tables.Refused, "is another file"):
            tables.joined([RESULTS, other])
        other["settings"]["samples"] = 7
        with self.assertRaisesRegex(tables.Refused, "differ in samples"):
            tables.joined([RESULTS, other])
        other["machine"]["cpu"] = "A slide rule"
        with self.assertRaisesRegex(tables.Refused, "differ in machine"):
            tables.joined([RESULTS, other])

    def test_rows_have_as_many_cells_as_their_head(self):
        for name, text in self.made.items():
            if name == "peers-setting":
                continue
            self.assertEqual(len({line.count("|") for line in text.splitlines()}), 1, name)


class Page(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = pathlib.Path(folder.name) / "results.json"
        self.page = pathlib.Path(folder.name) / "page.md"
        self.page.write_text((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"),
                             encoding="utf-8")

    def run_page(self, results):
        text = results if isinstance(results, str) else json.dumps(results)
        self.results.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, PEERS / "page", self.results, self.page],
                              capture_output=True, text=True, check=False)

    def test_the_document_has_a_place_for_every_table(self):
        done = self.run_page(RESULTS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        after = self.page.read_text(encoding="utf-8")
        for text in tables.all_tables(RESULTS).values():
            self.assertIn(text, after)
        self.assertEqual(self.run_page(RESULTS).returncode, 0)
        self.assertEqual(self.page.read_text(encoding="utf-8"), after)

    def test_a_document_without_a_place_is_refused(self):
        self.page.write_text("<!-- table: peers-all -->\n<!-- end -->\n", encoding="utf-8")
        done = self.run_page(RESULTS)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no place for peers-agreement, peers-decode", done.stderr)

    def test_other_files_are_refused_in_one_line(self):
        before = self.page.read_text(encoding="utf-8")
        without_ours = copy.deepcopy(RESULTS)
        del without_ours["rows"][1]["engines"][0]
        for results in ("no JSON", "[]", '{"command": "eval"}', RESULTS | {"rows": []}, without_ours):
            done = self.run_page(results)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(self.page.read_text(encoding="utf-8"), before)


ECHO = """
import json, sys
print("a line for people")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "end":
        sys.exit(3)
    if request["op"] == "odd":
        print(json.dumps({"error": "no such op"}), flush=True)
    else:
        print(json.dumps({"ms": request["n"]}), flush=True)
"""


class Workers(unittest.TestCase):
    def start(self, code):
        cpus = machine.cores()[:1]
        worker = workers.Worker("echo", [sys.executable, "-c", code], cpus, subprocess.DEVNULL)
        self.addCleanup(worker.stop)
        return worker

    def test_answers_belong_to_requests(self):
        worker = self.start(ECHO)
        self.assertEqual([worker.ask("prefill", n=n)["ms"] for n in (3, 5)], [3, 5])

    def test_errors_and_ends_are_failures(self):
        worker = self.start(ECHO)
        with self.assertRaisesRegex(workers.Failed, "no such op"):
            worker.ask("odd")
        self.assertEqual(worker.ask("prefill", n=2)["ms"], 2)
        with self.assertRaisesRegex(workers.Failed, "status 3"):
            worker.ask("end")
        with self.assertRaisesRegex(workers.Failed, "it is not there"):
            self.start("import json; print(json.dumps({'error': 'it is not there'}))")

    def test_engines_have_modules_and_pins(self):
        for pins, module, _ in ENGINES.values():
            self.assertTrue((PEERS / "engines" / f"{module}.py").exists(), module)
            text = (PEERS / "pins" / f"{pins}.txt").read_text(encoding="utf-8")
            for line in text.splitlines():
                self.assertRegex(line, r"^(-r [a-z.]+\.txt|[a-z0-9-]+==[0-9.]+)$")


unittest.main()
