"""The loop on fakes: what it consumes, in which order, and what a restart changes (nothing)."""

import json
from pathlib import Path

import pytest

from nemo_brorl.config.rollouts import StageConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import (
    CheckpointError,
    ParityError,
    ResourceError,
    ServiceError,
    StarvationError,
    TrainingError,
)
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import ScoredChunk
from tests.support.fakes import FakeGenerator, FakeVerifier
from tests.support.loop import fake, last_row, make_trainer, small_config


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def trained_prompts(trainer: BroRLTrainer) -> list[list[int]]:
    """First response token of each planned group, per step: identifies nothing but the order of groups' sizes and
    data."""
    return [[len(group.advantages) for group in plan.groups] for plan in trainer.parts.policy.plans]  # type: ignore[attr-defined]


def test_every_step_trains_a_full_batch_of_informative_groups(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    trainer.fit()
    assert trainer.step_number == trainer.version == 6
    assert trained_prompts(trainer) == [[8, 8]] * 6
    assert all(group.advantages.any() for plan in trainer.parts.policy.plans for group in plan.groups)  # type: ignore[attr-defined]


def test_weights_are_published_with_their_version_after_every_update(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=2))
    trainer.fit()
    assert [version for version, _ in trainer.parts.generator.loads] == [1, 2]  # type: ignore[attr-defined]


def test_a_killed_run_that_is_resumed_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", small_config())
    whole.fit()
    killed = make_trainer(tmp_path / "killed", small_config())
    killed.validate()
    for _ in range(3):  # checkpoint at step 2, killed after step 3
        killed.step()
        killed.after_step()
    resumed = make_trainer(tmp_path / "killed", small_config())
    assert resumed.resume()
    assert resumed.step_number == 2
    resumed.fit()
    assert resumed.parts.policy.weight == whole.parts.policy.weight  # type: ignore[attr-defined]
    consumed = killed.parts.prompts.taken[: len(whole.parts.prompts.taken) - len(resumed.parts.prompts.taken)]  # type: ignore[attr-defined]
    assert consumed + resumed.parts.prompts.taken == whole.parts.prompts.taken  # type: ignore[attr-defined]


def test_one_row_a_step_holds_training_and_validation_metrics(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=3))
    trainer.fit()
    rows = trainer.parts.sink.rows  # type: ignore[attr-defined]
    assert [step for step, _ in rows] == [0, 1, 2, 3]
    assert "validation/pass_at_1" in rows[3][1]
    for name in (
        "dynamic_sampling/keep_rate",
        "generation/samples_per_s",
        "time/collect_s",
        "policy/log_prob_mismatch",
        "reward/mean",
    ):
        assert name in rows[1][1]


def test_a_stop_request_ends_after_the_step_and_saves(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    trainer.validate()
    trainer.step()
    trainer.after_step()
    trainer.stop.reason = "SIGINT"
    trainer.fit()
    assert trainer.step_number == 1
    assert [folder.name for folder in trainer.parts.checkpoints.complete()] == ["step_1"]


def test_a_run_asked_to_stop_while_it_starts_writes_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    trainer.stop.reason = "SIGUSR1"
    trainer.fit()
    assert list(tmp_path.iterdir()) == []


def test_too_many_non_finite_updates_stop_the_run(tmp_path: Path) -> None:
    config = small_config()
    config.trainer.max_skipped_updates = 3
    with pytest.raises(TrainingError, match="4 mini-batches had a non-finite loss"):
        make_trainer(tmp_path, config, num_skipped=2).fit()


def test_a_step_whose_rollouts_came_from_other_weights_ends_the_run_and_is_not_saved(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "suspect", small_config(max_steps=2))
    fake(trainer).mismatch = 0.24  # below five times the warning's 0.05
    trainer.fit()
    assert trainer.step_number == 2
    wrong = make_trainer(tmp_path / "wrong", small_config())
    fake(wrong).mismatch = 0.26
    with pytest.raises(ParityError, match="0.260, above 5 × parity.max_step_mismatch=0.25"):
        wrong.fit()
    assert wrong.parts.checkpoints.complete() == []
    assert last_row(wrong)["policy/log_prob_mismatch"] == 0.26


class GrowingGenerator(FakeGenerator):
    """Engines that hold 4.1 GiB more in every sleep after their first."""

    def sleep(self) -> dict[str, float]:
        super().sleep()
        return {"sleep/residual_growth_gib_max": 4.1}


def test_a_sleeping_engine_that_holds_more_and_more_ends_the_run_after_a_checkpoint(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(), generator=GrowingGenerator())
    with pytest.raises(ResourceError, match=r"4\.1 GiB more than in its first sleep"):
        trainer.fit()
    assert trainer.parts.checkpoints.complete()[0].name == "step_1"


def test_starvation_saves_what_was_learnt_before_it_stops(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    trainer.validate()
    trainer.step()
    trainer.after_step()
    trainer.parts.sampler.verifier = FakeVerifier(period=1)  # from now on everything is right
    with pytest.raises(StarvationError, match="all_correct"):
        trainer.fit()
    assert [folder.name for folder in trainer.parts.checkpoints.complete()] == ["step_1"]


class LostService(FakeVerifier):
    """A service that ends with its second answer."""

    num_polls = 0

    def poll(self) -> list[ScoredChunk]:
        self.num_polls += 1
        if self.num_polls > 2:
            raise ServiceError("a verifier's service failed")
        return super().poll()


def test_a_service_that_fails_leaves_the_step_to_begin_anew_with_its_rollouts(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    trainer.validate()
    trainer.step()
    trainer.after_step()
    trainer.parts.generator.num_per_poll = 1  # type: ignore[attr-defined]
    trainer.parts.sampler.verifier = LostService()
    with pytest.raises(ServiceError):
        trainer.fit()
    resumed = make_trainer(tmp_path, small_config())
    assert resumed.resume()
    assert resumed.step_number == 1
    resumed.fit()
    whole = make_trainer(tmp_path / "whole", small_config())
    whole.fit()
    assert fake(resumed).weight == fake(whole).weight
    rows = [row for _, row in resumed.parts.sink.rows]  # type: ignore[attr-defined]
    assert rows[0]["rollouts/salvaged"] > 0


def test_the_reference_is_reset_at_its_interval_and_the_event_is_written_down(tmp_path: Path) -> None:
    config = small_config()
    config.algorithm.reference_reset.interval = 2
    config.algorithm.reference_reset.clear_optimizer = True
    trainer = make_trainer(tmp_path, config)
    trainer.fit()
    assert fake(trainer).reference_resets == [True] * 3
    assert events(tmp_path) == [
        {"step": step, "event": "reference_reset", "reason": "interval", "value": 2.0} for step in (2, 4, 6)
    ]
    rows = [row for _, row in trainer.parts.sink.rows]  # type: ignore[attr-defined]
    assert [(row["reference/resets"], row["reference/steps_since_reset"]) for row in rows[1:]] == [
        (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    ]  # fmt: skip


def test_resets_survive_a_restart_without_one_more_or_less(tmp_path: Path) -> None:
    config = small_config()
    config.algorithm.reference_reset.interval = 2
    config.algorithm.reference_reset.patience = 1
    killed = make_trainer(tmp_path, config)
    killed.validate()
    for _ in range(3):  # checkpoint at step 2; step 3 validates without a new best, resets, and is lost
        killed.step()
        killed.after_step()
    killed.saved.saver.finish(wait=True)
    assert [event["reason"] for event in events(tmp_path)] == ["interval", "patience"]
    resumed = make_trainer(tmp_path, config)
    assert resumed.resume()
    assert [event["step"] for event in events(tmp_path)] == [2]
    resumed.fit()
    whole = make_trainer(tmp_path / "whole", config)
    whole.fit()
    assert events(tmp_path) == events(tmp_path / "whole")
    assert resumed.resets.state_dict() == whole.resets.state_dict()


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    config = small_config(max_steps=7)
    config.trainer.save_interval = 4
    trainer = make_trainer(tmp_path, config)
    policy = fake(trainer)
    policy.num_polls = 2
    weights = []
    for _ in range(6):
        trainer.step()
        weights.append(policy.weight)
        trainer.after_step()
        names = sorted(folder.name for folder in (tmp_path / "checkpoints").glob("*"))
        # begun after step 4, not written yet after step 5, complete after step 6
        assert names == {4: ["step_4.partial"], 5: ["step_4.partial"], 6: ["step_4"]}.get(trainer.step_number, [])
    rows = [row for _, row in trainer.parts.sink.rows]  # type: ignore[attr-defined]
    assert "time/save_s" in rows[4] and rows[5]["time/save_background_s"] == 0.5
    trainer.parts.checkpoints.load_newest(policy.load)
    assert policy.weight == weights[3]


def test_a_stop_waits_for_the_last_checkpoint(tmp_path: Path) -> None:
    config = small_config()
    config.trainer.save_interval = 1
    trainer = make_trainer(tmp_path, config)
    fake(trainer).num_polls = 100
    trainer.step()
    trainer.after_step()
    trainer.stop.reason = "SIGTERM"
    trainer.fit()
    assert [folder.name for folder in trainer.parts.checkpoints.complete()] == ["step_1"]


def test_one_failed_save_is_a_warning_and_two_in_a_row_are_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(max_steps=9)
    trainer = make_trainer(tmp_path, config)
    fake(trainer).write_errors = ["No space left on device"]
    trainer.fit()  # the save of step 2 is lost, the others are there
    assert "No space left on device" in caplog.text
    assert [folder.name for folder in trainer.parts.checkpoints.complete()] == ["step_9", "step_8"]
    trainer = make_trainer(tmp_path / "full", config)
    fake(trainer).write_errors = ["No space left on device"] * 2
    with pytest.raises(CheckpointError, match=r"step_4.partial/policy: No space left on device; older checkpoints"):
        trainer.fit()
    assert trainer.step_number < 9


def test_the_policy_makes_room_while_engines_sample_and_is_back_to_learn_and_publish(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=1))
    trainer.begin()
    trainer.fit()
    rehearsal = ["onload", "rehearse", "release", "publish", "offload"]
    export, save = ["onload", "release", "offload"], ["onload", "release", "offload"]
    turn = ["onload", "update", "release", "publish", "offload"]
    assert fake(trainer).calls == [*rehearsal, *turn, *export, *save]


def staged_config() -> BroRLConfig:
    config = small_config()
    config.dynamic_sampling.max_staleness = 0
    config.rollouts.schedule.kind = "staged"
    config.rollouts.schedule.stages = [StageConfig(8, 2), StageConfig(32)]
    return config


def test_a_schedule_raises_n_and_the_learning_rate_with_it(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, staged_config())
    trainer.fit()
    plans = fake(trainer).plans
    assert trained_prompts(trainer) == [[8, 8]] * 2 + [[32, 32]] * 4
    assert [plan.learning_rate / plans[0].learning_rate for plan in plans] == pytest.approx(
        [1, 1, 2, 2, 2, 2]
    )  # √(32 / 8)
    assert [event for event in events(tmp_path) if event["event"] == "stage"] == [
        {"step": 2, "event": "stage", "reason": "stage of 2 steps is over", "value": 32.0}
    ]


def test_a_resumed_run_stays_in_its_stage(tmp_path: Path) -> None:
    first = make_trainer(tmp_path, staged_config())
    first.config.trainer.max_steps = 4
    first.fit()
    second = make_trainer(tmp_path, staged_config())
    assert second.resume()
    second.fit()
    assert trained_prompts(second) == [[32, 32]] * 2


def test_a_stalled_validation_broadens_the_rollouts(tmp_path: Path) -> None:
    config = staged_config()
    config.rollouts.schedule.kind, config.trainer.val_interval, config.trainer.max_steps = "on_plateau", 1, 10
    config.rollouts.schedule.stages = [StageConfig(32)]
    config.rollouts.schedule.plateau.window = 6
    trainer = make_trainer(tmp_path, config)
    trainer.fit()  # the fake's pass@1 never moves: 6 + 3 − 1 validations after steps
    assert trained_prompts(trainer) == [[8, 8]] * 8 + [[32, 32]] * 2


def test_advantages_see_the_shaped_reward_and_metrics_the_raw_one(tmp_path: Path) -> None:
    raw, shaped = (make_trainer(tmp_path / name, small_config(max_steps=1)) for name in ("raw", "shaped"))
    # whitening would undo a change of scale
    raw.config.algorithm.advantage = shaped.config.algorithm.advantage = "dr_grpo"
    shaped.config.rewards.shaping.cosine.enabled = True
    raw.fit()
    shaped.fit()
    assert last_row(raw)["reward/mean"] == last_row(shaped)["reward/mean"]
    pairs = zip(fake(raw).plans[0].groups, fake(shaped).plans[0].groups, strict=True)
    assert any((one.advantages != other.advantages).any() for one, other in pairs)


def test_samples_of_each_step_can_be_read(tmp_path: Path) -> None:
    make_trainer(tmp_path, small_config(max_steps=1)).fit()
    assert (tmp_path / "rollouts" / "step_1.jsonl").read_text().count('"reward"') == 2
