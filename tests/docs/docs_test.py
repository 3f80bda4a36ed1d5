"""Every command that README and docs print runs, or has a reason why it does not.

    docs_test.py PROGRAM [--list]

MODEL and TEXT are the model that comes along and the beginning of its text. All options are tried with as little work
as they can have: short windows, few of them, the first and the last value of a list. A command that has run on the same
files is not run again. What prose names is looked up in the help. The last line is the count.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT))
                                                 for page in (ROOT / "docs").rglob("*.md"))]

# Not run, and why. The first that matches counts.
REASONS = [(re.compile(pattern), reason) for pattern, reason in [
    (r"--device (cuda|D)\b|bench/cases/cuda|bench/cuda|bench/python_cuda|scripts/results --cuda|cuda-sanitize|--preset cuda", "needs a GPU"),
    (r"^build/demo/bin/sluice", "printed by the demo, for longer contexts than its model has"),
    (r"^make (test|demo|asan|format|lint|fuzz|build)|^sluice demo", "CI runs it itself"),
    (r"^make|^sudo|^docker|^git|^apt-get|^dpkg", "changes the machine"),
    (r"^pip|^python3? -m|^bench/peers|examples/python", "installs other packages"),
    (r"^source .*zsh", "shell_test tries it in zsh"),
    (r"^cmake|^ctest|^\w+=|^export|^c\+\+|^build/examples|^\./attention|^scripts/install-deps|^find_package",
     "install_test does it"),
    (r"^(build/\S*/)?sluice(_bench|_blocks_perplexity)|^scripts/results", "a benchmark, of minutes to hours"),
    (r"^scripts/compare-attention", "many runs of eval, of minutes to hours"),
    (r"^build/\S*_test|^~/\S*pip|gtest_filter", "CTest runs it"),
    (r"^sluice chat", "the model that comes along does not converse; cli_test drives it in a pseudo-terminal"),
    (r"--plan PLAN|the same with|PLAN\.json|^sluice (inspect PLAN|report (A|before)\.json)", "names no file"),
    (r"tools/other_text", "cli_test does it"),
    (r"tools/train_encoder|-m (proteins|records)\b", "trains a model, or needs one that was trained"),
    (r"--linear graded --epsilon 0( |$)", "needs a model with ReLU"),
]]

# What stands for a file of the reader's.
FILES = {
    r"(?<= )(MODELS/[\w.-]+|SMOLLM2\.gguf|SMOL|MODEL\.gguf|MODEL|gpt2-nano|opt-nano)\b": ROOT / "share/demo/gpt2-nano",
    r"\b(OTHER_TEXT|CALIBRATION|UNSEEN|TEXT|CODE|TABLE|FILE)\b|(?<=-f )[AE]\b": "text.txt",
    r"\bPROMPT\b": "prompt.txt",
    r"\bPROMPTS\.jsonl\b": "prompts.jsonl",
    r"(?<=[ ,])(A|B|C)\.txt\b": "text.txt",
}

# What stands for a value in commands that made tables.
VALUES = {"MODE": "replay", "DTYPE": "f32", "K": "0.05", "O": "memory", "KIND": "pages",
          "CACHE": "int8"}


def reason_not_to(text):
    return next((reason for pattern, reason in REASONS if pattern.search(text)), None)


def with_files(text):
    for pattern, path in FILES.items():
        text = re.sub(pattern, str(path), text)
    return text


def with_less_work(text):
    """The same options with short windows, few repetitions, and lists of two values at most."""
    if not text.startswith("sluice"):
        return text
    def shortest(match):
        lengths = match.group(2).split(",")
        return match.group(1) + ",".join(str(min(int(length), 64 * (i + 2))) for i, length in enumerate(lengths[:2]))
    text = re.sub(r"(-c )([\d,]+)", shortest, re.sub(r"-c T\b", "-c 128", text))
    text = re.sub(r"(--windows )(\d+|N)", r"\g<1>1", text)
    if re.match(r"sluice (eval|analyze|calibrate)\b", text):
        text += "".join(f" {option}" for option in ("-c 128", "--windows 1") if option.split()[0] not in text.split())
    text = re.sub(r"(--repeat )\d+", r"\g<1>1", text)
    if re.match(r"sluice bench\b(?!.*--repeat)", text):
        text += " --repeat 1"
    if re.match(r"sluice needle\b", text):
        text = re.sub(r" --(depths|cases) \d+", "", text) + " --depths 1 --cases 1"
    if re.match(r"sluice tune\b", text):
        text = re.sub(r" (-c|--windows) \d+| --no-needles", "", text) + " -c 64 --windows 1 --held-out 2 --no-needles"
    text = re.sub(r"(--audit )(\d+|N)", r"\g<1>4", text)
    text = re.sub(r"( -n )(\d+)", lambda match: match.group(1) + str(min(int(match.group(2)), 8)), text)
    text = re.sub(r"(--(?:tau|delta|epsilon|keep|running|rank) )([\w.]+)(?:,[\w.]+)*,([\w.]+)", r"\1\2,\3", text)
    text = re.sub(r"(?<=--rank )[\d,]+", lambda match: ",".join(str(min(int(k), 4 + 4 * i))
                                                              for i, k in enumerate(match[0].split(","))), text)
    for name, value in VALUES.items():
        text = re.sub(rf"(?<= ){name}\b", value, text)
    return text


class Folder:
    """Where the commands of a page run, with what a checkout has."""

    def __init__(self, program):
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-docs-")
        self.path = pathlib.Path(self._folder.name)
        for name in ("scripts", "bench", "tools", "share", "docs"):
            (self.path / name).symlink_to(ROOT / name)
        text = (ROOT / "share/demo/text.txt").read_text(encoding="utf-8")
        (self.path / "text.txt").write_text(text[:9000], encoding="utf-8")
        (self.path / "prompt.txt").write_text(text[:1500], encoding="utf-8")
        (self.path / "prompts.jsonl").write_text(
            "".join(f'{{"prompt": "{prompt}", "id": "{i}"}}\n'
                    for i, prompt in enumerate(["Once upon a time", "The sea was"])), encoding="utf-8")
        (self.path / "bin").mkdir()
        (self.path / "bin/sluice").symlink_to(pathlib.Path(program).resolve())

    def _files_of(self, text):
        """{name: content} of the files here that a command may read or has written."""
        return {path.name: path.read_bytes() for path in sorted(self.path.iterdir())
                if path.is_file() and path.name in text}

    def run(self, text, done_before):
        """None, or what went wrong. `done_before`, of all pages: {(command, files before): files after}."""
        key = (text, tuple(self._files_of(text).items()))
        if key in done_before:
            for name, content in done_before[key].items():
                (self.path / name).write_bytes(content)
            return None
        problem = self._run(text)
        if problem is None:
            done_before[key] = self._files_of(text)
        return problem

    def _run(self, text):
        environment = {**os.environ, "HOME": str(self.path),
                       "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", text], cwd=self.path, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        for kept in self.path.glob("*.measurements"):  # of other settings than the next command's
            kept.unlink()
        return None if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-500:]}"


class Help:
    """What `sluice help` knows."""

    def __init__(self, program):
        self._program = program
        self._texts = {}

    def _of(self, name):
        if name not in self._texts:
            done = subprocess.run([self._program, "help", name], capture_output=True, text=True, check=False)
            self._texts[name] = done.stdout if done.returncode == 0 else None
        return self._texts[name]

    def lacks(self, text):
        """What a command of the prose names that is not there; None if nothing."""
        words = text.split()
        if words[0].split("/")[0] in ("scripts", "bench", "tools"):
            return None if re.search(r"NAME|\*", words[0]) or (ROOT / words[0]).exists() else f"there is no {words[0]}"
        if words[0] != "sluice" or len(words) == 1 or not words[1].islower() or words[1].startswith("-"):
            return None
        page = self._of(words[1])
        if page is None:
            return f"there is no command {words[1]}"
        for word in words[2:]:
            option = word.split("=")[0]
            if option.startswith("-") and len(option) > 1 and not re.search(rf"(?<![\w-]){option}(?![\w-])", page):
                return f"{words[1]} has no option {option}"
        return None


def try_blocks(program, helps, page, text, done_before):
    """(command, what went wrong or None, why it was not run or None) of a page's code blocks, in order."""
    folder = Folder(program)
    made_tables = page.startswith("docs/results/") or page == "docs/paper.md"
    for command in commands.of_blocks(page, text):
        reason = reason_not_to(command.text)
        if not reason and made_tables and re.search(r"^sluice tune|--plan plan\.json", command.text):
            reason = "tuned for minutes, or follows such a plan; its options are looked up"
        if reason:
            yield command, helps.lacks(command.text), reason
            continue
        yield command, folder.run(with_less_work(with_files(command.text)), done_before), None


def main():
    program, listing = sys.argv[1], "--list" in sys.argv
    helps, n_run, n_named, reasons, failures, done_before = Help(program), 0, 0, {}, [], {}
    start = time.monotonic()
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for command, problem, reason in try_blocks(program, helps, page, text, done_before):
            if reason:
                reasons.setdefault(reason, []).append(command)
            else:
                n_run += 1
            if problem:
                failures.append((command, problem))
            if listing:
                print(f"{time.monotonic() - start:5.0f} s {page}:{command.line}: {reason or problem or 'ran'}: "
                      f"{command.text[:150]}", flush=True)
        for command in commands.of_prose(page, text):
            n_named += 1
            problem = helps.lacks(command.text)
            if problem:
                failures.append((command, problem))
    for reason, left in reasons.items():
        print(f"not run, {reason}: {len(left)}")
    for command, problem in failures:
        print(f"{command.page}:{command.line}: {command.text}\n  {problem}")
    print(f"{n_run} commands run, {sum(map(len, reasons.values()))} not run for the reasons above, "
          f"{n_named} looked up, {len(failures)} wrong")
    return 1 if failures or n_run == 0 or n_named == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
