"""The tables of docs/benchmarks.md, from the results of bench/peers/run alone."""

import json
import statistics

import figures

OURS = "sluice"
MB = 1e6


class Refused(Exception):
    """One line that says what is wrong."""


def read(path):
    """The results of a file, or Refused."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: not JSON: {error}") from error
    if not isinstance(results, dict) or results.get("command") != "peers" or results.get("schema") != 1:
        raise Refused(f"{path}: not what bench/peers/run writes")
    if not results.get("rows"):
        raise Refused(f"{path}: there are no rows in it")
    for row in results["rows"]:
        if not any(engine["engine"] == OURS for engine in row["engines"]):
            raise Refused(f"{path}: {row['model']} {row['test']} {row['n_tokens']}: no samples of {OURS}")
    return results


def head_of(row):
    """What tells a row from others."""
    return row["model"], row["threads"], row["test"], row["n_tokens"]


def joined(parts):
    """Results of several runs on one machine as those of one; Refused where they differ in more than
    what was measured."""
    first, *others = parts
    for part in others:
        for what in ("machine", "engines", "sluice_version"):
            if part[what] != first[what]:
                raise Refused(f"results that differ in {what} cannot share a page")
        for what in ("dtype", "samples", "predict"):
            if part["settings"][what] != first["settings"][what]:
                raise Refused(f"results that differ in {what} cannot share a page")
    together = dict(first, command_line="\n    $ ".join(part["command_line"] for part in parts))
    for what in ("rows", "agreement", "memory", "failed"):
        together[what] = [entry for part in parts for entry in part[what]]
    if len({head_of(row) for row in together["rows"]}) < len(together["rows"]):
        raise Refused("results that have the same row cannot share a page")
    models_by_name = {}
    for model in (model for part in parts for model in part["models"]):
        if models_by_name.setdefault((model["name"], model["format"]), model) != model:
            raise Refused(f"{model['name']} {model['format']} is another file in another of the results")
    together["models"] = list(models_by_name.values())
    together["skipped"] = {name: reason for part in parts for name, reason in part["skipped"].items()}
    return together


def table(columns, rows):
    """Markdown; columns: {title: "---" or "---:"}."""
    lines = [columns.keys(), columns.values(), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def left(*titles):
    return {title: "---" for title in titles}


def right(*titles):
    return {title: "---:" for title in titles}


def rate(row, samples):
    """Tokens per second at the median."""
    return 1e3 * (row["n_tokens"] if row["test"] == "prefill" else 1) / statistics.median(samples)


def rate_text(row, engine):
    """The rate, and what to know of its samples."""
    samples = engine["samples_ms"]
    text = f"{rate(row, samples):.1f}"
    if engine["warm_up_alone"]:
        return text + " (one sample)"
    return text + (f" (spread {figures.spread(samples):.0%})" if figures.is_flagged(samples) else "")


def ratio_text(found):
    middle, low, high = found
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


class Rows:
    """The rows of results, and which engines count."""

    def __init__(self, results):
        self.rows = results["rows"]
        self.disagreeing = {(entry["model"], entry["threads"], entry["engine"])
                            for entry in results["agreement"] if not entry["agrees"]}
        self.compared = {(entry["model"], entry["threads"], entry["engine"])
                         for entry in results["agreement"]}

    def ours(self, row):
        return next(engine for engine in row["engines"] if engine["engine"] == OURS)

    def counts(self, row, name):
        """Whether an engine's outputs were compared with ours and agree."""
        key = (row["model"], row["threads"], name)
        return key in self.compared and key not in self.disagreeing

    def best_peer(self, row):
        """The fastest of those that agree, or nothing."""
        peers = [engine for engine in row["engines"]
                 if engine["engine"] != OURS and self.counts(row, engine["engine"])]
        return min(peers, key=lambda engine: statistics.median(engine["samples_ms"]), default=None)


def head(row):
    return [row["model"], row["threads"], row["n_tokens"]]


def summary(results, test, title):
    rows = Rows(results)
    columns = left("model") | right("threads", title, "sluice, tokens/s", "best peer, tokens/s") | left(
        "which") | right("sluice / best peer")
    if test == "decode":
        columns |= right("of a plain read")
    lines = []
    for row in (row for row in rows.rows if row["test"] == test):
        ours, peer = rows.ours(row), rows.best_peer(row)
        line = head(row) + [rate_text(row, ours)]
        if peer is None:
            line += ["-", "none agrees", "-"]
        else:
            line += [rate_text(row, peer), peer["engine"],
                     ratio_text(figures.ratio(peer["samples_ms"], ours["samples_ms"]))]
        if test == "decode":
            middle, _, _ = figures.ratio(row["read_samples_ms"], ours["samples_ms"])
            speed = row["read_bytes"] / statistics.median(row["read_samples_ms"]) / MB
            line.append(f"{middle:.0%} of {speed:.1f} GB/s")
        lines.append(line)
    return table(columns, lines)


def every_engine(results):
    rows = Rows(results)
    names = [OURS] + [name for name in results["engines"]]
    columns = left("model") | right("threads") | left("test") | right(*names)
    lines = []
    for row in rows.rows:
        engines = {engine["engine"]: engine for engine in row["engines"]}
        test = f"pp{row['n_tokens']}" if row["test"] == "prefill" else f"tg@{row['n_tokens']}"
        cells = []
        for name in names:
            text = rate_text(row, engines[name]) if name in engines else "-"
            if name in engines and name != OURS and not rows.counts(row, name):
                text += " (does not agree)"
            cells.append(text)
        lines.append([row["model"], row["threads"], test, *cells])
    return table(columns, lines)


def agreement(results):
    columns = left("model") | right("threads") | left("engine") | right(
        "same token where ours leads", "same token in all", "same greedy tokens before the first difference") | left("counts")
    return table(columns, [
        [entry["model"], entry["threads"], entry["engine"],
         f"{entry['n_decided_alike']} of {entry['n_decided']}",
         f"{entry['top1_agreement']:.0%} of {entry['n_prompts']}",
         f"{entry['greedy_match_tokens']} of {entry['n_greedy']}", "yes" if entry["agrees"] else "no"]
        for entry in results["agreement"]])


def memory(results):
    columns = left("model") | right("threads", "file, MB", "cache, MB", "peak, MB",
                                    "of 1.1 x file + cache + 64 MB")
    lines = []
    for entry in results["memory"]:
        bound = 1.1 * entry["file_bytes"] + entry["cache_bytes"] + 64 * MB
        lines.append([entry["model"], entry["threads"], f"{entry['file_bytes'] / MB:.0f}",
                      f"{entry['cache_bytes'] / MB:.0f}", f"{entry['peak_bytes'] / MB:.0f}",
                      f"{entry['peak_bytes'] / bound:.0%}"])
    return table(columns, lines)


def models(results):
    columns = left("model", "format", "made", "types of its matrices") | right("MB")
    return table(columns, [
        [model["name"], model["format"], model["made"], ", ".join(model["types"]),
         f"{model['file_bytes'] / MB:.0f}"] for model in results["models"]])


def setting(results):
    """The machine, the engines' versions, and who is missing and why."""
    machine, settings = results["machine"], results["settings"]
    lines = [f"    $ {results['command_line']}", "",
             f"{machine['cpu']}, {machine['cores']} cores, {machine['architecture']}, "
             f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['system']}. Sluice "
             f"{results['sluice_version']} in {settings['dtype']}; {settings['samples']} samples of "
             f"each, {settings['predict']} tokens in a sample of decoding.", ""]
    for name, engine in results["engines"].items():
        versions = ", ".join(f"{key} {value}" for key, value in engine["versions"].items())
        lines.append(f"- {name}: {versions}; weights {engine['weights']}.")
    for name, reason in results["skipped"].items():
        lines.append(f"- {name} cannot be had here: {reason}")
    # One line for an engine that fails alike on several files.
    reasons = {}
    for entry in results["failed"]:
        reasons.setdefault((entry["engine"], entry["reason"]), []).append(
            f"{entry['model']}, {entry['threads']} threads")
    for (name, reason), where in reasons.items():
        lines.append(f"- {name} is left out of {'; '.join(where)}: {reason}")
    return "\n".join(lines)


def all_tables(results):
    """{name of the place: Markdown}."""
    return {"peers-setting": setting(results), "peers-models": models(results),
            "peers-decode": summary(results, "decode", "after"),
            "peers-prefill": summary(results, "prefill", "tokens"),
            "peers-memory": memory(results), "peers-agreement": agreement(results),
            "peers-all": every_engine(results)}
