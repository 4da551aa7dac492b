"""Prompts that are retired, and when they are asked again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from brorl_lab.prompt_pool import MOST_OWED, RetiringParams, RetiringPool

from nemo_brorl.config.load import load_config
from nemo_brorl.config.rollouts import PromptPoolConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, StarvationError
from nemo_brorl.rollouts.prompt_pool import find_pool
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import Prompt
from tests.support.fakes import FakePrompts, make_prompt
from tests.support.loop import fake, make_trainer, small_config

NAME = "brorl_lab.prompt_pool:retiring_pool"
NUM_PROMPTS = 40


class CircledPrompts(FakePrompts):
    """The same prompts again and again, each time under another uid."""

    def take_prompts(self, num: int) -> list[Prompt]:
        prompts = super().take_prompts(num)
        return [replace(prompt, token_ids=(number_of(prompt),)) for prompt in prompts]


def number_of(prompt: Prompt) -> int:
    return int(prompt.uid.rsplit("/", 1)[1]) % NUM_PROMPTS


def pool_of(prompts: FakePrompts | None = None, **params: float) -> RetiringPool:
    given = {"memory": 0.95, **params}
    return RetiringPool(prompts or CircledPrompts(), RetiringParams(**given))  # type: ignore[arg-type]


def numbered(number: int) -> Prompt:
    """One of the prompts that come again and again."""
    return replace(make_prompt(), token_ids=(number,))


def test_a_prompt_is_retired_by_its_own_rollouts_of_all_steps() -> None:
    prompts = CircledPrompts()
    pool = pool_of(prompts, retire_from=0.75, recheck=0.0, memory=0.5)
    solved, unseen = numbered(0), numbered(1)
    pool.counts.observe(solved, 4, 8)
    assert not pool.is_retired(solved)
    pool.counts.discount()
    pool.counts.observe(solved, 8, 8)  # 2 + 8 of 4 + 8
    assert pool.is_retired(solved)
    assert not pool.is_retired(unseen)  # whatever is believed of its task
    assert 0 not in [number_of(prompt) for prompt in pool.take_prompts(30)]
    num_come = -(-prompts.position // NUM_PROMPTS)  # of the solved one, rounded up
    assert pool.metrics()["rollouts/prompts_retired"] == num_come


def test_a_prompt_stays_retired_while_old_rollouts_fade_and_comes_back_when_new_ones_are_wrong() -> None:
    pool = pool_of(retire_from=0.9, memory=0.5)
    pool.counts.observe(numbered(0), 16, 16)
    for _ in range(5):
        pool.counts.discount()
    assert pool.counts.counts_of(numbered(0)) == (0.5, 0.0)
    assert pool.is_retired(numbered(0))
    pool.counts.observe(numbered(0), 14, 16)  # 0.5 + 14 of 16.5; all that was seen, 30 of 32, would keep it retired
    assert not pool.is_retired(numbered(0))


@pytest.mark.parametrize("recheck", [0.0, 0.5])
def test_a_run_that_has_retired_everything_says_so(recheck: float) -> None:
    pool = pool_of(retire_from=0.9, recheck=recheck)
    for number in range(NUM_PROMPTS):
        pool.counts.observe(numbered(number), 8, 8)
    with pytest.raises(StarvationError, match="retire_from=0.9 of their rollouts or more: set a higher one, or give"):
        pool.take_prompts(64)


@pytest.mark.parametrize("num_solved", [4, 20, 36])
def test_a_share_of_those_asked_are_retired_ones_however_many_are_retired(num_solved: int) -> None:
    pool = pool_of(retire_from=0.9, recheck=0.1)
    for number in range(num_solved):
        pool.counts.observe(numbered(number), 16, 16)
    asked = pool.take_prompts(4_000)
    asked_again = [prompt for prompt in asked if number_of(prompt) < num_solved]
    # of 40 prompts that come up 4, 20 or 36 are retired: with 4 of them every one is asked, which is 0.1 of them all
    assert len(asked_again) / len(asked) == pytest.approx(0.1, abs=0.01)
    assert pool.metrics()["rollouts/prompts_rechecked"] == len(asked_again)


@pytest.mark.parametrize("num", [2, 4, 8, 64])
def test_the_share_is_kept_however_few_prompts_a_step_asks(num: int) -> None:
    pool = pool_of(retire_from=0.9, recheck=0.25)
    for number in range(36):
        pool.counts.observe(numbered(number), 16, 16)
    asked_again, metric = 0, 0.0
    for _ in range(200):
        pool.begin_step()
        asked_again += sum(number_of(prompt) < 36 for prompt in pool.take_prompts(num))
        metric += pool.metrics()["rollouts/prompts_rechecked"]
    assert asked_again / (200 * num) == pytest.approx(0.25, abs=0.02)
    assert metric == asked_again


def test_what_is_owed_survives_a_restart_and_does_not_grow_without_end() -> None:
    pool = pool_of(retire_from=0.9, recheck=0.25)
    pool.take_prompts(400)  # none is retired yet
    restarted = pool_of(retire_from=0.9, recheck=0.25)
    restarted.load_state_dict(pool.state_dict())
    assert restarted.debt == pool.debt == -MOST_OWED


def test_what_is_asked_does_not_depend_on_how_many_are_taken_at_once() -> None:
    pools = [pool_of(retire_from=0.9, recheck=0.2) for _ in range(2)]
    for pool in pools:
        for number in range(NUM_PROMPTS // 2):
            pool.counts.observe(numbered(number), 16, 16)
    at_once = pools[0].take_prompts(60)
    one_by_one = [pools[1].take_prompts(1)[0].uid for _ in range(60)]
    assert one_by_one == [prompt.uid for prompt in at_once]


def test_the_least_recently_seen_prompt_is_forgotten_when_there_are_too_many() -> None:
    pool = pool_of(max_prompts=2)
    for number in (0, 1, 0, 2):
        pool.counts.observe(numbered(number), 4, 8)
    assert pool.counts.counts_of(numbered(1)) == (0.0, 0.0)
    assert pool.counts.counts_of(numbered(0)) == (8.0, 8.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [("retire_from: 0", "retire_from=0 must be above 0"), ("recheck: 1", "recheck=1 must be from 0 to 0.9")],
)
def test_parameters_out_of_range_are_refused_when_the_run_starts(params: str, message: str) -> None:
    overrides = [f"rollouts.prompt_pool.name={NAME}", f"+rollouts.prompt_pool.params={{{params}}}"]
    config = load_config("brorl_cpu", overrides)
    with pytest.raises(ConfigError, match=message):
        find_pool(config.rollouts.prompt_pool)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_run_asks_the_same_prompts(tmp_path: Path, overlap: bool) -> None:
    def config() -> BroRLConfig:
        made = small_config(6)
        made.rollouts.overlap = overlap
        made.rollouts.num_per_prompt = 4
        made.rollouts.prompt_pool = PromptPoolConfig(NAME, {"retire_from": 0.6})
        return made

    def trainer_of(name: str) -> tuple[CircledPrompts, BroRLTrainer]:
        trainer = make_trainer(tmp_path / name, config())
        prompts = CircledPrompts()
        carry_over = trainer.batches.carry_over
        assert isinstance(carry_over.pool, RetiringPool)
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
