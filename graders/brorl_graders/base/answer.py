r"""Read the answer of a model's response: after its thinking, in `<answer>` tags, in `\boxed{}`, or at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

OPENING = "<answer>"
CLOSING = "</answer>"
THINK_OPENING = "<think>"
THINK_CLOSING = "</think>"
_BOX = re.compile(r"\\(?:f?boxed|fbox)\s*\{")
# The end of a gap after which another box of the same answer follows: `, `, `\text{ and } `, `$ or $y=`.
_SEPARATOR = re.compile(r"(?:\b(?:and|or)\b|[,;])(?:[\s$}]|\\[(\[]|\\q?quad|\\text\s*\{|[A-Za-z]\w{0,3}\s*=)*$")
_JSON = re.compile(
    r"[\"'](?:\w+_)?(?:answer|choice|option)[\"'] ?: ?"
    r"(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<number>-?[\d.]+))\s*\}\s*(?:```)?\s*$"
)
_SAID = re.compile(r"####|\banswer(?:[*_]{0,2}[ \t]*[:=]|[ \t]+is\b[ \t]*:?)", re.IGNORECASE)
_AROUND = " \t*_$`\"'"  # removed around an answer: blanks, emphasis, dollars, quotes
MAX_SAID = 400  # longest answer after "answer is", in characters
MAX_GAP = 10  # characters between two boxes of one answer, as in `\boxed{1}$, $\boxed{2}`
MAX_GAP_WITH_SEPARATOR = 70  # the same limit with a separator between them (both limits are math-verify's)
MAX_BOXES = 64  # largest number of boxes in one answer


def extract_answer(response: str) -> str | None:
    """Return the text in the last complete pair of `<answer>` tags of a response, without surrounding white space.

    Returns None when there is no complete pair, as in a response that was cut off before the end tag.
    """
    before, closing, _ = response.rpartition(CLOSING)
    _, opening, answer = before.rpartition(OPENING)
    if not (opening and closing):
        return None
    return answer.strip()


def json_answer(response: str) -> str | None:
    """Return the value of the key "answer", or of a key like it, that ends a JSON object at the end of a response."""
    found = _JSON.search(response, max(len(response) - MAX_SAID, 0)) if "}" in response else None
    return found[found.lastgroup or 0] if found else None


def without_thinking(response: str) -> str:
    """Return the part of a response that a reader is shown: the text after the last `</think>`.

    Returns "" for a response that was cut off while the model thought: it has `<think>` and no `</think>`. Some chat
    templates write `<think>` themselves, so the response has neither tag. Then the whole response is returned.
    """
    _, closing, after = response.rpartition(THINK_CLOSING)
    if closing:
        return after
    return "" if THINK_OPENING in response else response


def last_answer(response: str) -> str | None:
    """Return what a text gives as its answer in words: what follows its last "answer is", "Answer:" or "####".

    The answer is on the same line or, where that is empty, on the next. Marks of emphasis, dollars and quotes around it
    are removed. Returns None when there is no such phrase, or more than `MAX_SAID` characters follow.
    """
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
    """Return a response's answer from the location that `payload["answer_format"]` names: tags, boxed or last.

    Without that key the answer is read from `<answer>` tags. Returns None when the response gives no answer.
    """
    place = payload.get("answer_format")
    if place == "last":
        return last_answer(response)
    if place == "boxed":
        boxes = boxed_answers(without_thinking(response))
        return ", ".join(dict.fromkeys(box.content.strip() for box in boxes)) or None
    return extract_answer(response)


class Box(NamedTuple):
    """One `\\boxed{}` in a text, with its content and position."""

    content: str
    start: int
    end: int  # index after the closing brace


def boxed_answers(text: str) -> list[Box]:
    """Return the last `\\boxed{}` of a text and the boxes next to it (`\\boxed{1}, \\boxed{2}`), in their order.

    Boxes that are close together, or have "and", "or" or a comma between them, are one answer. Returns an empty list
    when the text has no box or its last box is not closed.
    """
    boxes: list[Box] = []  # from the last box to the first
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
    """Return whether two `\\boxed{}` with this text between them are one answer."""
    if len(between) < MAX_GAP:
        return True
    return len(between) < MAX_GAP_WITH_SEPARATOR and _SEPARATOR.search(between) is not None


def _closing_brace(text: str, start: int, limit: int) -> int | None:
    """Return the index after the brace that closes a LaTeX group, or None when no brace closes it.

    The content of the group begins at `start`.
    """
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
