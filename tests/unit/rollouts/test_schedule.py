"""N, prompts and learning rate over a run, with the paper's numbers."""

from __future__ import annotations

import pytest

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.config.rollouts import StageConfig
from nemo_brorl.config.rules import check_rules
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.rollouts.schedule import RolloutSchedule


def config(
    kind: str, *stages: StageConfig, num: int = 16, prompts: int = 512, budget: int | None = None
) -> BroRLConfig:
    made = BroRLConfig()
    made.rollouts.num_per_prompt, made.rollouts.prompts_per_step = num, prompts
    schedule = made.rollouts.schedule
    schedule.kind, schedule.stages, schedule.sample_budget = kind, list(stages), budget
    return made


def schedule_of(config: BroRLConfig) -> RolloutSchedule:
    return RolloutSchedule(config.rollouts, config.policy.optim)


def test_a_constant_schedule_is_the_settings_themselves() -> None:
    stage = schedule_of(config("constant", num=512, prompts=16)).stage
    assert (stage.num_per_prompt, stage.prompts_per_step, stage.learning_rate_factor) == (512, 16, 1.0)


def test_brorl_follows_prorl_with_the_papers_batch_and_learning_rate() -> None:
    # 16 × 512 = 8,192 → 512 × 128 = 65,536 rollouts; √8 = 2.83
    schedule = schedule_of(config("on_plateau", StageConfig(512), budget=65_536))
    assert schedule.stage.prompts_per_step == 512
    reason = None
    for step in range(18):
        assert reason is None
        reason = schedule.after_validation(10 * step, 0.6)
    assert reason is not None
    assert reason.startswith("stalled for 3 validations in a row")
    stage = schedule.stage
    assert (stage.num_per_prompt, stage.prompts_per_step) == (512, 128)
    assert stage.learning_rate_factor == pytest.approx(8**0.5)
    assert schedule.after_validation(180, 0.1) is None  # the last stage is left for nothing


def test_stages_follow_their_step_counts() -> None:
    stages = [StageConfig(16, 3), StageConfig(64, 2), StageConfig(256)]
    schedule = schedule_of(config("staged", *stages, prompts=8))
    seen = []
    for steps_done in range(8):
        schedule.before_step(steps_done)
        seen.append(schedule.stage.num_per_prompt)
    assert seen == [16, 16, 16, 64, 64, 256, 256, 256]


def test_stages_of_a_budget_follow_the_rollouts_that_were_sampled() -> None:
    stages = [StageConfig(16, None, 1000), StageConfig(64, None, 500), StageConfig(256)]
    made = config("budget", *stages, prompts=8)
    schedule = schedule_of(made)
    seen = []
    for steps_done, num_sampled in enumerate([0, 600, 1200, 1600, 1700, 99_999]):
        if steps_done == 3:
            resumed = schedule_of(made)
            resumed.load_state_dict(schedule.state_dict())
            schedule = resumed
        schedule.before_step(steps_done, num_sampled)
        seen.append(schedule.stage.num_per_prompt)
    assert seen == [16, 16, 64, 64, 256, 256]


@pytest.mark.parametrize(("scaling", "factor"), [("sqrt", 4.0), ("linear", 16.0), ("constant", 1.0)])
def test_the_learning_rate_follows_the_batch(scaling: str, factor: float) -> None:
    made = config("staged", StageConfig(16, 1), StageConfig(256), prompts=8)
    made.rollouts.schedule.learning_rate_scaling = scaling
    schedule = schedule_of(made)
    schedule.before_step(1)
    assert schedule.stage.learning_rate_factor == pytest.approx(factor)


def test_a_resumed_run_is_in_the_same_stage() -> None:
    made = config("staged", StageConfig(16, 3), StageConfig(64, 2), StageConfig(256), prompts=8)
    whole, resumed = schedule_of(made), schedule_of(made)
    for steps_done in range(4):
        whole.before_step(steps_done)
    resumed.load_state_dict(whole.state_dict())
    assert resumed.stage == whole.stage
    assert resumed.before_step(4) is None
    assert resumed.before_step(5) == "stage of 2 steps is over"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (config("staged"), "has no stages"),
        (config("budget", StageConfig(16), StageConfig(64)), "stages.0.num_rollouts is missing"),
        (
            config("budget", StageConfig(16, 3, 100), StageConfig(64)),
            "num_steps=3 ends a stage of kind=staged, not of kind=budget: set null",
        ),
        (
            config("staged", StageConfig(16, 3, 100), StageConfig(64)),
            "num_rollouts=100 ends a stage of kind=budget, not of kind=staged: set null",
        ),
        (config("constant", StageConfig(64)), "kind=constant uses none"),
        (config("staged", StageConfig(16), StageConfig(64)), "stages.0.num_steps is missing"),
        (config("on_plateau", StageConfig(64, 5)), "num_steps=5 ends a stage of kind=staged, not of kind=on_plateau"),
        (
            config("staged", StageConfig(32, 5), StageConfig(64)),
            "rollouts.num_per_prompt=16 and the first stage's num_per_prompt=32 differ",
        ),
        (
            config("staged", StageConfig(16, 5), StageConfig(33), prompts=1),
            r"does not divide rollouts.num_per_prompt × .* = 33 × 1",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(made: BroRLConfig, message: str) -> None:
    made.data.tasks = [TaskConfig("gcd")]
    with pytest.raises(ConfigError, match=message):
        check_rules(made)
