"""A step that is given up for want of time: it begins anew with what it had sampled, and the run comes to what it would
have."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.core.clock import StepCut, StopRequest
from nemo_brorl.training.trainer import BroRLTrainer
from tests.support.fakes import FakeGenerator
from tests.support.loop import fake, last_row, make_trainer, small_config


class CutAtTurn(StopRequest):
    """A SIGUSR1 that comes at the n-th turn of sampling, and leaves no time for the step."""

    def __init__(self, turn: int) -> None:
        super().__init__(None)
        self.turns_left = turn

    def check(self) -> None:
        self.turns_left -= 1
        if self.turns_left == 0:
            self.reason, self.will_resume = "SIGUSR1", True
            raise StepCut


def make_step_wise(trainer: BroRLTrainer) -> BroRLTrainer:
    """Its engines return one chunk at a time, so that a step has several turns."""
    assert isinstance(trainer.parts.generator, FakeGenerator)
    trainer.parts.generator.num_per_poll = 1
    return trainer


def settled(row: dict[str, float]) -> dict[str, float]:
    """Metrics without timings."""
    return {
        name: value
        for name, value in row.items()
        if not name.startswith(("time/", "sync/seconds")) and not name.endswith("_per_s")
    }


@pytest.mark.parametrize("unfinished", ["drop", "resume"])
def test_a_step_given_up_half_way_begins_anew_and_the_run_equals_one_that_was_never_stopped(
    tmp_path: Path, unfinished: str
) -> None:
    config = small_config()
    config.rollouts.unfinished = unfinished
    whole = make_step_wise(make_trainer(tmp_path / "whole", config))
    whole.fit()
    stopped = make_step_wise(make_trainer(tmp_path / "stopped", config))
    stopped.stop = CutAtTurn(turn=25)
    stopped.fit()
    at = stopped.step_number
    assert 0 < at < 6
    assert stopped.parts.checkpoints.complete()[0].name == f"step_{at}"
    resumed = make_step_wise(make_trainer(tmp_path / "stopped", config))
    assert resumed.resume()
    assert resumed.step_number == at
    resumed.fit()
    assert fake(resumed).weight == fake(whole).weight
    assert resumed.batches.carry_over.state().carry_over == whole.batches.carry_over.state().carry_over
    assert settled(last_row(resumed)) == settled(last_row(whole))


def num_sampled(*trainers: BroRLTrainer) -> int:
    return sum(trainer.parts.generator.num_samples for trainer in trainers)  # type: ignore[attr-defined]


def replayed(trainer: BroRLTrainer) -> list[float]:
    """Rollouts of a cut step that were taken as they were, in every step that this trainer made."""
    return [row["rollouts/salvaged"] for _, row in trainer.parts.sink.rows if "rollouts/salvaged" in row]  # type: ignore[attr-defined]


def test_what_a_step_had_sampled_when_it_was_given_up_is_not_sampled_again(tmp_path: Path) -> None:
    config = small_config()
    whole = make_step_wise(make_trainer(tmp_path / "whole", config))
    whole.fit()
    trainers, kept = [], []
    for turn in (29, 4):  # the step begun anew is given up once more, at its fourth turn
        trainers.append(make_step_wise(make_trainer(tmp_path / "stopped", config)))
        trainers[-1].stop = CutAtTurn(turn)
        trainers[-1].resume()
        trainers[-1].fit()
        cut_step = trainers[-1].parts.checkpoints.load_cut_step(trainers[-1].step_number)
        kept.append(sum(len(scored.rewards) for scored in cut_step))
    first, second = trainers
    assert first.step_number == second.step_number
    trainers.append(make_step_wise(make_trainer(tmp_path / "stopped", config)))
    assert trainers[-1].resume()
    trainers[-1].fit()
    assert fake(trainers[-1]).weight == fake(whole).weight
    taken, *later = replayed(trainers[-1])
    assert taken >= kept[0] > 0
    assert set(later) == {0.0}
    assert sum(replayed(whole)) == 0
    in_flight = 2 * 3  # each cut loses at most the chunk of three that its last turn brought, before it was scored
    assert num_sampled(whole) <= num_sampled(*trainers) <= num_sampled(whole) + in_flight


def test_replayed_rollouts_of_other_weights_are_sampled_again(tmp_path: Path) -> None:
    trainer = make_step_wise(make_trainer(tmp_path, small_config()))
    trainer.stop = CutAtTurn(turn=29)
    trainer.fit()
    again = make_trainer(tmp_path, small_config())
    assert again.resume()
    chunks = again.batches.carry_over.cut_step
    assert len(chunks) > 0
    assert again.batches.carry_over.take_replay(again.version).chunks == chunks
    again.batches.carry_over.cut_step = chunks
    assert again.batches.carry_over.take_replay(again.version + 1).chunks == ()


class CutAtUpdate(StopRequest):
    """A time limit that leaves no time for the n-th update of a job."""

    def __init__(self, update: int) -> None:
        super().__init__(None)
        self.updates_left = update

    def check_update(self) -> None:
        self.updates_left -= 1
        if self.updates_left == 0:
            self.reason, self.will_resume = "the time limit is near", True
            raise StepCut


@pytest.mark.parametrize("overlap", [False, True])
def test_a_filled_batch_whose_update_has_no_time_left_is_trained_on_by_the_next_job(
    tmp_path: Path, overlap: bool
) -> None:
    config = small_config()
    config.rollouts.overlap = overlap
    whole = make_trainer(tmp_path / "whole", config)
    whole.fit()
    stopped = make_trainer(tmp_path / "stopped", config)
    stopped.stop = CutAtUpdate(3)
    stopped.fit()
    assert stopped.step_number == 2
    resumed = make_trainer(tmp_path / "stopped", config)
    assert resumed.resume()
    resumed.fit()
    assert fake(resumed).weight == fake(whole).weight
    assert settled(last_row(resumed)) == settled(last_row(whole))
    assert num_sampled(stopped, resumed) == num_sampled(whole)
