"""Prompts that are passed over, and what those asked stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.rollouts import PoolConfig, PosteriorConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import StarvationError
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior
from nemo_brorl.rollouts.metrics import coverage_metrics
from nemo_brorl.rollouts.prompt_pool import PromptPool
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import Prompt
from tests.support.fakes import FakePrompts, make_group, make_prompt
from tests.support.loop import fake, make_trainer, small_config

NUM_PROMPTS = 40


class CircledPrompts(FakePrompts):
    """The same prompts again and again, each time under another uid."""

    def take(self, num: int) -> list[Prompt]:
        prompts = super().take(num)
        return [replace(prompt, token_ids=(number_of(prompt),)) for prompt in prompts]


def number_of(prompt: Prompt) -> int:
    return int(prompt.uid.rsplit("/", 1)[1]) % NUM_PROMPTS


def test_everything_is_asked_until_it_is_switched_on() -> None:
    beliefs = SuccessPosterior(PosteriorConfig())
    beliefs.observe(make_prompt(), 1000, 1000)
    pool = PromptPool(PoolConfig(), FakePrompts(), beliefs, seed=0)
    assert [prompt.weight for prompt in pool.take(3)] == [1.0, 1.0, 1.0]
    assert pool.metrics() == {}


def test_the_probability_is_the_chance_of_disagreement_by_hand() -> None:
    # nothing was seen: Beta(½, ½); of two rollouts 2 E[x (1 − x)] = 1/4 disagree
    pool = PromptPool(PoolConfig(enabled=True), FakePrompts(), SuccessPosterior(PosteriorConfig()), seed=0)
    assert pool.probability(make_prompt()) == pytest.approx(0.25 / 0.5)
    pool.begin_step(64)
    assert pool.probability(make_prompt()) == 1.0
    pool.beliefs.observe(make_prompt(), 10_000, 10_000)
    assert pool.probability(make_prompt()) == 0.25, "never less"


def numbered(number: int) -> Prompt:
    """One of the prompts that come again and again."""
    return replace(make_prompt(), token_ids=(number,))


def test_a_prompt_is_retired_by_its_own_rollouts_of_all_steps() -> None:
    beliefs = SuccessPosterior(PosteriorConfig(memory=0.5))
    prompts = CircledPrompts()
    pool = PromptPool(PoolConfig(retire_from=0.75, recheck=0.0), prompts, beliefs, seed=0)
    solved, unseen = numbered(0), numbered(1)
    beliefs.observe(solved, 4, 8)
    assert not pool.is_retired(solved)
    beliefs.forget()
    beliefs.observe(solved, 8, 8)  # 2 + 8 of 4 + 8
    assert pool.is_retired(solved)
    assert not pool.is_retired(unseen)  # whatever is believed of its task
    assert 0 not in [number_of(prompt) for prompt in pool.take(30)]
    num_come = -(-prompts.position // NUM_PROMPTS)  # of the solved one, rounded up
    assert pool.metrics()["rollouts/prompts_retired"] == num_come


def test_a_prompt_stays_retired_while_old_rollouts_fade_and_comes_back_when_new_ones_are_wrong() -> None:
    beliefs = SuccessPosterior(PosteriorConfig(memory=0.5))
    pool = PromptPool(PoolConfig(retire_from=0.9), CircledPrompts(), beliefs, seed=0)
    beliefs.observe(numbered(0), 16, 16)
    for _ in range(5):
        beliefs.forget()
    assert beliefs.remembered(numbered(0)) == (0.5, 0.0)
    assert pool.is_retired(numbered(0))
    beliefs.observe(numbered(0), 14, 16)  # 0.5 + 14 of 16.5; all that was seen, 30 of 32, would keep it retired
    assert not pool.is_retired(numbered(0))


@pytest.mark.parametrize("recheck", [0.0, 0.5])
def test_a_run_that_has_retired_everything_says_so(recheck: float) -> None:
    beliefs = SuccessPosterior(PosteriorConfig())
    for number in range(NUM_PROMPTS):
        beliefs.observe(numbered(number), 8, 8)
    pool = PromptPool(PoolConfig(retire_from=0.9, recheck=recheck), CircledPrompts(), beliefs, seed=0)
    with pytest.raises(StarvationError, match="retire_from=0.9 of their rollouts or more: write a higher one or null"):
        pool.take(64)


@pytest.mark.parametrize("num_solved", [4, 20, 36])
def test_a_share_of_those_asked_are_retired_ones_however_many_are_retired(num_solved: int) -> None:
    beliefs = SuccessPosterior(PosteriorConfig())
    for number in range(num_solved):
        beliefs.observe(numbered(number), 16, 16)
    pool = PromptPool(PoolConfig(retire_from=0.9, recheck=0.1), CircledPrompts(), beliefs, seed=0)
    asked = pool.take(4_000)
    asked_again = [prompt for prompt in asked if number_of(prompt) < num_solved]
    # of 40 prompts that come up 4, 20 or 36 are retired: with 4 of them every one is asked, which is 0.1 of them all
    assert len(asked_again) / len(asked) == pytest.approx(0.1, abs=0.01)
    assert pool.metrics()["rollouts/prompts_rechecked"] == len(asked_again)
    assert {prompt.weight for prompt in asked} == {1.0}


def test_what_is_asked_does_not_depend_on_how_many_are_taken_at_once() -> None:
    beliefs = SuccessPosterior(PosteriorConfig())
    for number in range(NUM_PROMPTS // 2):
        beliefs.observe(numbered(number), 16, 16)
    config = PoolConfig(retire_from=0.9, recheck=0.2)
    at_once = PromptPool(config, CircledPrompts(), beliefs, seed=0).take(60)
    pool = PromptPool(config, CircledPrompts(), beliefs, seed=0)
    one_by_one = [pool.take(1)[0].uid for _ in range(60)]
    assert one_by_one == [prompt.uid for prompt in at_once]


def test_the_weighted_estimate_is_the_gradient_of_all_prompts() -> None:
    """Half of the prompts are solved (0.999), half are hard (0.05); beliefs are those of 64 rollouts of each. RLOO
    estimates of N = 16, gradient p (1 − p)."""
    random = np.random.default_rng(0)
    rates = np.where(np.arange(NUM_PROMPTS) % 2 == 0, 0.999, 0.05)
    beliefs = SuccessPosterior(PosteriorConfig())
    for number, rate in enumerate(rates):
        beliefs.observe(replace(make_prompt(), token_ids=(number,)), int(random.binomial(64, rate)), 64)
    prompts = CircledPrompts()
    pool = PromptPool(PoolConfig(enabled=True), prompts, beliefs, seed=3)
    pool.begin_step(16)
    asked = pool.take(4_000)
    total = prompts.position
    right = random.binomial(16, [rates[number_of(prompt)] for prompt in asked])
    weights = np.array([prompt.weight for prompt in asked])
    estimates = weights * right * (16 - right) / (16 * 15)
    gradient = (rates * (1 - rates)).mean()
    error = np.sqrt((estimates**2).sum()) / total
    assert estimates.sum() / total == pytest.approx(gradient, abs=4 * error)
    unweighted = (estimates / weights).mean()
    assert abs(unweighted - gradient) > 6 * error
    assert len(asked) / total == pytest.approx(0.55, abs=0.03)
    assert pool.metrics() == {
        "rollouts/prompts_retired": 0.0,
        "rollouts/prompts_rechecked": 0.0,
        "rollouts/prompts_passed_over": total - 4_000,
        "rollouts/prompt_weight_max": weights.max(),
    }


@pytest.mark.parametrize(
    ("shape", "num", "expected"),
    [((0.56, 0.13), 16, 1.5), ((0.56, 0.13), 512, 1.37), ((0.3, 0.9), 16, 1.2), ((0.1, 0.1), 16, 1.76)],
)
def test_at_equal_samples_the_squared_signal_to_noise_is_higher(
    shape: tuple[float, float], num: int, expected: float
) -> None:
    """Every prompt was seen once, with N rollouts. Noise of an estimate as in `lab/brorl_lab/theory/advice.py`, score
    noise 30; its mean over all prompts has the variance E[T / q] per prompt passed, which costs N E[q] samples."""
    random, num_prompts = np.random.default_rng(0), 1500
    rates = random.beta(*shape, num_prompts)
    beliefs = SuccessPosterior(PosteriorConfig())
    prompts = [replace(make_prompt(), token_ids=(number,)) for number in range(num_prompts)]
    for prompt, rate in zip(prompts, rates, strict=True):
        successes = int(random.binomial(num, rate))
        beliefs.observe(prompt, successes, num)
        beliefs.observe_first(prompt, successes, num, 10.0)
    pool = PromptPool(PoolConfig(enabled=True), FakePrompts(), beliefs, seed=0)
    pool.begin_step(num)
    asked = np.array([pool.probability(prompt) for prompt in prompts])
    q = rates * (1 - rates)
    moments = ((num - 2) * (num - 3) * q**2 + (num - 1) * q) / (num * (num - 1)) + 30 * q / (num - 1)
    gain = moments.mean() / ((moments / asked).mean() * asked.mean())
    assert gain == pytest.approx(expected, rel=0.07)


def test_a_group_counts_by_the_weight_of_its_prompt() -> None:
    config = BroRLConfig()
    config.algorithm.advantage = "dr_grpo"
    group = make_group([1, 0])
    heavy = replace(group, group=replace(group.group, prompt=replace(group.prompt, weight=4.0)))
    assert make_train_batch([heavy], config, 1).advantages[0].tolist() == [2.0, -2.0]
    assert coverage_metrics([heavy, make_group([0, 0])])["rollouts/pass_at_1"] == pytest.approx(0.5 * 4 / 5)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_asks_the_same_prompts(tmp_path: Path, overlap: bool) -> None:
    def config() -> BroRLConfig:
        made = small_config(6)
        made.rollouts.overlap = overlap
        made.rollouts.num_per_prompt, made.rollouts.pool.enabled = 4, True
        made.rollouts.pool.full_above = 1.0
        return made

    def trainer_of(name: str) -> tuple[CircledPrompts, BroRLTrainer]:
        trainer = make_trainer(tmp_path / name, config())
        prompts = CircledPrompts()
        carry_over = trainer.batches.carry_over
        carry_over.prompts = carry_over.pool.prompts = prompts
        return prompts, trainer

    prompts, whole = trainer_of("whole")
    whole.fit()
    _, first = trainer_of("parts")
    for _ in range(3):  # a checkpoint is written after two
        first.step()
        first.after_step()
    resumed_prompts, second = trainer_of("parts")
    assert second.resume()
    second.fit()
    assert fake(second).weight == fake(whole).weight
    assert resumed_prompts.position == prompts.position
    assert len(prompts.taken) > 0
