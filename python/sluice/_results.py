"""Results as plain data: nested dicts, and flat rows that pandas takes as they are."""

from __future__ import annotations

from typing import Any


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """One level: ``{"kl": {"value": 1, "standard_error": 2}}`` is ``{"kl": 1, "kl_stderr": 2}``."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and set(value) == {"value", "standard_error"}:
            row[prefix + name] = value["value"]
            row[f"{prefix}{name}_stderr"] = value["standard_error"]
        elif isinstance(value, dict):
            row.update(flat(value, f"{prefix}{name}_"))
        elif not isinstance(value, list):
            row[prefix + name] = value
    return row


class Evaluation(dict):  # type: ignore[type-arg]
    """What :meth:`Model.evaluate` found: a dict, with rows for a table.

    ``pandas.DataFrame(found.rows())`` has a line for exact attention and one for each plan.
    """

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict for exact attention, and one for each plan."""
        dense = flat({name: self[name] for name in ("perplexity", "loss")})
        return [{"plan": "dense", **dense}] + [
            {"plan": name, **flat(loss)} for name, loss in zip(self["names"], self["plans"])]
