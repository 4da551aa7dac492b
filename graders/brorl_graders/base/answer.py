r"""Where a response keeps its answer: after its thinking, in `<answer>` tags, in a LaTeX `\boxed{}`, or at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

OPENING = "<answer>"
CLOSING = "</answer>"
THINK_OPENING = "<think>"
THINK_CLOSING = "</think>"
_BOX = re.compile(r"\\f?boxed\s*\{")
# Ends a gap between boxes that says that there is another: `, `, `\text{ and } `, `$ or $y=`.
_SEPARATOR = re.compile(r"(?:\b(?:and|or)\b|[,;])(?:[\s$}]|\\[(\[]|\\q?quad|\\text\s*\{|[A-Za-z]\w{0,3}\s*=)*$")
_SAID = re.compile(r"####|\banswer(?:[*_]{0,2}[ \t]*[:=]|[ \t]+is\b[ \t]*:?)", re.IGNORECASE)
_AROUND = " \t*_$`\"'"  # blanks, marks of bold and code, dollars, quotes
MAX_SAID = 400  # characters of an answer behind "answer is"
MAX_GAP = 10  # characters between two boxes of one answer, as in `\boxed{1}$, $\boxed{2}` ...
MAX_GAP_WITH_SEPARATOR = 70  # ... and with such a separator (math-verify's numbers)
MAX_BOXES = 64  # of one answer


def extract_answer(response: str) -> str | None:
    """The last complete answer, without surrounding white space. None when there is none, as in a response cut off
    before the end tag."""
    before, closing, _ = response.rpartition(CLOSING)
    _, opening, answer = before.rpartition(OPENING)
    if not (opening and closing):
        return None
    return answer.strip()


def without_thinking(response: str) -> str:
    """What a reader is shown: the part after the last `</think>`. Empty for a response that was cut off while it
    thought (`<think>` without an end; where the chat template itself opens it, that cannot be told, and the whole
    response counts)."""
    _, closing, after = response.rpartition(THINK_CLOSING)
    if closing:
        return after
    return "" if THINK_OPENING in response else response


def last_answer(response: str) -> str | None:
    """What stands behind the last "answer is", "Answer:" or "####" of a text, on that line or, where nothing does, on
    the next, without what only sets it apart. None when there is none, or it is too long to be an answer."""
    shown = without_thinking(response)
    marks = list(_SAID.finditer(shown))
    if not marks:
        return None
    line, _, _ = shown[marks[-1].end() :].lstrip().partition("\n")
    said = line.strip(_AROUND).removesuffix(".").strip(_AROUND)
    boxes = boxed_answers(said)
    if boxes:
        said = ", ".join(dict.fromkeys(box.content.strip() for box in boxes))
    return said if 0 < len(said) <= MAX_SAID else None


def read_answer(payload: Mapping[str, Any], response: str) -> str | None:
    """A response's answer where `payload["answer_format"]` says that it stands; in `<answer>` tags where it says
    nothing."""
    place = payload.get("answer_format")
    if place == "last":
        return last_answer(response)
    if place == "boxed":
        boxes = boxed_answers(without_thinking(response))
        return ", ".join(dict.fromkeys(box.content.strip() for box in boxes)) or None
    return extract_answer(response)


class Box(NamedTuple):
    """A `\\boxed{}` in a text."""

    content: str
    start: int
    end: int  # behind its brace


def boxed_answers(text: str) -> list[Box]:
    """The last `\\boxed{}` and those that stand with it (`\\boxed{1}, \\boxed{2}`), in order. Empty when there is none
    or the last one is not closed."""
    boxes: list[Box] = []  # the last first
    openings = list(_BOX.finditer(text))
    limit = len(text)
    for opening in reversed(openings[-MAX_BOXES:]):
        inside = opening.end()
        end = _closing_brace(text, inside, limit)
        if end is None or (boxes and not _stand_together(text[end:limit])):
            break
        content = text[inside : end - 1]
        boxes.append(Box(content, opening.start(), end))
        limit = opening.start()
    boxes.reverse()
    return boxes


def _stand_together(between: str) -> bool:
    """Whether what lies between two boxes makes them one answer."""
    if len(between) < MAX_GAP:
        return True
    return len(between) < MAX_GAP_WITH_SEPARATOR and _SEPARATOR.search(between) is not None


def _closing_brace(text: str, start: int, limit: int) -> int | None:
    """Where the group ends that was opened before `start`, just after its brace."""
    level = 1
    for position in range(start, limit):
        character = text[position]
        is_escaped = text[position - 1] == "\\"
        if character == "{" and not is_escaped:
            level += 1
        elif character == "}" and not is_escaped:
            level -= 1
        if level == 0:
            return position + 1
    return None
