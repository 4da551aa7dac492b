"""majority@k on numbers worked by hand."""

from __future__ import annotations

from math import comb

import pytest

from nemo_brorl.evaluation.majority import NUM_DRAWS, majority_at_k


def test_the_most_frequent_answer_of_all_samples_decides() -> None:
    assert majority_at_k(["4", "4", "5"], [True, True, False], 3) == 1.0
    assert majority_at_k(["4", "5", "5"], [True, False, False], 3) == 0.0


def test_a_tie_is_broken_evenly() -> None:
    assert majority_at_k(["4", "5"], [True, False], 2) == 0.5
    assert majority_at_k(["4", "5", "6"], [True, False, False], 3) == pytest.approx(1 / 3)


def test_samples_without_an_answer_do_not_vote() -> None:
    assert majority_at_k([None, None, None, "4"], [False, False, False, True], 4) == 1.0
    assert majority_at_k([None, None], [False, False], 2) == 0.0


def test_with_fewer_votes_than_samples_every_subset_counts() -> None:
    # pairs of a a b -: aa 1, ab 1/2 (twice), a- 1 (twice), b- 0
    assert majority_at_k(["a", "a", "b", None], [True, True, False, False], 2) == pytest.approx(
        (1 + 0.5 + 0.5 + 1 + 1 + 0) / 6
    )


def test_one_vote_is_pass_at_1() -> None:
    assert majority_at_k(["a", "b", "b", "c"], [True, False, False, False], 1) == 0.25


def test_many_subsets_are_drawn_with_a_seed_and_come_close_to_all_of_them() -> None:
    answers, right = ["a"] * 8 + ["b"] * 8, [True] * 8 + [False] * 8  # as many right as wrong: a half, whatever k
    assert comb(16, 8) > NUM_DRAWS
    found = majority_at_k(answers, right, 8, seed=3)
    assert found == majority_at_k(answers, right, 8, seed=3)
    assert found == pytest.approx(0.5, abs=0.05)


def test_an_answer_that_is_not_always_right_counts_as_often_as_it_is() -> None:
    assert majority_at_k(["a", "a", "a", "b"], [True, True, False, False], 4) == pytest.approx(2 / 3)


def test_more_votes_than_samples_are_refused() -> None:
    with pytest.raises(AssertionError, match="majority@3 needs at least 3 samples, got 2"):
        majority_at_k(["a", "b"], [True, False], 3)
