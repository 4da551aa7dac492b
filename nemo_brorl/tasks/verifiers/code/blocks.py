"""Program in a response: which code block it is, in the forms in which models write one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from nemo_brorl.tasks.verifiers.answer import without_thinking

PYTHON = ("python", "python3", "py", "py3")  # languages that a code block may name
# A line that opens or closes a block: indentation, marks of quotes and lists, the fence, what stands behind it.
_FENCE = re.compile(r"(?P<prefix>(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_LANGUAGE = re.compile(r"\{?\s*\.?([\w+#-]*)")  # python, python:a.py, {.python}
_QUOTE = re.compile(r"[ \t]*>[ ]?")
MAX_INDENT = 4  # a fence that stands so much deeper than the one that opened the block belongs to the program
INVISIBLE = "\ufeff\u200b"  # byte order mark, space without width


class _Opening(NamedTuple):
    """The line that opens a block."""

    fence: str
    indent: int  # columns in front of the fence
    num_quotes: int  # marks of quotes in front of it
    language: str  # "" where it names none


def extract_program(response: str, may_be_bare: bool = False, names: Sequence[str] = ()) -> str | None:
    """The last complete code block that says it is Python, else the last that does not say what it is: of those that
    define one of `names`, where some do. Without any block, the whole text where that is allowed."""
    shown = without_thinking(response).lstrip(INVISIBLE)
    if may_be_bare and not any(_FENCE.match(line) for line in shown.split("\n")):
        return shown
    blocks = _blocks(shown)
    for language in (PYTHON[0], ""):
        programs = [source for label, source in blocks if label == language]
        if programs:
            return _last_that_defines(names, programs)
    return None


def _last_that_defines(names: Sequence[str], programs: list[str]) -> str:
    for program in reversed(programs):
        if any(re.search(rf"\b(?:def|class)\s+{name}\b", program) for name in names):
            return program
    return programs[-1]


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language, source) of each complete block. Lines end in "\\n" alone: other ends of line may stand in a string."""
    found: list[tuple[str, str]] = []
    lines: list[str] = []
    opening: _Opening | None = None
    for line in text.split("\n"):
        fence = _fence(line)
        if opening is None:
            opening = fence
            lines = []
        elif fence is None or not _ends(fence, opening):
            lines.append(line)
        else:
            is_next = fence.language == PYTHON[0]  # the end of a block is missing, another one begins
            if not is_next:
                found.append((opening.language, _source(lines, opening.num_quotes)))
            opening = fence if is_next else None
            lines = []
    return found


def _fence(line: str) -> _Opening | None:
    match = _FENCE.match(line.rstrip())
    if match is None:
        return None
    prefix = match["prefix"].expandtabs()
    return _Opening(match["fence"], len(prefix), prefix.count(">"), _language(match["info"]))


def _ends(fence: _Opening, opening: _Opening) -> bool:
    return fence.fence.startswith(opening.fence) and fence.indent < opening.indent + MAX_INDENT


def _language(info: str) -> str:
    """The language that stands behind a fence, "" for none; all of Python's names are one."""
    label = info.strip().lower()
    match = _LANGUAGE.match(label)
    language = match[1] if match else ""
    is_python = language in PYTHON or label.endswith(".py")
    return PYTHON[0] if is_python else language


def _source(lines: list[str], num_quotes: int) -> str:
    """The program of a block's lines, without the quote's or the list's indentation."""
    for _ in range(num_quotes):
        lines = [_QUOTE.sub("", line, count=1) for line in lines]
    source = "\n".join([*lines, ""]).lstrip(INVISIBLE)
    first = source.lstrip("\r\n")
    return textwrap.dedent(source) if first[:1].isspace() else source
