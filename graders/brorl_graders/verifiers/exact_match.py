"""1 for the reference answer as it is written, 0 for anything else."""

from __future__ import annotations

from brorl_graders.base.answer import read_answer
from brorl_graders.base.payload import Payload, accepted_answers
from brorl_graders.base.payload import check_answer as check

__all__ = ["answer", "check", "score"]


def score(payload: Payload, response: str) -> float:
    """Compare the response's answer with `payload["answer"]`; runs of white space count as one blank."""
    given = read_answer(payload, response)
    if given is None:
        return 0.0
    words = given.split()
    is_right = any(accepted.split() == words for accepted in accepted_answers(payload))
    return float(is_right)


def answer(payload: Payload, response: str) -> str | None:
    """The response's answer, one blank for a run of white space."""
    given = read_answer(payload, response)
    if not given:
        return None
    return " ".join(given.split())
