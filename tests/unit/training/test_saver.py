"""Saving while training goes on: one checkpoint at a time, and what a save that fails costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.saver import Saver
from tests.support.fakes import FakePolicy
from tests.unit.training.saved_steps import run_state, save_steps


def test_a_crash_while_writing_leaves_the_older_checkpoints_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints, policy = save_steps(tmp_path, [2, 4], keep=2)
    crashed = Saver(checkpoints, FakePolicy(), in_background=True)
    crashed.save(run_state(6), wait=False)  # and the process is gone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_2", "step_4", "step_6.partial"]
    run = checkpoints.load_newest(policy.load)
    assert run is not None and run.step == 4
    assert "step_6.partial was not finished" in caplog.text
    Saver(checkpoints, policy, in_background=True).save(run_state(8), wait=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_8"]


def test_older_checkpoints_are_deleted_only_once_the_new_one_is_complete(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2], keep=1)
    policy.num_polls = 2
    saver = Saver(checkpoints, policy, in_background=True)
    saver.save(run_state(4), wait=False)
    saver.finish(wait=False)
    assert [path.name for path in checkpoints.complete()] == ["step_2"]
    saver.finish(wait=True)
    assert [path.name for path in checkpoints.complete()] == ["step_4"]


def test_a_save_waits_for_the_one_before_and_takes_the_state_of_its_own_moment(tmp_path: Path) -> None:
    policy, checkpoints = FakePolicy(), Checkpoints(tmp_path, 3)
    saver = Saver(checkpoints, policy, in_background=True)
    for step in (2, 4):
        policy.weight = float(step)
        saver.save(run_state(step), wait=False)
    policy.weight = 5.0
    saver.finish(wait=True)
    weights = [json.loads((folder / "policy" / "weight.json").read_text()) for folder in checkpoints.complete()]
    assert weights == [4.0, 2.0]
    assert saver.take_seconds().keys() == {"time/save_s", "time/save_background_s"}
    assert saver.take_seconds() == {}


def test_a_lost_last_save_is_an_error(tmp_path: Path) -> None:
    checkpoints, policy = save_steps(tmp_path, [2])
    policy.write_errors = ["Permission denied"]
    with pytest.raises(CheckpointError, match="Permission denied; older checkpoints"):
        Saver(checkpoints, policy, in_background=True).save(run_state(4), wait=True)
    assert [path.name for path in checkpoints.complete()] == ["step_2"]


def test_a_folder_that_cannot_be_made_is_a_warning_like_any_lost_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    saver = Saver(Checkpoints(tmp_path / "checkpoints", 2), FakePolicy(), in_background=True)
    saver.save(run_state(2), wait=False)
    assert "a file in the way" not in caplog.text and "training continues" in caplog.text
    with pytest.raises(CheckpointError, match="older checkpoints"):
        saver.save(run_state(4), wait=False)
