"""Where a response keeps its answer: between `<answer>` and `</answer>`."""

from __future__ import annotations

OPENING, CLOSING = "<answer>", "</answer>"


def extract_answer(response: str) -> str | None:
    """The last complete answer, without surrounding white space. None when there is none, as in a response cut off before the end tag."""
    before, closing, _ = response.rpartition(CLOSING)
    _, opening, answer = before.rpartition(OPENING)
    return answer.strip() if opening and closing else None
