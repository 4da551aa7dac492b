"""How much probability a group's rollouts have seen, whole responses taken as the tokens of the theory
(`docs/theory.md`)."""

from __future__ import annotations

import numpy as np

from nemo_brorl.types import SUCCESS_REWARD, Float32, SampledMass, UInt64


def sampled_mass(keys: UInt64, log_probs: Float32, rewards: Float32) -> SampledMass:
    """From every rollout's key, log-prob and reward [N]. Equal responses are taken to have equal rewards."""
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    p = np.exp(log_probs[first].astype(np.float64))
    is_correct = rewards[first] >= SUCCESS_REWARD
    return SampledMass(
        num_distinct=len(first),
        num_singletons=int((counts == 1).sum()),
        correct=float(p[is_correct].sum()),
        wrong=float(p[~is_correct].sum()),
        correct_squares=float((p[is_correct] ** 2).sum()),
        wrong_squares=float((p[~is_correct] ** 2).sum()),
    )
