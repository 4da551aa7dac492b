"""Which rewards say anything: those of rollouts that disagree."""

from __future__ import annotations

from nemo_brorl.types import Float32

EQUAL = 1e-6  # rewards that differ by less are the same


def disagree(rewards: Float32, min_range: float) -> bool:
    """Whether the best and the worst of these raw rewards differ, by at least `min_range`. Their standard deviation
    would not be zero for 512 equal rewards of 0.3."""
    least_range = max(min_range - EQUAL, EQUAL)
    if not len(rewards):
        return False
    return float(rewards.max()) - float(rewards.min()) > least_range
