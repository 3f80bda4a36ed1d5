"""Transformer inference that does only the work the input needs.

    import sluice
    model = sluice.Model.from_pretrained(sluice.demo_model())
    print(model.generate("The sea was", max_tokens=20))
    refine = sluice.Plan.uniform("refine", delta=0.01)
    print(model.evaluate(sluice.demo_text(), refine)["plans"][0]["kl"])

Attention for models of transformers is in :mod:`sluice.hf`. docs/python.md tells more.
"""

from __future__ import annotations

import pathlib

from ._attention import Attention, AttentionDevice
from ._core import set_threads, threads, version as _version
from ._errors import Error
from ._model import Model, Sequence, Text
from ._plan import Plan
from ._results import Analysis, Evaluation, report
from ._stream import Token

__version__: str = _version()
__all__ = ["Analysis", "Attention", "AttentionDevice", "Error", "Evaluation", "Model", "Plan", "Sequence",
           "Text", "Token", "demo_model", "demo_text", "report", "set_threads", "threads"]


def demo_model() -> pathlib.Path:
    """The small GPT-2 that comes with the package."""
    return pathlib.Path(__file__).parent / "demo" / "gpt2-nano"


def demo_text() -> pathlib.Path:
    """A text that it was not trained on."""
    return pathlib.Path(__file__).parent / "demo" / "text.txt"
