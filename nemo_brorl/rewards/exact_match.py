"""1 for the reference answer, 0 for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_brorl.rewards.answer import extract_answer


def score(payload: Mapping[str, Any], response: str) -> float:
    """Compare the response's answer with `payload["answer"]`; runs of white space count as one blank."""
    answer = extract_answer(response)
    return float(answer is not None and answer.split() == str(payload["answer"]).split())
