"""The scripts of examples/python/ run as they are."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"


def run(name, folder):
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not here")
    return subprocess.run([sys.executable, str(EXAMPLES / name)], cwd=folder, capture_output=True,
                          text=True, check=True).stdout


def test_first_steps(tmp_path):
    printed = run("first_steps.py", tmp_path)
    assert "delta 0.01: " in printed and " of the keys, KL " in printed
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_own_model(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert "held out: KL " in run("own_model.py", tmp_path)
