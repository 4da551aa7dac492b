"""Verifier that gives 1 for the reference answer as it is written, apart from white space, else 0.

`data.answer_format` names the location of a response's answer, by default the last `<answer>` tags.
"""

from __future__ import annotations

from brorl_graders.base.answer import read_answer
from brorl_graders.base.payload import ANSWER, Payload, accepted_answers
from brorl_graders.base.payload import check_answer as check

__all__ = ["KEYS", "answer", "check", "score"]

KEYS = (ANSWER,)


def score(payload: Payload, response: str) -> float:
    """Return 1.0 if the answer in a response is the reference answer, or one of several reference answers, else 0.0.

    The reference is `payload["answer"]`, a text or several texts. Runs of white space count as one space.
    """
    given = read_answer(payload, response)
    if given is None:
        return 0.0
    words = given.split()
    is_right = any(accepted.split() == words for accepted in accepted_answers(payload))
    return float(is_right)


def answer(payload: Payload, response: str) -> str | None:
    """Return the answer in a response with one space for each run of white space, or None if there is none."""
    given = read_answer(payload, response)
    if not given:
        return None
    return " ".join(given.split())
