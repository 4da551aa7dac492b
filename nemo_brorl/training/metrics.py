"""The terms of BroRL's mass balance (arXiv 2510.01180, Theorem 1) for a step's groups, a whole response taken as one
token.

For short answers a group of 512 sees most of the distribution and the terms mean what the theory says. For long ones
every response is new, the unsampled mass is about 1, and only the trend with N is of use. The measured counterpart, the
change of the expected advantage after an update, is `policy/measured_gain.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_brorl.types import SUCCESS_REWARD, ScoredGroup


def mass_balance_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Means over all groups sampled in a step, informative or not; rewards taken as ±1, η = 1.

    unsampled_mass              1 − probability of the responses drawn
    unsampled_mass_good_turing  the same from counts alone: the share of rollouts whose response was drawn once (Good
    1953)
    distinct_responses          different responses over rollouts
    sampled_gain                first two terms of Theorem 1, never negative
    unsampled_coupling_bound    the third term at most: its Σ p² over what was not drawn is below unsampled_mass²
    """
    terms = np.array([_terms(group) for group in groups])
    names = (
        "unsampled_mass",
        "unsampled_mass_good_turing",
        "distinct_responses",
        "sampled_gain",
        "unsampled_coupling_bound",
    )
    return {f"mass_balance/{name}": float(value) for name, value in zip(names, terms.mean(0), strict=True)}


def _terms(group: ScoredGroup) -> tuple[float, ...]:
    mass, num = group.mass, len(group.rewards)
    q = float((group.rewards >= SUCCESS_REWARD).mean())
    unsampled = min(max(1.0 - mass.correct - mass.wrong, 0.0), 1.0)
    mood = mass.correct - mass.wrong
    gain = (1 - mood) * (1 - q) * mass.correct_squares + (mood + 1) * q * mass.wrong_squares
    bound = abs(mood) * max(q, 1 - q) * unsampled**2
    return unsampled, mass.num_singletons / num, mass.num_distinct / num, gain / num, bound / num
