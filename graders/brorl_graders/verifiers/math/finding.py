"""Find the answer in a response: in its boxes, in its answer tags, or stated in its text."""

from __future__ import annotations

import re

from brorl_graders.base.answer import Box, boxed_answers, extract_answer, json_answer, last_answer, without_thinking
from brorl_graders.base.payload import Payload
from brorl_graders.verifiers.math.remarks import is_denied_at, is_taken_back, without_continuation
from brorl_graders.verifiers.math.statement import first_mark, last_mark, stated_answer

PLACES = ("anywhere", "boxed", "tags", "last")  # locations of an answer; the first is the default
MAX_TAIL = 2000  # characters of an answer, and of a response's end in which an unmarked answer is looked for
MAX_EMPTY_BOXES = 8  # groups of boxes at a response's end that are empty
_FINAL_ANSWER = re.compile("final answer is", re.IGNORECASE)  # after a box, such a statement replaces the box
_CORRECTION = re.compile(
    r"\b(?:no|wait|rather|actually|instead|sorry|correction|should be|make that|i mean|oops)\b", re.IGNORECASE
)
_STRUCK_OUT = re.compile(r"~~[^~\n]+~~(?=.*\\boxed)", re.DOTALL)
_DENIAL = re.compile(r"\b(?:not|never)\b", re.IGNORECASE)
_JOINED = re.compile(r"\b(?:plus|minus|times|divided|over|of)\b", re.IGNORECASE)


def place_of(payload: Payload) -> str:
    """Return where in a response the answer must be: `anywhere`, `boxed`, `tags` or `last`.

    The verifier's option `extract` comes first, then the answer format of the data.
    """
    place: str = payload.get("extract") or payload.get("answer_format") or PLACES[0]
    return place


def find_answer(response: str, place: str = PLACES[0]) -> str | None:
    """Return the answer in a response, such as the contents of its box, or None if there is none at this place.

    `place` is `anywhere`, `boxed`, `tags` or `last`.
    """
    if place == "last":
        said = last_answer(response)
        return None if said is None else stated_answer(f"answer is {said}")
    shown = without_thinking(response)
    tagged = extract_answer(shown)
    if place == "tags" and tagged is None:
        return None
    if tagged is None and place == PLACES[0]:
        tagged = json_answer(shown)
    text = _up_to_its_end(shown if tagged is None else tagged)
    text = _STRUCK_OUT.sub("", text) if "~~" in text else text
    boxes = _filled_boxes(text)
    final = -1  # start of the last "final answer is"
    for match in _FINAL_ANSWER.finditer(text):
        final = match.start()
    if boxes and final < boxes[-1].end:
        return _in_standing_boxes(text, boxes, may_be_stated=place != "boxed")
    if place == "boxed":
        return None
    if final >= 0:
        return stated_answer(text[final : final + MAX_TAIL])
    tail = text[-MAX_TAIL:]
    if len(text) > MAX_TAIL and last_mark(tail) < 0:
        mark = last_mark(text)
        tail = text[mark : mark + MAX_TAIL] if mark >= 0 else tail
    return stated_answer(tail, may_be_words=tagged is not None)


def _up_to_its_end(text: str) -> str:
    """Return a response without end marks, and without a new question after its answer."""
    if "\n" not in text and "<" not in text:
        return text
    box = text.find("\\boxed")
    mark = first_mark(text) if ":" in text or "<" in text else -1
    places = [place for place in (box, mark) if place >= 0]
    return without_continuation(text, min(places, default=-1))


def _filled_boxes(text: str) -> list[Box]:
    """Return the last boxes of a text that are not all empty."""
    last = boxed_answers(text)
    boxes = last
    for _ in range(MAX_EMPTY_BOXES):
        if not boxes or any(box.content.strip() for box in boxes):
            break
        boxes = boxed_answers(text[: boxes[0].start])
    return boxes or last


def _in_standing_boxes(text: str, boxes: list[Box], may_be_stated: bool) -> str | None:
    """Return the contents of the boxes that the text around them lets stand. None: it denies them.

    `may_be_stated`: an answer in words may follow boxes that are denied.
    """
    first = 0
    end = len(boxes)
    for number in range(1, len(boxes)):
        between = text[boxes[number - 1].end : boxes[number].start]
        if _CORRECTION.search(between):
            first = number
        elif _JOINED.search(between):
            return None
        elif _DENIAL.search(between):
            end = min(end, number)
    standing = boxes[first:end]
    if not standing or is_denied_at(text, standing[0].start):
        return None
    if is_taken_back(text, boxes[-1].end):
        rest = text[boxes[-1].end :]
        return stated_answer(rest) if may_be_stated and last_mark(rest) >= 0 else None
    return in_boxes(standing)


def in_boxes(boxes: list[Box]) -> str:
    """Return the contents of LaTeX boxes, each text once, with commas between them."""
    contents = dict.fromkeys(box.content.strip() for box in boxes)
    return ", ".join(contents)
