"""The commands that a document prints: those of its code blocks, and those named in its prose."""

import dataclasses
import re

# The first word of a line in a code block that is a command. Other lines are output or code.
_FIRST = re.compile(
    r"(sluice\w*|make|cmake|ctest|echo|printf|tail|source|python3?|pip|docker|sudo|dpkg|apt-get|git|c\+\+|export|"
    r"(\./|build/|scripts/|bench/|tools/)\S+|\w+=\S+)(\s|$)")
_INLINE = re.compile(r"`((?:sluice|scripts/|bench/|tools/)[^`]*)`")


@dataclasses.dataclass(frozen=True)
class Command:
    """What a document prints, and where."""
    page: str
    line: int
    text: str


def _blocks(text):
    """(number of the first line, lines) of every fenced and indented code block."""
    block, first, fenced, before = [], 0, False, ""
    for number, line in enumerate(text.splitlines() + [""], 1):
        if re.match(r"\s*```", line):
            if fenced:
                yield first, block
            fenced, block, first = not fenced, [], number + 1
            continue
        inside = fenced or (line.startswith("    ") and (block or not before.strip()))
        if inside:
            if not block:
                first = number
            block.append(line.strip())
        elif block and not fenced:
            yield first, block
            block = []
        before = line


def _joined(first, lines):
    """(number, line) with continued lines made one."""
    held, at = "", 0
    for number, line in enumerate(lines, first):
        at = at or number
        held += line.removesuffix("\\") if line.endswith("\\") else line
        if not line.endswith("\\"):
            yield at, held
            held, at = "", 0


def of_blocks(page, text):
    """Commands of code blocks. Where some lines begin with `$ `, the others are output."""
    for first, lines in _blocks(text):
        lines = list(_joined(first, lines))
        prompts = any(line.startswith("$ ") for _, line in lines)
        for number, line in lines:
            if prompts and not line.startswith("$ "):
                continue
            line = re.sub(r"\s+#\s.*$", "", line.removeprefix("$ "))
            if prompts or _FIRST.match(line):
                yield Command(page, number, line)


def of_prose(page, text):
    """Commands named between backquotes, outside of code blocks."""
    lines = text.splitlines()
    for first, block in _blocks(text):
        lines[first - 1:first - 1 + len(block)] = [""] * len(block)
    prose = "\n".join(lines)
    for match in _INLINE.finditer(prose):
        number = prose[:match.start()].count("\n") + 1
        yield Command(page, number, " ".join(match.group(1).split()))
