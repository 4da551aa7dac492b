"""What is no run folder is refused in one wording, and the proposal can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from brorl_launcher import runs

from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.core.run_folders import metrics_file, run_folder


def test_a_folder_with_any_sign_of_a_run_is_one(tmp_path: Path) -> None:
    (tmp_path / "heartbeat.json").touch()
    assert run_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(("name", "reason"), [("a/b c", "there is no such run folder"), (".", "is no run folder")])
def test_the_command_that_is_proposed_is_accepted(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        run_folder(tmp_path / name)
    command = str(caught.value).split("`")[1]
    program, name_of_command, *arguments = shlex.split(command)
    assert (program, name_of_command) == ("brorl", "runs")
    assert runs.main(arguments) == 0


def test_a_run_without_a_finished_step_is_no_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(DataError, match="has finished no step"):
        metrics_file(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    assert metrics_file(tmp_path) == metrics_file(tmp_path / "metrics.jsonl") == tmp_path / "metrics.jsonl"
