"""Tests of scripts/results-tables, and of what case files and documents name.

    tables_test.py
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "results-tables"
DOCUMENTS = [ROOT / "docs" / "results" / name for name in ("cuda.md", "refine.md")]
REGION = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- end -->\n", re.DOTALL)


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True,
                          check=False)


def outside(text):
    """What is left of a document without its regions."""
    return REGION.sub(r"[\1]", text)


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.json"

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def give(self, tables):
        self.results.write_text(json.dumps({"schema": 1, "tables": tables}), encoding="utf-8")

    def test_tables_of_a_copy_are_replaced_and_its_text_is_kept(self):
        for document in DOCUMENTS:
            before = document.read_text(encoding="utf-8")
            copy = self.write(document.name, before)
            names = REGION.findall(before)
            self.assertTrue(names)
            self.give({name: f"\n{name} it is\n\n| T |\n| --- |\n| 7 |\n" for name in names})
            done = run(self.results, copy)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            after = copy.read_text(encoding="utf-8")
            self.assertEqual(outside(after), outside(before))
            for name in names:
                self.assertIn(f"<!-- table: {name} -->\n\n{name} it is\n\n| T |\n| --- |\n| 7 |\n\n"
                              "<!-- end -->\n", after)
            self.assertEqual(run(self.results, copy).returncode, 0)
            self.assertEqual(copy.read_text(encoding="utf-8"), after)

    def test_a_region_without_a_table_stays(self):
        text = "a\n<!-- table: one -->\nold 1\n<!-- end -->\nb\n<!-- table: two -->\nold 2\n<!-- end -->\n"
        copy = self.write("page.md", text)
        self.give({"two": "new", "three": "nowhere"})
        done = run(self.results, copy)
        self.assertEqual(done.returncode, 0)
        self.assertIn("one left as it is", done.stdout)
        self.assertIn("two replaced", done.stdout)
        self.assertIn("no document has a place for three", done.stdout)
        self.assertEqual(copy.read_text(encoding="utf-8"), text.replace("old 2", "\nnew\n"))

    def test_text_of_a_file_is_a_table(self):
        copy = self.write("page.md", "<!-- table: sdpa -->\n<!-- end -->\n")
        self.give({"other": "x"})
        text = self.write("sdpa.md", "measured\n")
        self.assertEqual(run("--text", f"sdpa={text}", self.results, copy).returncode, 0)
        self.assertEqual(copy.read_text(encoding="utf-8"),
                         "<!-- table: sdpa -->\n\nmeasured\n\n<!-- end -->\n")

    def test_documents_with_odd_marks_are_refused_and_nothing_is_written(self):
        self.give({"one": "new"})
        good = self.write("good.md", "<!-- table: one -->\nold\n<!-- end -->\n")
        for text, message in (
                ("<!-- table: one -->\nold\n", "does not end"),
                ("<!-- end -->\n", "the end of no table"),
                ("<!-- table: one -->\n<!-- table: two -->\n<!-- end -->\n", "begins inside table one"),
                ("<!-- table: one -->\n<!-- end -->\n" * 2, "a second table one")):
            bad = self.write("bad.md", text)
            done = run(self.results, good, bad)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertEqual(bad.read_text(encoding="utf-8"), text)
            self.assertIn("old", good.read_text(encoding="utf-8"))

    def test_results_without_tables_are_refused(self):
        copy = self.write("page.md", "<!-- table: one -->\nold\n<!-- end -->\n")
        for text in ("no JSON", "[]", '{"cases": []}', '{"tables": {}}', '{"tables": {"one": 7}}',
                     '{"tables": {"one": "<!-- end -->"}}'):
            self.results.write_text(text, encoding="utf-8")
            done = run(self.results, copy)
            self.assertNotEqual(done.returncode, 0, text)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("old", copy.read_text(encoding="utf-8"))


class Names(unittest.TestCase):
    def test_case_files_of_cuda_are_named_as_their_tables(self):
        names = set()
        for path in sorted((ROOT / "bench" / "cases" / "cuda").glob("*.json")):
            case = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual((case["name"], case["device"]), (path.stem, "cuda"))
            names.add(case["name"])
        self.assertTrue(names)
        for document in DOCUMENTS:
            regions = set(REGION.findall(document.read_text(encoding="utf-8")))
            self.assertLessEqual(regions, names | {"sdpa"})  # sdpa.py's, which is no case

    def test_case_files_that_documents_name_exist(self):
        pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
        named = {path for page in pages
                 for path in re.findall(r"bench/cases/[\w./-]+\.json", page.read_text(encoding="utf-8"))}
        self.assertIn("bench/cases/cuda/select.json", named)
        self.assertEqual([path for path in sorted(named) if not (ROOT / path).exists()], [])


unittest.main()
