"""Checkpoints as Hugging Face folders: made once, and never taken for another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.training.export import convert_into, empty, is_converted, newest_checkpoint


def make_checkpoint(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "COMPLETE").write_text(json.dumps({"state.json": 2}))
    return folder


def export(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")


def test_the_newest_complete_checkpoint_of_a_run_is_found_or_the_one_that_is_named(tmp_path: Path) -> None:
    old, new = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 10)
    assert newest_checkpoint(tmp_path / "checkpoints", "evaluation.checkpoint") == new
    assert newest_checkpoint(old, "evaluation.checkpoint") == old
    (new / "state.json").unlink()
    assert newest_checkpoint(tmp_path / "checkpoints", "evaluation.checkpoint") == old
    with pytest.raises(
        CheckpointError,
        match="step_10 holds no complete checkpoint. Set evaluation.checkpoint=RUN/checkpoints/step_K",
    ):
        newest_checkpoint(new, "evaluation.checkpoint")


def test_a_checkpoint_is_converted_once(tmp_path: Path) -> None:
    checkpoint, output = make_checkpoint(tmp_path, 2), tmp_path / "hf_step_2"
    assert not is_converted(checkpoint, output)
    convert_into(checkpoint, empty(output, "--output"), export)
    assert is_converted(checkpoint, output)
    assert (output / "model.safetensors").read_text() == "weights"
    with pytest.raises(CheckpointError, match="this folder is not empty. Delete it"):
        empty(output, "--output")


def test_another_checkpoint_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    checkpoint, output = make_checkpoint(tmp_path, 2), tmp_path / "hf_step_2"
    convert_into(checkpoint, output, export)
    (checkpoint / "COMPLETE").write_text(json.dumps({"state.json": 2}, indent=1))  # the step was trained again
    assert not is_converted(checkpoint, output)


def test_a_conversion_that_fails_leaves_nothing_behind_that_looks_whole(tmp_path: Path) -> None:
    checkpoint, output = make_checkpoint(tmp_path, 2), tmp_path / "hf_step_2"

    def fail(folder: Path) -> None:
        export(folder)
        raise CheckpointError("the disk is full")

    with pytest.raises(CheckpointError, match="the disk is full"):
        convert_into(checkpoint, output, fail)
    assert not output.exists()
    convert_into(checkpoint, output, export)
    assert is_converted(checkpoint, output)
