"""Where a response keeps its answer: after its thinking, in `<answer>` tags, in a LaTeX `\\boxed{}`, or at its end."""

from __future__ import annotations

import re
from typing import NamedTuple

OPENING = "<answer>"
CLOSING = "</answer>"
THINK_OPENING = "<think>"
THINK_CLOSING = "</think>"
_BOX = re.compile(r"\\f?boxed\s*\{")
# Ends a gap between boxes that says that there is another: `, `, `\text{ and } `, `$ or $y=`.
_SEPARATOR = re.compile(r"(?:\b(?:and|or)\b|[,;])(?:[\s$}]|\\[(\[]|\\q?quad|\\text\s*\{|[A-Za-z]\w{0,3}\s*=)*$")
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
