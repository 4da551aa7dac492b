"""A checkpoint that is evaluated: the run that it is of, and that run's model."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.commands.evaluate import run_of, with_model_of_checkpoint
from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import CheckpointError


@pytest.mark.parametrize("given", ["run", "run/checkpoints", "run/checkpoints/step_4"])
def test_the_run_of_a_checkpoint_is_found_from_any_of_its_folders(given: str, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "step_4").mkdir(parents=True)
    assert run_of(tmp_path / given) == tmp_path / "run"


def test_a_checkpoint_somewhere_else_belongs_to_the_folder_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "step_4").mkdir()
    assert run_of(tmp_path / "step_4") == tmp_path


def test_the_model_of_a_checkpoint_is_the_one_its_run_began_with(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step_4").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("policy: {model: /somewhere/base}\n")
    config = load_config("brorl_cpu", [f"evaluation.checkpoint={tmp_path}"])
    assert with_model_of_checkpoint(config).policy.model == "/somewhere/base"
    assert with_model_of_checkpoint(load_config("brorl_cpu")).policy.model == load_config("brorl_cpu").policy.model
    with pytest.raises(CheckpointError, match="there is no checkpoint in .*elsewhere"):
        with_model_of_checkpoint(load_config("brorl_cpu", [f"evaluation.checkpoint={tmp_path}/elsewhere"]))
    (tmp_path / "config.yaml").unlink()
    assert with_model_of_checkpoint(config).policy.model == config.policy.model
