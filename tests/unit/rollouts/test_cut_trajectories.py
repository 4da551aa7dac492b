"""A run of environments that is killed or cut between turns comes to what it would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.core.clock import StopRequest
from nemo_brorl.training.trainer import BroRLTrainer
from tests.support.environments import EnvironmentPrompts, EnvironmentVerifier, TurnGenerator
from tests.support.loop import fake, last_row, make_trainer, small_config
from tests.unit.rollouts.test_cut_steps import CutAtTurn, settled


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it to save something."""


class KilledAtTurn(StopRequest):
    """A SIGKILL at the n-th look of sampling."""

    def __init__(self, turn: int) -> None:
        super().__init__(None)
        self.turns_left = turn

    def check(self) -> None:
        self.turns_left -= 1
        if self.turns_left == 0:
            raise Killed


def environment_trainer(folder: Path, unfinished: str = "drop") -> BroRLTrainer:
    """Engines return one chunk at a time and environments answer one at a time, so that turns of groups mix."""
    config = small_config()
    config.rollouts.max_response_tokens = 64
    config.rollouts.unfinished = unfinished
    generator, verifier = TurnGenerator(), EnvironmentVerifier()
    generator.num_per_poll, verifier.num_per_poll = 1, 1
    return make_trainer(folder, config, generator=generator, verifier=verifier, prompts=EnvironmentPrompts())


@pytest.mark.parametrize("unfinished", ["drop", "resume"])
@pytest.mark.parametrize("turn", [45, 60, 83])
def test_a_run_killed_between_turns_and_resumed_equals_the_one_that_was_not(
    tmp_path: Path, turn: int, unfinished: str
) -> None:
    whole = environment_trainer(tmp_path / "whole", unfinished)
    whole.fit()
    assert last_row(whole)["trajectories/turns"] > 1.5
    killed = environment_trainer(tmp_path / "killed", unfinished)
    killed.stop = KilledAtTurn(turn)
    with pytest.raises(Killed):
        killed.fit()
    assert 0 < killed.step_number < 6
    resumed = environment_trainer(tmp_path / "killed", unfinished)
    resumed.resume()
    resumed.fit()
    assert fake(resumed).weight == fake(whole).weight
    assert settled(last_row(resumed)) == settled(last_row(whole))


@pytest.mark.parametrize("turn", [45, 60, 83])
def test_a_step_cut_between_turns_replays_those_that_had_come_back(tmp_path: Path, turn: int) -> None:
    whole = environment_trainer(tmp_path / "whole")
    whole.fit()
    stopped = environment_trainer(tmp_path / "stopped")
    stopped.stop = CutAtTurn(turn)
    stopped.fit()
    resumed = environment_trainer(tmp_path / "stopped")
    assert resumed.resume()
    resumed.fit()
    assert fake(resumed).weight == fake(whole).weight
    assert settled(last_row(resumed)) == settled(last_row(whole))
    salvaged = [row.get("rollouts/salvaged", 0.0) for _, row in resumed.parts.sink.rows]  # type: ignore[attr-defined]
    assert salvaged[0] > 0
    assert not any(salvaged[1:])
