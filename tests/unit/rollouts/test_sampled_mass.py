"""What a group has seen of the distribution, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.rollouts.ledger import sampled_mass


def test_equal_responses_count_once() -> None:
    # response 7 (right, p = 1/2) drawn twice, 8 (wrong, 1/4) once, 9 (right, 1/8) once
    keys = np.array([7, 8, 7, 9], np.uint64)
    log_probs = np.log(np.array([1 / 2, 1 / 4, 1 / 2, 1 / 8], np.float32))
    mass = sampled_mass(keys, log_probs, np.array([1, 0, 1, 1], np.float32))
    assert (mass.num_distinct, mass.num_singletons) == (3, 2)
    assert (mass.correct, mass.wrong) == (pytest.approx(5 / 8), pytest.approx(1 / 4))
    assert (mass.correct_squares, mass.wrong_squares) == (pytest.approx(1 / 4 + 1 / 64), pytest.approx(1 / 16))
