"""What became of texts that were judged."""

from __future__ import annotations

from typing import NamedTuple

LATE = "has not ended after"  # begins the reason of a deadline


class Verdicts(NamedTuple):
    """What became of texts."""

    scores: list[float | None]  # None: the verifier failed
    reasons: dict[int, str]  # by index: why the verifier failed, or what it says of its score
