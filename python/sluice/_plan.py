"""What the attention of a model does."""

from __future__ import annotations

import os
from typing import Any

from . import _core


class Plan:
    """Exact attention, one setting for all layers, or what a file says for every layer and head.

    ``Plan()`` is exact. A plan is a value: it may be used with several models and in several threads.
    """

    def __init__(self) -> None:
        self._core = _core.Plan()

    @classmethod
    def _of(cls, core: _core.Plan) -> Plan:
        plan = cls.__new__(cls)
        plan._core = core
        return plan

    @classmethod
    def uniform(cls, mode: str = "refine", *, delta: float = 0.005, strict: bool = False,
                tau: float | str = 0.3, window: int | None = None, sinks: int | None = None,
                from_layer: int = 0) -> Plan:
        """The same in all layers; names and defaults are those of the program's flags.

        Args:
            mode: "refine", "keys", "copy" or "dense".
            delta: of "refine": a query reads the members of a cluster where the error of reading its
                mean is estimated at delta or more. 0 reads all of them, infinity none.
            strict: of "refine": every query of a prompt decides for itself, as in decoding. Slower.
            tau: of "keys" and "copy": tokens of cosine 1 - tau^2 or more are redundant. "auto", of
                "keys": every layer chooses its own.
            window: tokens before a query that stay exact.
            sinks: first tokens that always stay exact.
            from_layer: layers before this one stay dense.

        Raises:
            Error: for a value out of range.
        """
        options: dict[str, Any] = {"mode": mode, "delta": delta, "strict": strict,
                                   "window": window, "sinks": sinks, "from_layer": from_layer}
        options.update({"tau_auto": True} if tau == "auto" else {"tau": tau})
        return cls._of(_core.Plan.uniform(options))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Reads a file of :meth:`save` or of ``sluice tune``.

        Raises:
            Error: for a file that is missing or no plan.
        """
        return cls._of(_core.Plan.load(os.fspath(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a plan that comes from :meth:`load` or :meth:`Model.tune`.

        Raises:
            Error: for another plan, and where the file cannot be written.
        """
        self._core.save(os.fspath(path))

    @property
    def is_dense(self) -> bool:
        """Whether it leaves everything exact."""
        return self._core.is_dense

    @property
    def info(self) -> dict[str, Any] | None:
        """What a plan from a file or from tuning was made for; None for another."""
        return self._core.info

    def why_dense(self, n_prompt: int, max_tokens: int) -> str:
        """Why :meth:`Model.generate` would not follow the plan after a prompt of ``n_prompt`` tokens.

        Empty where it would.
        """
        return self._core.why_dense(n_prompt, max_tokens)

    def __repr__(self) -> str:
        info = self.info
        if info is not None:
            return f"<sluice.Plan of {info['family']}, objective {info['objective']}>"
        return "<sluice.Plan, dense>" if self.is_dense else "<sluice.Plan, uniform>"


def core_of(plan: Plan | None) -> _core.Plan:
    """The library's plan; exact for None."""
    return _core.Plan() if plan is None else plan._core
