"""A run folder belongs to one configuration."""

import os
from pathlib import Path

import pytest

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.run_folder import claim_run_folder, code_revision


def config_for(folder: Path) -> BroRLConfig:
    config = BroRLConfig()
    config.exp_manager.explicit_log_dir = str(folder)
    return config


def test_a_new_folder_holds_the_settings_and_the_revision(tmp_path: Path) -> None:
    claim_run_folder(config_for(tmp_path / "run"))
    assert "num_per_prompt: 512" in (tmp_path / "run" / "config.yaml").read_text()
    assert (tmp_path / "run" / "revision.txt").read_text().strip()


def test_the_revision_is_read_without_a_lock_in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    program = tmp_path / "git"
    program.write_text(f'#!/bin/sh\necho "$1 $2" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    code_revision()
    assert asked.read_text().splitlines() == ["--no-optional-locks rev-parse", "--no-optional-locks status"]


def test_the_same_settings_may_continue_with_more_steps(tmp_path: Path) -> None:
    claim_run_folder(config_for(tmp_path))
    config = config_for(tmp_path)
    config.trainer.max_steps += 10
    assert claim_run_folder(config) == tmp_path


def test_other_settings_are_refused_by_name_and_value(tmp_path: Path) -> None:
    claim_run_folder(config_for(tmp_path))
    config = config_for(tmp_path)
    config.rollouts.num_per_prompt = 16
    with pytest.raises(CheckpointError, match="rollouts.num_per_prompt was 512, now 16"):
        claim_run_folder(config)


def test_resuming_can_be_forbidden(tmp_path: Path) -> None:
    claim_run_folder(config_for(tmp_path))
    config = config_for(tmp_path)
    config.exp_manager.resume_if_exists = False
    with pytest.raises(CheckpointError, match="exists already"):
        claim_run_folder(config)


def test_a_private_folder_is_entered_by_nobody_else_from_then_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    config = config_for(tmp_path)
    claim_run_folder(config)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    config.trainer.private_run_folder = True
    claim_run_folder(config)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
