"""1 for the reference answer, 0 for anything else."""

from __future__ import annotations

from nemo_brorl.rewards.answer import extract_answer
from nemo_brorl.rewards.payload import Payload, accepted_answers
from nemo_brorl.rewards.payload import check_answer as check

__all__ = ["check", "score"]


def score(payload: Payload, response: str) -> float:
    """Compare the response's answer with `payload["answer"]`; runs of white space count as one blank."""
    answer = extract_answer(response)
    return float(answer is not None and answer.split() in [accepted.split() for accepted in accepted_answers(payload)])
