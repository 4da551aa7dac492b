"""Scores and reasons of responses that were judged together."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

LATE = "has not ended after"  # start of the reason when a deadline has passed
LARGEST_SCORE = 3e38  # rewards have 32 bits, and an infinite one would spoil those of its group


class Verdicts(NamedTuple):
    """Scores of several responses, and the reasons that verifiers give for them."""

    scores: list[float | None]  # one score a response; None: the verifier failed
    reasons: dict[int, str]  # by index of the response: why the verifier failed, or its comment on the score
    # indices of failures that the response caused, such as a program that runs too long: who trains on it scores it 0
    of_response: Set[int] = frozenset()

    def is_own(self, index: int) -> bool:
        """Return whether the verifier failed on a response that is not to blame for it."""
        return self.scores[index] is None and index not in self.of_response
