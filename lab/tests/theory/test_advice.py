"""What another N would be worth: against a simulation, by hand, and back from what a run measures."""

from __future__ import annotations

import numpy as np
import pytest
from brorl_lab.theory.advice import (
    MeasuredSteps,
    fit_prior,
    mean_of_steps,
    predict_outlook,
    resample_steps,
    second_moment,
    signal_per_sample,
)
from brorl_lab.theory.success_prior import SuccessPrior

EASY = SuccessPrior(0.56, 0.13)


@pytest.mark.parametrize("prior", [EASY, SuccessPrior(0.3, 3.0)])
@pytest.mark.parametrize(("num", "noise"), [(2, 3.0), (16, 3.0), (64, 30.0)])
def test_the_second_moment_is_that_of_simulated_groups(prior: SuccessPrior, num: int, noise: float) -> None:
    """Scalar score functions: μ of variance 1 for right answers, 0 for wrong ones, and noise of variance v."""
    random, num_groups = np.random.default_rng(0), 20_000
    rates = random.beta(prior.a, prior.b, num_groups)[:, None]
    rewards = (random.random((num_groups, num)) < rates).astype(float)
    directions = random.normal(size=(num_groups, 1))
    scores = rewards * directions + np.sqrt(noise) * random.normal(size=rewards.shape)
    estimates = ((rewards - rewards.mean(1, keepdims=True)) * scores).sum(1) / (num - 1)
    squares = estimates**2
    error = squares.std() / np.sqrt(num_groups)
    assert second_moment(prior, num, noise) == pytest.approx(squares.mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("num", "noise", "expected"), [(64, 3, 0.43), (512, 3, 0.067), (64, 30, 0.84), (512, 30, 0.29)]
)
def test_easy_prompts_want_few_rollouts_each(num: int, noise: float, expected: float) -> None:
    assert signal_per_sample(EASY, num, 16, noise) == pytest.approx(expected, rel=0.02)


def test_rare_successes_hardly_mind_a_large_n() -> None:
    rare = SuccessPrior(1.0, 300.0)
    assert signal_per_sample(rare, 512, 16, 30.0) > 0.9
    assert signal_per_sample(rare, 16, 16, 30.0) == 1.0


@pytest.mark.parametrize("prior", [EASY, SuccessPrior(0.5, 8.0), SuccessPrior(2.0, 2.0)])
def test_a_prior_is_found_again_from_its_pass_at_k(prior: SuccessPrior) -> None:
    pass_at = {k: prior.pass_at_k(k) for k in (1, 2, 4, 8, 16, 32, 64)}
    all_right = 1 - prior.keep_rate(64) - (1 - pass_at[64])
    found = fit_prior(pass_at, all_right, 64)
    for num in (4, 64, 512):
        assert found.keep_rate(num) == pytest.approx(prior.keep_rate(num), abs=0.01)


def measured(**changes: float) -> MeasuredSteps:
    values: dict[str, float] = {
        "num_per_prompt": 16,
        "batch_rollouts": 4096,
        "all_right": 0.1,
        "prompt_tokens": 160,
        "response_tokens": 10,
        "mini_batches": 4,
        "generate_s": 0.001,
        "train_s": 0.002,
        "publish_s": 1.0,
    }
    return MeasuredSteps(pass_at={1: 0.2, 2: 0.3}, **{**values, **changes})  # type: ignore[arg-type]


def test_costs_and_updates_by_hand() -> None:
    prior = SuccessPrior(1.0, 1.0)  # keep rate 1 − 2 / (N + 1)
    found = predict_outlook(measured(), prior, num=64, num_samples=409_600, score_noise=3.0, prefill_cost=0.5)
    keep_rate = 1 - 2 / 65
    assert found.keep_rate == pytest.approx(keep_rate)
    assert found.informative_groups == pytest.approx(6400 * keep_rate)
    assert (found.updates_samples, found.updates_full) == (pytest.approx(100), pytest.approx(100 * keep_rate))
    # sampled: 10 + 0.5 · 160 / N tokens of work, 15 at N = 16 and 11.25 at 64; trained: 10 + 4 · 160 / N, 50 and 20
    generate = 409_600 * 0.001 * 11.25 / 15
    train = 409_600 * keep_rate * 0.002 * 20 / 50
    assert found.seconds == pytest.approx(generate + train + 100 * 1.0)


def test_a_run_is_the_mean_of_its_steps_and_resampling_keeps_their_number() -> None:
    steps = [measured(all_right=0.1), measured(all_right=0.3)]
    assert mean_of_steps(steps).all_right == pytest.approx(0.2)
    assert len(resample_steps(steps, np.random.default_rng(0))) == 2
