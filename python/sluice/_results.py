"""Results as plain data: nested dicts, flat rows that pandas takes as they are, and a page."""

from __future__ import annotations

import html
import json
import os
import pathlib
from typing import Any, Union

from . import _core
from ._errors import Error


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


class Results(dict):  # type: ignore[type-arg]
    """What a measurement found: a dict, with rows for a table and a page for people.

    In a notebook it shows as the page.
    """

    results_json: str  # as the program writes with --json: docs/results.md

    def rows(self) -> list[dict[str, Any]]:
        """Flat dicts, one for each line of a table: ``pandas.DataFrame(found.rows())``."""
        raise NotImplementedError

    def report(self, path: str | os.PathLike[str] = "report.html") -> pathlib.Path:
        """Writes one self-contained HTML page, and returns its path."""
        return report(self, path=path)

    def _repr_html_(self) -> str:
        page = html.escape(_core.report_page([self.results_json]))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 48em; border: 0"></iframe>'


class Evaluation(Results):
    """What :meth:`Model.evaluate` found."""

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict for exact attention, and one for each plan."""
        dense = flat({name: self[name] for name in ("perplexity", "loss")})
        return [{"plan": "dense", **dense}] + [
            {"plan": name, **flat(loss)} for name, loss in zip(self["names"], self["plans"])]


class Analysis(Results):
    """What :meth:`Model.analyze` found, as the program writes it with --json."""

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict for each tau, layer and rule."""
        return [{"tau": run["tau"], "space": run["space"], "n_tokens": run["n_tokens"], **row}
                for run in self["runs"] for row in run["rows"]]


def report(*results: Union[Results, str, "os.PathLike[str]"],
           path: str | os.PathLike[str] = "report.html") -> pathlib.Path:
    """Writes one page of several results; of these it compares the first two.

    Args:
        *results: of :meth:`Model.evaluate` and :meth:`Model.analyze`, or paths of files that the program
            wrote with --json.
        path: of the page.

    Raises:
        Error: for what is not results of this version, and for files that cannot be read or written.
    """
    texts = []
    for each in results:
        if isinstance(each, Results):
            texts.append(each.results_json)
            continue
        try:
            texts.append(pathlib.Path(each).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise Error(f"{os.fspath(each)}: {error}", "a file that sluice wrote with --json") from error
    page = _core.report_page(texts)
    try:
        pathlib.Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise Error(f"{os.fspath(path)}: {error}", "are the path and its permissions right?") from error
    return pathlib.Path(path)


def analysis_of(text: str) -> Analysis:
    """Of the library's JSON."""
    found = Analysis(json.loads(text))
    found.results_json = text
    return found


def evaluation_of(found: dict[str, Any], names: list[str]) -> Evaluation:
    """Of the extension module's dict."""
    text = found.pop("results")
    evaluation = Evaluation(found, names=names)
    evaluation.results_json = text
    return evaluation
