"""Rewards that change over steps or by solve rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_brorl.commands.wiring import verifiers_of
from nemo_brorl.config.rewards import RewardsConfig, RewardStageConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.rollouts.schedule import RewardStages
from nemo_brorl.types import ScoredGroup
from tests.support.fakes import make_group, make_prompt
from tests.support.loop import fake, make_trainer, small_config, store_of

DENSE = replace(make_prompt("train/1"), payload={"scoring": "fraction"}, domain="code")


def group(rewards: list[float], domain: str = "code") -> ScoredGroup:
    made = make_group(rewards)
    own = replace(made.group, prompt=replace(made.prompt, domain=domain))
    return replace(made, group=own)


def test_a_stage_begins_at_its_step_and_prompts_before_it_keep_their_options() -> None:
    stages = RewardStages([RewardStageConfig(from_step=3, options={"scoring": "all"})])
    assert stages.learn([]) is None
    assert stages.applied(DENSE) == DENSE
    assert stages.learn([]) == "step 3"
    assert stages.applied(DENSE).payload == {"scoring": "all"}
    assert stages.metrics() == {"reward/stage": 1.0}


def test_a_stage_begins_once_enough_rollouts_of_its_domain_are_right_over_four_steps() -> None:
    stage = RewardStageConfig(from_solve_rate=0.5, domain="code", options={"scoring": "all"})
    stages = RewardStages([stage, RewardStageConfig(from_step=1, options={"timeout_s": 2})])
    half_right = group([1, 0.9, 1, 0])
    for _ in range(3):
        assert stages.learn([half_right, group([0, 0], domain="maths")]) is None
    assert stages.learn([half_right]) == "step 5"  # and the stage behind it, whose step has passed
    assert stages.applied(DENSE).payload == {"scoring": "all", "timeout_s": 2}
    other = replace(DENSE, domain="maths")
    assert stages.applied(other).payload == {"scoring": "fraction", "timeout_s": 2}


def test_solve_rates_survive_a_restart() -> None:
    stage = RewardStageConfig(from_solve_rate=0.5, options={"scoring": "all"})
    before = RewardStages([stage])
    for _ in range(3):
        before.learn([group([1, 0])])
    after = RewardStages([stage])
    after.load_state_dict(before.state_dict())
    assert after.learn([group([1, 1])]) == "62.5% of rollouts right over 4 steps"


def test_a_run_begins_a_stage_and_a_resumed_one_stays_in_it(tmp_path: Path) -> None:
    config = small_config(max_steps=4)
    config.rewards.stages = [RewardStageConfig(from_step=3, options={"scoring": "all"})]
    trainer = make_trainer(tmp_path, config)
    trainer.fit()
    rows = [row for _, row in trainer.parts.sink.rows]  # type: ignore[attr-defined]
    assert [row["reward/stage"] for row in rows[1:]] == [0, 1, 1, 1]
    payloads = [record.groups[0].scored.prompt.payload for record in store_of(trainer).records]
    assert [payload.get("scoring") for payload in payloads[2:]] == ["all", "all"]
    resumed = make_trainer(tmp_path, config)
    assert resumed.resume()
    assert resumed.batches.carry_over.reward_stages.num_begun == 1
    assert fake(resumed).weight == fake(trainer).weight


def test_options_of_a_later_stage_are_checked_before_a_run_starts() -> None:
    wrong = RewardsConfig(stages=[RewardStageConfig(from_step=9, options={"scoring": "most"})])
    payload = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    prompt = replace(DENSE, verifier="instruction_following", payload=payload)
    with pytest.raises(DataError, match="'scoring' is 'most'; choose fraction, all"):
        list(verifiers_of(wrong, [prompt]))


def test_a_stage_has_one_beginning_and_changes_something() -> None:
    config = RewardsConfig(stages=[RewardStageConfig(from_step=1, from_solve_rate=0.5)])
    assert list(config.violations()) == [
        "rewards.stages.0: write either from_step or from_solve_rate",
        "rewards.stages.0.options is empty: write what changes, for example {scoring: all}",
    ]
