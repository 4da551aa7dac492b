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
from nemo_brorl.training.trainer import BroRLTrainer
from tests.support.fakes import ListStore
from tests.support.loop import decode, fake, make_trainer, small_config

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
