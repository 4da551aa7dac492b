"""Advantages, with numbers worked by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from nemo_brorl.algorithm.advantages import ADVANTAGES, GroupRewards, advantages_of, disagree, weigh_rare_successes
from nemo_brorl.config.algorithm import ADVANTAGES as NAMES
from nemo_brorl.config.algorithm import AlgorithmConfig


def rewards(*groups: list[float]) -> list[GroupRewards]:
    """Of groups without shaping."""
    return [shaped_group(group, group) for group in groups]


def shaped_group(raw: list[float], shaped: list[float], lengths: list[int] | None = None) -> GroupRewards:
    return GroupRewards(
        np.asarray(raw, np.float32), np.asarray(shaped, np.float32), np.asarray(lengths or [2] * len(raw), np.int32)
    )


def advantage(name: str, *groups: list[float], **settings: float) -> list[np.ndarray]:
    return advantages_of(rewards(*groups), AlgorithmConfig(advantage=name, **settings))


def test_the_config_knows_every_algorithm() -> None:
    assert set(NAMES) == ADVANTAGES.keys()


def test_reinforce_plus_plus_baseline_subtracts_the_group_mean_and_divides_by_the_batch_deviation() -> None:
    # centred: ±0.5 (4 of them) and ±1 (2 of them) -> mean square (4 * 0.25 + 2 * 1) / 6 = 0.5
    result = advantage("reinforce_plus_plus_baseline", [1, 0, 1, 0], [2, 0])
    np.testing.assert_allclose(result[0], np.array([0.5, -0.5, 0.5, -0.5]) / np.sqrt(0.5), rtol=1e-6)
    np.testing.assert_allclose(result[1], np.array([1, -1]) / np.sqrt(0.5), rtol=1e-6)


def test_reinforce_plus_plus_has_one_baseline_for_the_batch() -> None:
    # mean of (1, 1, 0, 0, 0, 1) is 1/2, every distance 1/2, so every advantage is ±1
    result = advantage("reinforce_plus_plus", [1, 1], [0, 0, 0, 1])
    np.testing.assert_allclose(np.concatenate(result), [1, 1, -1, -1, -1, 1], rtol=1e-6)


def test_grpo_gives_every_group_unit_deviation() -> None:
    # one success in four: mean 1/4, deviation sqrt(3)/4 -> sqrt(3) and -1/sqrt(3)
    (result,) = advantage("grpo", [1, 0, 0, 0])
    np.testing.assert_allclose(result, [np.sqrt(3), *[-1 / np.sqrt(3)] * 3], rtol=1e-6)


def test_dr_grpo_only_centres() -> None:
    (result,) = advantage("dr_grpo", [1, 0, 0, 0])
    np.testing.assert_allclose(result, [0.75, -0.25, -0.25, -0.25])


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    (result,) = advantage("rloo", [1, 0, 1, 1])
    np.testing.assert_allclose(result, [1 - 2 / 3, -1, 1 - 2 / 3, 1 - 2 / 3], rtol=1e-6)


def test_opo_weighs_rewards_by_length_in_its_baseline() -> None:
    # (3 · 1 + 1 · 0 + 4 · 0) / 8 = 3/8; a group of equal lengths has its mean, one without tokens none
    (result,) = advantages_of([shaped_group([1, 0, 0], [1, 0, 0], [3, 1, 4])], AlgorithmConfig(advantage="opo"))
    np.testing.assert_allclose(result, [5 / 8, -3 / 8, -3 / 8])
    (equal,) = advantage("opo", [1, 0, 0, 0])
    np.testing.assert_allclose(equal, [0.75, -0.25, -0.25, -0.25])
    (empty,) = advantages_of([shaped_group([1, 0], [1, 0], [0, 0])], AlgorithmConfig(advantage="opo"))
    assert empty.tolist() == [1, 0]


def test_opos_baseline_has_the_least_variance_where_noise_grows_with_length() -> None:
    """Score functions of variance l; right answers are twice as long as wrong ones."""
    random, num = np.random.default_rng(0), 50_000
    right = (random.random((num, 8)) < 0.4).astype(np.float64)
    lengths = np.where(right == 1, 20.0, 10.0)
    scores = np.sqrt(lengths) * random.normal(size=lengths.shape)
    by_length = (right * lengths).sum(1, keepdims=True) / lengths.sum(1, keepdims=True)
    plain = right.mean(1, keepdims=True)
    assert ((right - by_length) * scores).sum(1).var() < 0.99 * ((right - plain) * scores).sum(1).var()


def test_maxrl_divides_by_the_success_rate() -> None:
    hard, easy, hopeless = advantage("maxrl", [1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0])
    np.testing.assert_allclose(hard, [3, -1, -1, -1])  # (1 − 1/4) / (1/4)
    np.testing.assert_allclose(easy, [1 / 3, 1 / 3, 1 / 3, -1], rtol=1e-6)
    assert not hopeless.any()


def test_maxrl_averages_score_functions_over_the_successes() -> None:
    # Σ A_i s_i / N = Σ_successes s_i / K − Σ s_i / N, for any scores s
    group, scores = np.array([1, 0, 1, 0, 0], np.float32), np.array([0.3, -1.2, 0.8, 0.1, 2.0])
    (result,) = advantage("maxrl", group.tolist())
    assert result @ scores / 5 == pytest.approx(scores[group == 1].mean() - scores.mean(), rel=1e-6)


def test_maxrl_counts_a_group_by_its_successes_however_its_rewards_were_shaped() -> None:
    # cosine shaping: right answers 0.5, wrong ones −1, mean −0.625; a quarter is right
    shaped = [shaped_group([1, 0, 0, 0], [0.5, -1, -1, -1])]
    (result,) = advantages_of(shaped, AlgorithmConfig(advantage="maxrl"))
    np.testing.assert_allclose(result, np.array([1.125, -0.375, -0.375, -0.375]) * 4)


@pytest.mark.parametrize(("num", "rate"), [(2, 0.3), (4, 0.05), (16, 0.01)])
def test_maxrl_is_the_gradient_of_the_log_likelihood_truncated_at_order_n_minus_one(num: int, rate: float) -> None:
    """Every number of successes of a bandit, score r − p: ∇p = p (1 − p), and the truncated gradient is ∇p Σ_j<N−1 (1 −
    p)^j."""
    total = 0.0
    for successes in range(num + 1):
        group = np.repeat([1.0, 0.0], [successes, num - successes])
        (values,) = advantage("maxrl", group.tolist())
        chance = math.comb(num, successes) * rate**successes * (1 - rate) ** (num - successes)
        total += chance * float(values @ (group - rate)) / num
    series = sum((1 - rate) ** order for order in range(num - 1))
    assert total == pytest.approx(rate * (1 - rate) * series, rel=1e-6)


@pytest.mark.parametrize("num", [3, 8, 60, 511, 512])
def test_pass_at_k_is_finite_for_every_k_with_and_without_successes(num: int) -> None:
    for k in range(1, num + 1, max(1, num // 60)):
        hopeless, solved = advantage("pass_at_k", [0.0] * num, [1.0] * num, pass_at_k=k)
        assert not hopeless.any()
        assert not solved.any()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_at_k_is_the_mean_over_all_subsets_that_hold_the_rollout(k: int) -> None:
    group = [1, 0, 0, 1, 0]
    subsets = [(subset, float(any(group[i] for i in subset))) for subset in combinations(range(5), k)]
    values = np.array([value for _, value in subsets])
    expected = [np.mean([value for subset, value in subsets if i in subset]) - values.mean() for i in range(5)]
    (result,) = advantage("pass_at_k", group, pass_at_k=k)
    np.testing.assert_allclose(result, np.array(expected) / values.std(), rtol=1e-5, atol=1e-7)


def test_pass_at_k_stops_pulling_where_every_subset_succeeds() -> None:
    (result,) = advantage("pass_at_k", [1] * 500 + [0] * 12, pass_at_k=64)
    assert not result.any()


def test_a_rare_success_weighs_more_than_a_common_one() -> None:
    # (1 − 1/4)² = 9/16 and (1 − 3/4)² = 1/16 times Dr. GRPO's 3/4 and 1/4
    groups = rewards([1, 0, 0, 0], [1, 1, 1, 0])
    hard, easy = weigh_rare_successes(advantage("dr_grpo", [1, 0, 0, 0], [1, 1, 1, 0]), groups, 2.0)
    assert (hard[0], easy[0]) == (pytest.approx(9 / 16 * 0.75), pytest.approx(1 / 16 * 0.25))


def test_success_is_judged_by_the_raw_reward() -> None:
    # the cosine length reward of a correct answer lies below 1: 0.9 when short, 0.5 when long
    shaped = [shaped_group([1, 1, 0, 0], [0.9, 0.5, -1, -0.5])]
    (result,) = advantages_of(shaped, AlgorithmConfig(advantage="pass_at_k", pass_at_k=1))
    np.testing.assert_allclose(result, [1, 1, -1, -1], rtol=1e-5)
    # shaped mean −0.025, and half are correct: weight (1 − 1/2)¹
    centred = advantages_of(shaped, AlgorithmConfig(advantage="dr_grpo"))
    (result,) = weigh_rare_successes(centred, shaped, 1.0)
    np.testing.assert_allclose(result, 0.5 * np.array([0.925, 0.525, -0.975, -0.475]), rtol=1e-6)


def test_the_only_success_of_512_gets_the_largest_advantage() -> None:
    group = np.zeros(512, np.float32)
    group[7] = 1
    for name in ADVANTAGES.keys() - {"none"}:
        (result,) = advantage(name, group.tolist())
        assert result.argmax() == 7, name
    assert advantage("none", group.tolist())[0].tolist() == [0] * 512
    (result,) = advantage("reinforce_plus_plus_baseline", group.tolist())
    np.testing.assert_allclose(result[7], 511 / np.sqrt(511), rtol=1e-5)  # (1 - 1/512) / sqrt(1/512 * 511/512)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_equal_rewards_give_zero_not_nan(name: str) -> None:
    assert np.abs(advantage(name, [0.3] * 512)[0]).max() < 1e-6


# One reward in eight differs in its last bit, on scales from 0.3 to 1e6.
NOISY = ([33.333332] * 7 + [33.333336], [0.3] * 7 + [0.30000004], [-50.0] * 7 + [-50.000004], [1e6] * 7 + [1000000.06])


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@pytest.mark.parametrize("noisy", NOISY)
def test_rounding_is_no_signal_on_any_scale(name: str, noisy: list[float]) -> None:
    (alone,) = advantage(name, noisy)
    np.testing.assert_allclose(alone, 0.0, atol=1e-6 * abs(noisy[0]) if name == "opo" else 0.0)
    assert not disagree(np.asarray(noisy, np.float32), 0.0)


def test_a_reward_on_a_large_scale_that_really_differs_is_a_signal() -> None:
    assert disagree(np.array([33.3, 33.4], np.float32), 0.0)
    (values,) = advantage("grpo", [33.3, 33.4])
    np.testing.assert_allclose(values, [-1, 1], rtol=1e-5)


def test_the_smallest_range_is_a_share_of_the_full_mark() -> None:
    assert not disagree(np.array([0, 1], np.float32), 0.2, full_mark=10.0)
    assert disagree(np.array([0, 2], np.float32), 0.2, full_mark=10.0)
    # Small rewards need their full mark to be seen as more than rounding.
    assert not disagree(np.array([0, 1e-7], np.float32), 0.0)
    assert disagree(np.array([0, 1e-7], np.float32), 0.0, full_mark=1e-6)
