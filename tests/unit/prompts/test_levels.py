"""Levels of a task: promoted and demoted by success, the same after a restart; held-out questions are of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_brorl.config.data import DataConfig, DomainConfig, TaskConfig, TaskStageConfig
from nemo_brorl.prompts import levels
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from nemo_brorl.rollouts.spent import outcomes
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import Prompt
from tests.support.fakes import make_group, make_prompt
from tests.support.loop import fake, make_trainer, small_config, store_of
from tests.unit.prompts.test_stream import word_tokenizer

LEVELS = [{"min_value": 2, "max_value": 9}, {"min_value": 10, "max_value": 99}, {"min_value": 100, "max_value": 999}]
GCD = TaskConfig("gcd", levels=LEVELS)


@pytest.fixture(autouse=True)
def decided_after_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "WINDOW", 2)


def prompt(level: int) -> Prompt:
    return replace(make_prompt("train/0"), level=level)


def stream(task: TaskConfig = GCD) -> PromptStream:
    config = DataConfig(tasks=[task], answer_instruction="")
    return PromptStream(make_source(config, "train", 1), word_tokenizer(), config)


def test_a_level_is_left_for_the_next_once_a_window_of_its_groups_is_right_often_enough() -> None:
    level = TaskLevel(GCD)
    level.record_rate(prompt(0), 1.0)
    assert level.decide() is None  # one group of two
    level.record_rate(prompt(0), 0.75)
    assert level.decide() is None  # 87.5 % of two; counted anew from here
    level.record_rate(prompt(0), 1.0)
    level.record_rate(prompt(0), 0.875)
    assert level.decide() == "93.8% correct in 2 groups of level 0"
    assert level.reached == 1
    for _ in range(6):
        level.record_rate(prompt(level.reached), 1.0)
        level.decide()
    assert level.reached == 2  # the last one


def test_a_level_is_left_for_the_one_before_when_hardly_anything_is_right() -> None:
    level = TaskLevel(GCD)
    level.reached = 1
    for rate in (0.0, 0.125):
        level.record_rate(prompt(1), rate)
    assert level.decide() == "6.2% correct in 2 groups of level 1"
    for rate in (0.0, 0.0):
        level.record_rate(prompt(0), rate)
    assert level.decide() is None  # there is none before the first
    assert level.reached == 0


def test_groups_of_another_level_do_not_count() -> None:
    level = TaskLevel(replace(GCD, promote_from=0.6))
    level.reached = 1
    level.record_rate(prompt(0), 0.0)  # carried over from before the level was reached
    level.record_rate(prompt(1), 0.5)
    assert level.decide() is None
    level.record_rate(prompt(1), 1.0)
    assert level.decide() == "75.0% correct in 2 groups of level 1"


def test_success_at_a_level_is_that_of_first_waves_in_the_order_of_uids() -> None:
    groups = [make_group([1, 0, 0, 0], uid="train/2"), make_group([1, 1, 0, 1], uid="train/1")]
    found = [(prompt.uid, rate) for prompt, rate in outcomes(groups)]
    assert found == [("train/1", 0.75), ("train/2", 0.25)]


def test_a_stream_asks_harder_questions_after_success_and_says_so() -> None:
    prompts = stream()
    easy = prompts.take_prompts(2)
    assert [prompt.level for prompt in easy] == [0, 0]
    assert prompts.record_outcomes([(prompt, 1.0) for prompt in easy]) == [
        "gcd: level 1 with the next prompts (100.0% correct in 2 groups of level 0)"
    ]
    assert prompts.metrics()["prompts/level/gcd"] == 1.0
    (harder,) = prompts.take_prompts(1)
    assert harder.level == 1
    assert harder.payload["config"] == LEVELS[1]
    assert harder.uid == "train/2"


def test_domains_have_levels_of_their_own() -> None:
    domains = [DomainConfig(name=name, tasks=[GCD]) for name in ("a", "b")]
    config = DataConfig(source="mixture", domains=domains, answer_instruction="")
    prompts = PromptStream(make_source(config, "train", 1), word_tokenizer(), config)
    of_a = [prompt for prompt in prompts.take_prompts(40) if prompt.domain == "a"]
    prompts.record_outcomes([(prompt, 1.0) for prompt in of_a])
    assert prompts.metrics()["prompts/level/a/gcd"] == 1.0
    assert prompts.metrics()["prompts/level/b/gcd"] == 0.0


def test_held_out_questions_are_of_all_levels_in_turn_whatever_training_has_reached() -> None:
    source = ReasoningGymSource([GCD], 0.1, "held_out", seed=1)
    assert [source.question(index).level for index in range(4)] == [0, 1, 2, 0]
    config = DataConfig(tasks=[GCD], answer_instruction="")
    held_out = PromptStream(make_source(config, "held_out", 1), word_tokenizer(), config, "held_out")
    before = held_out.peek(6)
    assert held_out.record_outcomes([(prompt, 1.0) for prompt in before]) == []
    assert held_out.peek(6) == before


def trainer_of(folder: Path, max_steps: int) -> BroRLTrainer:
    task = replace(GCD, promote_from=0.6, demote_below=0.3)
    return make_trainer(folder, small_config(max_steps), prompts=stream(task))


def asked(*trainers: BroRLTrainer) -> list[tuple[str, int | None, str]]:
    """Of every group that a step has learnt from: uid, level and text."""
    found = []
    for trainer in trainers:
        for record in store_of(trainer).records:
            for group in record.groups:
                own = group.scored.prompt
                found.append((own.uid, own.level, own.payload["question"]))
    return found


def test_a_run_that_was_broken_off_asks_what_it_would_have_asked(tmp_path: Path) -> None:
    whole = trainer_of(tmp_path / "whole", max_steps=6)
    whole.fit()
    assert {level for _, level, _ in asked(whole)} == {0, 1, 2}
    broken_off = trainer_of(tmp_path / "cut", max_steps=4)
    broken_off.fit()
    resumed = trainer_of(tmp_path / "cut", max_steps=6)
    assert resumed.resume()
    resumed.fit()
    assert asked(broken_off, resumed) == asked(whole)
    assert resumed.parts.prompts.state_dict() == whole.parts.prompts.state_dict()
    assert fake(resumed).weight == fake(whole).weight


@pytest.mark.parametrize(
    ("task", "fragment"),
    [
        (replace(GCD, name="*"), 'levels of "*"'),
        (replace(GCD, stages=[TaskStageConfig(9)]), "set stages, by position, or levels, by success"),
        (replace(GCD, demote_below=0.9), "demote_below=0.9 is not below promote_from=0.9"),
    ],
)
def test_levels_that_mean_nothing_are_refused(task: TaskConfig, fragment: str) -> None:
    (found,) = DataConfig(tasks=[task]).violations()
    assert fragment in found
