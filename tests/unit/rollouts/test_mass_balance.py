"""The mass balance of a step, by hand and against the theory's own function."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brorl_lab.theory.rollout_size import Rewards, theorem_1

from nemo_brorl.rollouts.metrics import mass_balance_metrics
from nemo_brorl.types import SampledMass
from tests.support.fakes import make_group


def test_a_group_by_hand() -> None:
    # q = 1/2, drawn: right p = 1/4 and wrong p = 1/2, each twice; nothing drawn once
    group = replace(make_group([1, 1, 0, 0]), mass=SampledMass(2, 0, 0.25, 0.5, 1 / 16, 1 / 4))
    metrics = mass_balance_metrics([group])
    assert metrics["mass_balance/unsampled_mass"] == pytest.approx(0.25)
    assert metrics["mass_balance/unsampled_mass_good_turing"] == 0.0
    assert metrics["mass_balance/distinct_responses"] == 0.5
    # S = −1/4: (1 + 1/4) · 1/2 · 1/16 + (1 − 1/4) · 1/2 · 1/4, over N = 4; and 1/4 · 1/2 · 1/16 over 4
    assert metrics["mass_balance/sampled_gain"] == pytest.approx((1.25 / 32 + 0.75 / 8) / 4)
    assert metrics["mass_balance/unsampled_coupling_bound"] == pytest.approx(1 / 128 / 4)


def test_the_terms_are_those_of_theorem_1_and_the_bound_holds() -> None:
    p, is_correct = np.array([0.3, 0.25, 0.2, 0.15, 0.1]), np.array([True, False, True, False, True])
    is_sampled, num = np.array([True, True, False, False, True]), 8
    seen = is_sampled & is_correct, is_sampled & ~is_correct
    masses = [float(p[part].sum()) for part in seen] + [float((p[part] ** 2).sum()) for part in seen]
    rewards = [1.0] * 5 + [0.0] * 3  # 5 of 8 right: q is an estimate of Q = .6
    metrics = mass_balance_metrics([replace(make_group(rewards), mass=SampledMass(3, 1, *masses))])
    exact = theorem_1(p, is_correct, is_sampled, num, Rewards())
    # the same but for q in place of Q
    mood = masses[0] - masses[1]
    assert exact.sampled_correct / 0.4 * 0.375 + exact.sampled_wrong / 0.6 * 0.625 == pytest.approx(
        metrics["mass_balance/sampled_gain"]
    )
    assert (
        abs(exact.coupling)
        <= abs(mood) * 0.625 * 0.35**2 / num
        == pytest.approx(metrics["mass_balance/unsampled_coupling_bound"])
    )
