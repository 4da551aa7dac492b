"""Waves: sizes, decisions and weights by hand; the estimate is unbiased, by enumeration of every outcome and by
sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.rollouts import PosteriorConfig, RolloutsConfig, WavesConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.group_size.wave_weights import Draw, shares, wave_weights
from nemo_brorl.rollouts.group_size.waves import FixedAllocation, WaveAllocation, coin, make_allocation, wave_sizes
from nemo_brorl.types import Float32, Int32, Prompt, ScoredGroup
from tests.support.fakes import make_group, make_prompt


def allocation(num: int = 20, seed: int = 0, **settings: float) -> WaveAllocation:
    """A group of 20 in waves of 4, 4, 8 and 4."""
    config = WavesConfig(
        **{"first_wave": 4, "growth": 2.0, "half_signal": 16.0, "min_probability": 0.2, "reach": 0.5, **settings}
    )
    return WaveAllocation(config, num, SuccessPosterior(PosteriorConfig()), seed)


def so_far(successes: int, num: int) -> tuple[Float32, Int32]:
    return np.repeat([1, 0], [successes, num - successes]).astype(np.float32), np.full(num, 2, np.int32)


def test_sizes_multiply_up_to_n() -> None:
    assert wave_sizes(512, 64, 2.0) == [64, 64, 128, 256]
    assert wave_sizes(512, 64, 4.0) == [64, 192, 256]
    assert wave_sizes(512, 64, 8.0) == [64, 448]
    assert wave_sizes(16, 64, 2.0) == [16]


def test_a_small_remainder_joins_the_wave_before() -> None:
    assert wave_sizes(33, 16, 2.0) == [16, 17]
    assert wave_sizes(20, 4, 2.0) == [4, 4, 8, 4]
    assert wave_sizes(70, 64, 4.0) == [70]
    assert all(sum(wave_sizes(num, 3, 1.01)) == num and min(wave_sizes(num, 3, 1.01)) >= 2 for num in range(4, 60))


def test_a_group_that_was_held_while_n_changed_goes_on_under_the_new_plan() -> None:
    draws = [Draw(4, 1.0), Draw(4, 0.5)]
    assert allocation(20).sizes_after(draws) == [8, 4]
    assert allocation(64).sizes_after([*draws, Draw(8, 0.5), Draw(4, 0.5)]) == [
        12,
        32,
    ]  # 20 so far; waves up to 8, 16, 32 and 64
    assert allocation(8).sizes_after([*draws, Draw(8, 0.5)]) == []


def test_fixed_asks_once_and_leaves_groups_as_they_are() -> None:
    fixed = make_allocation(RolloutsConfig(), 8, SuccessPosterior(PosteriorConfig()), 0)
    assert isinstance(fixed, FixedAllocation)
    draw = fixed.first(make_prompt())
    assert (draw, fixed.extend(make_prompt(), [draw], *so_far(3, 8)), fixed.close([draw])) == (Draw(8, 1.0), None, ())


def test_worth_and_price_by_hand() -> None:
    # Nothing was seen: Beta(½, ½), variance 1/8. A first wave of 4 is worth 1/8 · 4/20 for 3 prompt tokens and 4 · 2
    # response tokens.
    waves = allocation()
    price = 1 / 8 * (4 / 20) / (3 + 4 * 2)
    assert waves.price(make_prompt(), 2.0) == pytest.approx(price)
    # After 2 of 4: Beta(2½, 2½), variance 2.5² / (5 · 6). Four more: 8/24 − 4/20 of it for 4 · 2 tokens.
    worth = 2.5**2 / 30 * (8 / 24 - 4 / 20) / 8
    assert waves.probability(make_prompt(), [Draw(4, 1.0)], *so_far(2, 4)) == min(1.0, math.sqrt(worth / price))
    # After 0 of 4: Beta(½, 4½), variance 0.5 · 4.5 / (5 · 6).
    worth = 0.5 * 4.5 / 30 * (8 / 24 - 4 / 20) / 8
    assert waves.probability(make_prompt(), [Draw(4, 1.0)], *so_far(0, 4)) == pytest.approx(math.sqrt(worth / price))


def test_a_worthless_wave_keeps_the_least_probability_and_a_full_group_none() -> None:
    waves = allocation(half_signal=1e-3)  # four rollouts say it all
    assert waves.probability(make_prompt(), [Draw(4, 1.0)], *so_far(2, 4)) == 0.2
    draws = [Draw(size, 1.0) for size in waves.sizes]
    assert waves.probability(make_prompt(), draws, *so_far(10, 20)) == 0.0
    assert waves.extend(make_prompt(), draws, *so_far(10, 20)) is None


def test_coins_are_uniform_and_the_same_after_a_restart() -> None:
    coins = np.array([coin(1, f"train/{index}", 1) for index in range(2000)])
    assert coins.mean() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 2000))
    assert coin(1, "train/0", 1) != coin(1, "train/0", 2) != coin(2, "train/0", 2)
    first, again = (
        [allocation(seed=3).extend(make_prompt(f"train/{i}"), [Draw(4, 1.0)], *so_far(0, 4)) for i in range(40)]
        for _ in "ab"
    )
    assert first == again
    assert None in first
    assert any(draw is not None for draw in first)


def test_a_group_that_is_sure_to_be_full_is_averaged_by_shares() -> None:
    sizes = [4, 4, 8, 4]
    assert wave_weights([Draw(size, 1.0) for size in sizes], shares(sizes, 1.0), 16.0) == pytest.approx(
        [0.2, 0.2, 0.4, 0.2]
    )
    assert shares([4, 4, 8], 0.5) == pytest.approx([4 / 8, 2 / 8, 2 / 8])


def test_weights_of_two_equal_waves_by_hand() -> None:
    # α = (½, ½), P = ¼. Without a stand-in (β = 0): ½ ĝ_1, and ½ / ¼ ĝ_2 where it was drawn.
    stopped, drawn = [Draw(4, 1.0)], [Draw(4, 1.0), Draw(4, 0.25)]
    assert wave_weights(stopped, [0.5, 0.5], math.inf) == pytest.approx([0.5])
    assert wave_weights(drawn, [0.5, 0.5], math.inf) == pytest.approx([0.5, 2.0])
    # β = 1: ĝ_1, and ĝ_1 + ½ / ¼ (ĝ_2 − ĝ_1).
    assert wave_weights(stopped, [0.5, 0.5], 0.0) == pytest.approx([1.0])
    assert wave_weights(drawn, [0.5, 0.5], 0.0) == pytest.approx([-1.0, 2.0])
    # β = 4 / (4 + 4) = ½: b = ¼ ĝ_1, so ¾ ĝ_1; drawn: ½ ĝ_1 + ¼ ĝ_1 + 4 (½ ĝ_2 − ¼ ĝ_1)
    assert wave_weights(stopped, [0.5, 0.5], 4.0) == pytest.approx([0.75])
    assert wave_weights(drawn, [0.5, 0.5], 4.0) == pytest.approx([-0.25, 2.0])


def test_the_last_wave_before_a_deadline_counts_for_those_that_can_no_longer_come() -> None:
    # 4, 4, 8, 4 of 20: the second takes the shares of the third and the fourth
    weights = [wave.weight for wave in allocation(reach=1.0).close([Draw(4, 1.0), Draw(4, 1.0)], is_cut=True)]
    assert weights == pytest.approx([0.2, 0.8])


def test_the_waves_before_a_lost_one_count_for_it() -> None:
    # α = (½, ½), P = ¼, β = 0: ½ ĝ_1 + ½ / ¼ M_1
    assert wave_weights([Draw(4, 1.0), Draw(4, 0.25)], [0.5, 0.5], math.inf, is_last_lost=True) == pytest.approx(
        [2.5, 0.0]
    )
    (wave,) = allocation().close([Draw(4, 1.0), Draw(4, 1.0)], is_cut=True, is_last_lost=True)
    assert wave.weight == pytest.approx(1.0)


@dataclass(frozen=True)
class Outcome:
    """One way that a group of right and wrong answers can go."""

    chance: float
    estimate: float  # by weights
    plain: float  # the same rollouts with the mean of all as baseline
    num_rollouts: int


@dataclass(frozen=True)
class Deadline:
    """It passes while a wave is sampled, which still ends or is lost; those before it have ended."""

    wave: int  # counted from 1
    loses_wave: bool


def outcomes(waves: WaveAllocation, rate: float, deadline: Deadline | None = None) -> list[Outcome]:
    """All of them. Of two answers with the logit z of the right one, the score function is r − p and dp/dz = p (1 − p);
    an RLOO estimate from k of n right ones is k (n − k) / (n (n − 1))."""
    return list(_branches(waves, rate, [waves.first(make_prompt())], [], 1.0, deadline))


def _closed(waves: WaveAllocation, draws: Sequence[Draw], right: Sequence[int], chance: float) -> Outcome:
    """A group of which a deadline has left the waves with these right ones."""
    kept = waves.close(draws, is_cut=True, is_last_lost=len(right) < len(draws))
    estimate = sum(wave.weight * rloo(k, wave.num_rollouts) for wave, k in zip(kept, right, strict=True))
    return Outcome(chance, estimate, math.nan, sum(wave.num_rollouts for wave in kept))


def _branches(
    waves: WaveAllocation,
    rate: float,
    draws: Sequence[Draw],
    before: Sequence[int],
    chance: float,
    deadline: Deadline | None,
) -> Iterator[Outcome]:
    if deadline is not None and deadline.wave == len(draws) and deadline.loses_wave:
        yield _closed(waves, draws, before, chance)
        return
    size, total = draws[-1].num_rollouts, sum(draw.num_rollouts for draw in draws)
    for k in range(size + 1):
        right = [*before, k]
        here = chance * math.comb(size, k) * rate**k * (1 - rate) ** (size - k)
        if deadline is not None and deadline.wave == len(draws):
            yield _closed(waves, draws, right, here)
            continue
        more = waves.probability(make_prompt(), draws, *so_far(sum(right), total))
        if more < 1:
            parts = zip(waves.close(draws), right, strict=True)
            estimate = sum(wave.weight * rloo(k, wave.num_rollouts) for wave, k in parts)
            yield Outcome(here * (1 - more), estimate, rloo(sum(right), total), total)
        if more > 0:
            grown = [*draws, Draw(waves.sizes[len(draws)], more)]
            yield from _branches(waves, rate, grown, right, here * more, deadline)


def rloo(k: int, n: int) -> float:
    return k * (n - k) / (n * (n - 1))


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
@pytest.mark.parametrize(
    "settings", [{}, {"reach": 1.0}, {"half_signal": 1e-6}, {"half_signal": 1e4, "min_probability": 0.05}]
)
def test_over_all_outcomes_the_estimate_is_the_gradient_exactly(rate: float, settings: dict[str, float]) -> None:
    found = outcomes(allocation(**settings), rate)
    assert sum(outcome.chance for outcome in found) == pytest.approx(1, abs=1e-12)
    assert sum(outcome.chance * outcome.estimate for outcome in found) == pytest.approx(rate * (1 - rate), rel=1e-11)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("deadline", [Deadline(1, False), Deadline(2, False), Deadline(2, True), Deadline(3, True)])
def test_so_it_is_under_a_deadline_that_does_not_look_at_rewards(deadline: Deadline, rate: float) -> None:
    found = outcomes(allocation(), rate, deadline)
    assert sum(outcome.chance for outcome in found) == pytest.approx(1, abs=1e-12)
    assert sum(outcome.chance * outcome.estimate for outcome in found) == pytest.approx(rate * (1 - rate), rel=1e-11)


def test_the_same_decisions_without_weights_are_biased() -> None:
    found = outcomes(allocation(), 0.05)
    plain = sum(outcome.chance * outcome.plain for outcome in found)
    assert plain == pytest.approx(0.0351, abs=1e-4)  # the gradient is 0.0475: a quarter of it is lost on a hard prompt
    # Pooled over the rollouts of all groups, as a mean over tokens does, it is the gradient but for the baseline
    # (Wald's identity), with a prompt's weight its expected size: then prompts are weighed wrongly, by how large their
    # groups grow.
    size = sum(outcome.chance * outcome.num_rollouts for outcome in found)
    pooled = sum(outcome.chance * outcome.num_rollouts * outcome.plain for outcome in found) / size
    assert pooled == pytest.approx(0.0473, abs=1e-4)
    assert size < 0.75 * sum(outcome.chance * outcome.num_rollouts for outcome in outcomes(allocation(), 0.3))


def grow(waves: WaveAllocation, prompt: Prompt, rewards: Float32, lengths: Int32) -> tuple[list[Draw], int]:
    """Play a group whose N rollouts would have these rewards. Returns its waves and its size."""
    draws: list[Draw] = [waves.first(prompt)]
    while True:
        total = sum(draw.num_rollouts for draw in draws)
        draw = waves.extend(prompt, draws, rewards[:total], lengths[:total])
        if draw is None:
            return draws, total
        draws.append(draw)


def test_through_coins_and_advantages_a_bandits_gradient_is_met_within_its_error() -> None:
    """Four answers, softmax logits, two of them right; the sum of advantages times score functions over a batch of all
    groups, divided by its rollouts, is the mean of their estimates."""
    p, values, num_groups = np.array([0.01, 0.05, 0.54, 0.4]), np.array([1.0, 1.0, 0.0, 0.0]), 4000
    gradient = p * (values - p @ values)
    random, waves, config = np.random.default_rng(0), allocation(), BroRLConfig()
    config.algorithm.advantage = "rloo"
    answers = random.choice(4, size=(num_groups, 20), p=p)
    groups: list[ScoredGroup] = []
    for index, row in enumerate(answers):
        rewards = values[row].astype(np.float32)
        draws, total = grow(waves, make_prompt(f"train/{index}"), rewards, np.full(20, 2, np.int32))
        groups.append(replace(make_group(rewards[:total].tolist(), uid=f"train/{index}"), waves=waves.close(draws)))
    assert 4 < np.mean([len(group.rewards) for group in groups]) < 20

    scores = [np.eye(4)[row[: len(group.rewards)]] - p for row, group in zip(answers, groups, strict=True)]
    mean_size = np.mean([len(score) for score in scores])
    advantages = make_train_batch(groups, config, 1).advantages
    weighted = np.array([values @ score / mean_size for values, score in zip(advantages, scores, strict=True)])
    assert (np.abs(weighted.mean(0) - gradient) < 4 * weighted.std(0) / math.sqrt(num_groups)).all()

    advantages = make_train_batch([replace(group, waves=()) for group in groups], config, 1).advantages
    plain = np.array([values @ score / len(score) for values, score in zip(advantages, scores, strict=True)])
    assert (np.abs(plain.mean(0) - gradient) > 4 * plain.std(0) / math.sqrt(num_groups)).all()
