"""Observers look on: they change nothing of what is learned, and their metrics and states are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.commands.wiring import run_observers
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import TrainingError
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.training.observers import Observer, Observers, StepMade
from nemo_brorl.training.step_row import StepRow
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import TrainBatch, UpdatePlan
from tests.support.fakes import ListSink, ListStore
from tests.support.loop import decode, fake, last_row, make_trainer, small_config

NAMES = [
    observer.name
    for observer in run_observers(small_config(), Path("unused"), ListStore(), Timeline(), decode, Console())
]


def learned(trainer: BroRLTrainer) -> list[np.ndarray]:
    """Advantages of all plans, and the fake's weight."""
    policy = fake(trainer)
    groups = [group for plan in policy.plans for group in plan.groups]
    return [np.array([policy.weight]), *[group.advantages for group in groups]]


@pytest.mark.parametrize("name", NAMES)
def test_without_any_one_of_them_the_same_is_learned(name: str, tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", small_config())
    whole.fit()
    fewer = make_trainer(tmp_path / "fewer", small_config(), without=name)
    assert len(fewer.parts.observers) == len(NAMES) - 1
    fewer.fit()
    for one, other in zip(learned(whole), learned(fewer), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_resumes_with_an_observer_that_its_checkpoint_does_not_know(name: str, tmp_path: Path) -> None:
    make_trainer(tmp_path, small_config(max_steps=2), without=name).fit()
    resumed = make_trainer(tmp_path, small_config(max_steps=4))
    assert resumed.resume()
    resumed.fit()
    assert resumed.step_number == 4


class Counter(Observer):
    """Counts steps, as the metric that it is made with."""

    def __init__(self, metric: str = "own/steps") -> None:
        self.metric = metric
        self.num_steps = 0

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        self.num_steps += 1
        return {self.metric: float(self.num_steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self.num_steps = state["num_steps"]


class SecondCounter(Counter):
    """The same under another name."""


KL = {"policy/kl_to_reference": 99.0}


class Meddler(Observer):
    """Writes into everything that is no array, and reports what decides about resets of the reference."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        for metrics in (made.update.metrics, made.filled.metrics):
            assert isinstance(metrics, dict)
            metrics.update(KL)
        return KL

    def row_complete(self, step: int, metrics: Mapping[str, float]) -> None:
        assert isinstance(metrics, dict)
        metrics.clear()
        metrics.update(KL)


def resetting_trainer(folder: Path, *observers: Observer) -> BroRLTrainer:
    config = small_config()
    config.algorithm.reference_reset.kl_above = 50.0
    trainer = make_trainer(folder, config)
    trainer.observers = Observers([*observers, *trainer.parts.observers])
    return trainer


def test_an_observer_that_meddles_changes_nothing_that_is_learned_or_reported(tmp_path: Path) -> None:
    alone = resetting_trainer(tmp_path / "alone")
    alone.fit()
    watched = resetting_trainer(tmp_path / "watched", Meddler())
    watched.fit()
    assert fake(watched).reference_resets == []
    for one, other in zip(learned(alone), learned(watched), strict=True):
        assert np.array_equal(one, other)
    groups = ("policy/", "reward/", "dynamic_sampling/", "validation/")
    reported = {name: value for name, value in last_row(alone).items() if name.startswith(groups)}
    assert last_row(watched).items() >= {**reported, **KL}.items()


class Writer(Observer):
    """Writes into one array of those that it is shown before an update."""

    def __init__(self, place: str) -> None:
        self.place = place

    def update_planned(self, plan: UpdatePlan, batch: TrainBatch) -> None:
        group = batch.groups[0]
        arrays = {
            "planned advantages": plan.groups[0].advantages,
            "planned prompt": plan.groups[0].prompt_ids,
            "advantages": batch.advantages[0],
            "rollouts": batch.rollouts[0],
            "rewards": group.rewards,
            "lengths": group.group.lengths,
            "lengths of a chunk": group.group.chunks[0].lengths,
            "ended": group.group.is_stopped,
        }
        arrays[self.place][0] = 0


@pytest.mark.parametrize(
    "place",
    [
        "planned advantages",
        "planned prompt",
        "advantages",
        "rollouts",
        "rewards",
        "lengths",
        "lengths of a chunk",
        "ended",
    ],
)
def test_an_observer_cannot_write_into_what_is_trained_on(place: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        resetting_trainer(tmp_path, Writer(place)).fit()


class Stranger(Observer):
    """Fills the row with names that nobody else knows."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        return {f"strange/{number}": float(number) for number in range(99)}


@pytest.mark.parametrize("name", NAMES)
def test_every_observer_takes_a_row_full_of_names_that_it_does_not_know(name: str, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config(max_steps=2))
    [observer] = [observer for observer in trainer.parts.observers if observer.name == name]
    trainer.observers = Observers([Stranger(), observer])
    trainer.fit()
    assert trainer.step_number == 2
    assert last_row(trainer)["strange/98"] == 98.0


@pytest.mark.parametrize("taken", ["policy/loss", "time/update_s", "reference/resets", "validation/pass_at_1"])
def test_a_name_of_the_runs_own_is_refused_in_the_first_step(taken: str, tmp_path: Path) -> None:
    trainer = resetting_trainer(tmp_path, Counter(taken))
    trainer.config.trainer.val_interval = 1
    with pytest.raises(TrainingError, match=f"observer Counter reports the metric {taken}, which the run .* rename it"):
        trainer.fit()
    assert trainer.step_number == 1


class LateCounter(Counter):
    """Reports a metric from the third step on."""

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        return super().step_ended(made) if made.step > 2 else {}


@pytest.mark.parametrize("taken", ["policy/loss", "own/steps"])
def test_a_name_that_is_taken_later_costs_a_warning_and_not_the_run(
    taken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = resetting_trainer(tmp_path, SecondCounter("own/steps"), LateCounter(taken))
    trainer.fit()
    assert trainer.step_number == 6
    assert (last_row(trainer)["policy/loss"], last_row(trainer)["own/steps"]) == (0.0, 6.0)
    assert caplog.text.count(f"the metric {taken}") == 1, "three steps of it, one warning"


def test_a_row_has_one_value_of_a_name() -> None:
    row = StepRow(ListSink())
    row.add({"policy/loss": 1.0})
    with pytest.raises(TrainingError, match="the metric policy/loss is reported twice"):
        row.add({"policy/loss": 2.0})
    assert row.metrics == {"policy/loss": 1.0}


def made() -> StepMade:
    return StepMade(1, *[None] * 4)  # type: ignore[arg-type]


def test_two_observers_cannot_report_one_metric() -> None:
    observers = Observers([Counter(), SecondCounter()])
    with pytest.raises(TrainingError, match="Counter and SecondCounter both report the metric own/steps"):
        observers.step_ended(made())


def test_two_observers_cannot_have_one_name() -> None:
    with pytest.raises(TrainingError, match="two observers of the run are called Counter"):
        Observers([Counter(), Counter("own/others")])


def test_every_observer_goes_on_from_its_own_state() -> None:
    before = Observers([Counter(), SecondCounter("own/others")])
    before.step_ended(made())
    before.step_ended(made())
    after = Observers([SecondCounter("own/others"), Counter()])
    after.resume(2, before.state_dict())
    assert after.step_ended(made()) == {"own/others": 3.0, "own/steps": 3.0}
