"""Where a response keeps its answer: after its thinking, in `<answer>` tags, in a LaTeX `\\boxed{}`, or at its end."""

from __future__ import annotations

import re

OPENING, CLOSING = "<answer>", "</answer>"
THINK_OPENING, THINK_CLOSING = "<think>", "</think>"
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
    return answer.strip() if opening and closing else None


def without_thinking(response: str) -> str:
    """What a reader is shown: the part after the last `</think>`. Empty for a response that was cut off while it
    thought (`<think>` without an end; where the chat template itself opens it, that cannot be told, and the whole
    response counts)."""
    _, closing, after = response.rpartition(THINK_CLOSING)
    if closing:
        return after
    return "" if THINK_OPENING in response else response


def boxed_answers(text: str) -> list[tuple[str, int, int]]:
    """(content, start, end) of the last `\\boxed{}` and of those that stand with it (`\\boxed{1}, \\boxed{2}`), in
    order. Empty when there is none or the last one is not closed."""
    found: list[tuple[str, int, int]] = []
    openings = list(_BOX.finditer(text))
    for opening in reversed(openings[-MAX_BOXES:]):
        limit = found[-1][1] if found else len(text)
        end = _closing_brace(text, opening.end(), limit)
        if end is None or (found and not _stand_together(text[end:limit])):
            break
        found.append((text[opening.end() : end - 1], opening.start(), end))
    return found[::-1]


def _stand_together(between: str) -> bool:
    return len(between) < MAX_GAP or (len(between) < MAX_GAP_WITH_SEPARATOR and _SEPARATOR.search(between) is not None)


def _closing_brace(text: str, start: int, limit: int) -> int | None:
    """Where the group ends that was opened before `start`, just after its brace."""
    level = 1
    for position in range(start, limit):
        if text[position] in "{}" and text[position - 1] != "\\":
            level += 1 if text[position] == "{" else -1
        if level == 0:
            return position + 1
    return None
