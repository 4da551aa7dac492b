"""Beliefs about prompts: conjugate updates by hand, priors against the distribution that drew the groups, state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.algorithm.rollout_size import SuccessPrior, fit_success_prior
from nemo_brorl.config.rollouts import PosteriorConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.rollouts.group_size.success_posterior import SuccessPosterior, beta_of, prompt_key
from nemo_brorl.types import ScoredGroup, Wave
from tests.support.fakes import make_group, make_prompt


def beliefs(memory: float = 1.0, prior_groups: float = 1e-6, max_prompts: int = 100) -> SuccessPosterior:
    return SuccessPosterior(PosteriorConfig(memory, prior_groups, max_prompts))


def groups_of(rates: Sequence[float], num: int, seed: int = 0) -> list[ScoredGroup]:
    """One group of `num` rollouts per success rate."""
    random = np.random.default_rng(seed)
    return [make_group((random.random(num) < rate).tolist(), uid=f"train/{index}") for index, rate in enumerate(rates)]


def test_the_same_question_under_another_uid_is_the_same_prompt() -> None:
    assert prompt_key(make_prompt("train/0")) == prompt_key(make_prompt("train/9"))
    assert prompt_key(make_prompt(num_tokens=3)) != prompt_key(make_prompt(num_tokens=4))
    assert prompt_key(make_prompt(task="a")) != prompt_key(make_prompt(task="b"))


def test_nothing_seen_is_jeffreys_prior() -> None:
    prior = beliefs().prior("toy")
    assert (prior.a, prior.b) == (pytest.approx(0.5), pytest.approx(0.5))


def test_a_posterior_adds_what_was_seen_to_the_prior() -> None:
    known = beliefs()
    known.observe(make_prompt("train/0"), 3, 4)
    known.observe(make_prompt("train/7"), 1, 4)  # the same question again
    posterior = known.posterior(make_prompt("train/8"))
    assert (posterior.a, posterior.b) == (pytest.approx(0.5 + 4), pytest.approx(0.5 + 4))
    assert posterior.reward_variance == pytest.approx(4.5 * 4.5 / (9 * 10))


def test_older_counts_fade_with_every_update() -> None:
    known = beliefs(memory=0.5)
    known.observe(make_prompt(), 4, 8)
    known.learn([])
    known.learn([])
    posterior = known.posterior(make_prompt())  # a quarter of 4 and 4
    assert (posterior.a, posterior.b) == (pytest.approx(1.5), pytest.approx(1.5))
    known.observe(make_prompt(), 0, 1)
    assert known.posterior(make_prompt()).b == pytest.approx(2.5)


@pytest.mark.parametrize("num", [4, 64])
def test_the_prior_is_that_which_drew_the_groups_whatever_their_size(num: int) -> None:
    rates = np.random.default_rng(1).beta(0.6, 0.3, 2000)
    known = beliefs()
    known.learn(groups_of(rates.tolist(), num))
    prior = known.prior("toy")
    assert (prior.a, prior.b) == (pytest.approx(0.6, rel=0.15), pytest.approx(0.3, rel=0.15))
    assert known.mixture_variance() == pytest.approx(SuccessPrior(0.6, 0.3).reward_variance, rel=0.07)


def test_moments_and_maximum_likelihood_agree() -> None:
    rates = np.random.default_rng(2).beta(1.0, 2.0, 2000)
    groups = groups_of(rates.tolist(), 16)
    known = beliefs()
    known.learn(groups)
    likely = fit_success_prior([int(group.rewards.sum()) for group in groups], [16] * 2000)
    assert known.prior("toy").mean == pytest.approx(likely.mean, rel=0.02)
    assert known.prior("toy").reward_variance == pytest.approx(likely.reward_variance, rel=0.05)


def test_a_prior_does_not_see_the_waves_that_rewards_asked_for() -> None:
    # two groups of a first wave 1 of 2; one went on and failed ever after
    grown = replace(make_group([1, 0, 0, 0, 0, 0]), waves=(Wave(2, 1.0, 0.5), Wave(4, 0.5, 0.5)))
    known = beliefs()
    known.learn([grown, replace(make_group([0, 1], uid="train/1"), waves=(Wave(2, 1.0, 1.0),))])
    assert known.prior("toy").mean == pytest.approx(0.5)
    assert known.seen("toy").groups == 2


def test_a_task_with_few_groups_leans_on_the_others() -> None:
    known = beliefs(prior_groups=8)
    easy = []
    for index, group in enumerate(groups_of([0.9] * 400, 8)):
        easy.append(replace(group, group=replace(group.group, prompt=make_prompt(f"train/{index}", 3, "easy"))))
    known.learn(easy)
    assert known.prior("easy").mean == pytest.approx(0.9, abs=0.03)
    assert known.prior("new").mean == pytest.approx(0.9, abs=0.03)


def test_impossible_moments_give_the_nearest_distribution() -> None:
    never = beta_of(0.0, 0.0)
    assert 0 < never.mean <= 1e-3
    assert beta_of(0.5, 0.5).a == pytest.approx(0.5 * (1 / 0.99 - 1))  # always or never: a + b → 0
    assert beta_of(0.5, 0.1).a == pytest.approx(0.5 * 199)  # less than no variance: all prompts alike


def test_the_state_is_bounded_and_survives_json() -> None:
    known = beliefs(memory=0.9, max_prompts=2)
    for num in (3, 4, 3, 5):
        known.observe(make_prompt(num_tokens=num), 1, 2)
    known.learn([make_group([1, 0, 0], prompt_tokens=5)])
    state = json.loads(json.dumps(known.state_dict()))
    assert list(state["prompts"]) == [prompt_key(make_prompt(num_tokens=3)), prompt_key(make_prompt(num_tokens=5))]
    again = beliefs(memory=0.9, max_prompts=2)
    again.load_state_dict(state)
    assert again.state_dict() == known.state_dict()
    assert again.posterior(make_prompt(num_tokens=5)) == known.posterior(make_prompt(num_tokens=5))
    with pytest.raises(CheckpointError, match="success beliefs have the keys"):
        again.load_state_dict({"tasks": {}})


def test_what_is_learnt_does_not_depend_on_which_group_closed_first() -> None:
    groups = groups_of([0.2, 0.5, 0.8], 8)
    states = []
    for order in (groups, groups[::-1]):
        known = beliefs(memory=0.9)
        known.learn(order)
        states.append(known.state_dict())
    assert states[0] == states[1]
