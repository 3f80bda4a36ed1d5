"""Models that the tests share: the bundled one, and the golden checkpoints of the C++ tests."""

import pathlib

import pytest

import sluice

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"


@pytest.fixture(scope="session")
def demo():
    """The bundled model, in a context short enough for quick tests and long enough for clusters."""
    return sluice.Model.from_pretrained(sluice.demo_model(), context=1024)


@pytest.fixture(scope="session")
def golden():
    """The folder of golden checkpoints; a test without it is skipped."""
    if not GOLDEN.is_dir():
        pytest.skip("the golden checkpoints are not here")
    return GOLDEN
