"""1 for the reference answer, 0 for anything else."""

from __future__ import annotations

from nemo_brorl.tasks.verifiers.answer import extract_answer
from nemo_brorl.tasks.verifiers.payload import Payload, accepted_answers
from nemo_brorl.tasks.verifiers.payload import check_answer as check

__all__ = ["answer", "check", "score"]


def score(payload: Payload, response: str) -> float:
    """Compare the response's answer with `payload["answer"]`; runs of white space count as one blank."""
    given = extract_answer(response)
    return float(given is not None and given.split() in [accepted.split() for accepted in accepted_answers(payload)])


def answer(payload: Payload, response: str) -> str | None:
    """The response's answer, one blank for a run of white space."""
    return " ".join((extract_answer(response) or "").split()) or None
