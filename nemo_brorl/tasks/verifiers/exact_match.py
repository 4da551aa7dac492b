"""1 for the reference answer, 0 for anything else."""

from __future__ import annotations

from nemo_brorl.tasks.verifiers.answer import extract_answer
from nemo_brorl.tasks.verifiers.payload import Payload, accepted_answers
from nemo_brorl.tasks.verifiers.payload import check_answer as check

__all__ = ["answer", "check", "score"]


def score(payload: Payload, response: str) -> float:
    """Compare the response's answer with `payload["answer"]`; runs of white space count as one blank."""
    given = extract_answer(response)
    if given is None:
        return 0.0
    for accepted in accepted_answers(payload):
        if given.split() == accepted.split():
            return 1.0
    return 0.0


def answer(payload: Payload, response: str) -> str | None:
    """The response's answer, one blank for a run of white space."""
    words = (extract_answer(response) or "").split()
    return " ".join(words) or None
