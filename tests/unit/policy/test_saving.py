"""Checkpoints written in the background: of the moment they were begun, and never half a one without an error."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import SUMS
from nemo_brorl.policy.state.saving import FileSystemWriterAsync
from tests.support.learners import save
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

NewLearner = Callable[[Path, BroRLConfig], Any]


@pytest.fixture
def held_writer(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keeps writers waiting before their first file until the event is set."""
    go = threading.Event()
    write = FileSystemWriterAsync.write_preloaded_data

    def wait_and_write(*arguments: Any, **settings: Any) -> None:
        go.wait()
        write(*arguments, **settings)

    monkeypatch.setattr(FileSystemWriterAsync, "write_preloaded_data", staticmethod(wait_and_write))
    return go


def state_of(learner: Any) -> list[torch.Tensor]:
    """Weights, master weights, moments and reference."""
    from nemo_brorl.policy.state.optimizer import state_tensors

    weights = [param for model in learner.state.models for param in model.parameters()]
    return [
        tensor.detach().clone()
        for tensor in (*weights, *state_tensors(learner.state.optimizer), *learner.state.references[0].copies.values())
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_that_goes_on_does_not_leak_into_the_files(
    precision: str, held_writer: threading.Event, new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config(precision=precision))
    learner.update(make_plan(seed=1))
    saved = state_of(learner)
    learner.begin_save(tmp_path / "checkpoint")
    learner.update(make_plan(seed=2))  # writes weights, moments and, while it scores, the reference's buffers
    learner.reset_reference(clear_optimizer=True)
    assert not learner.is_save_written()
    held_writer.set()
    assert learner.finish_save() >= 0
    other = new_learner(make_model(tmp_path / "other", seed=5), make_config(precision=precision))
    other.load(tmp_path / "checkpoint")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(saved, state_of(other), strict=True))


def test_the_optimizers_state_is_what_megatron_would_gather(new_learner: NewLearner, model_folder: Path) -> None:
    from nemo_brorl.policy.state import saving

    learner = new_learner(model_folder, make_config())
    learner.update(make_plan())
    model_state = learner.state.models[0].sharded_state_dict(metadata=saving.metadata())
    for part in learner.state.optimizer.chained_optimizers:
        own = part.sharded_param_state_fully_reshardable(model_state, False, saving.metadata())
        megatrons = type(part).sharded_param_state_fully_reshardable(part, model_state, False, saving.metadata())
        assert own.keys() == megatrons.keys() and len(own) > 10
        for number, states in megatrons.items():
            for key, expected in states.items():
                found = own[number][key]
                assert (found.key, type(found), found.replica_id) == (expected.key, type(expected), expected.replica_id)
                assert torch.equal(found.data, expected.data)


def test_a_save_that_cannot_be_written_names_its_folder_and_the_next_one_works(
    held_writer: threading.Event, new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    folder = tmp_path / "lost"
    learner.begin_save(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()  # as good as a full disk: the writer cannot open its files
    held_writer.set()
    with pytest.raises(CheckpointError, match=f"{folder} could not be written .rank 0: .*No such file"):
        learner.finish_save()
    save(learner, tmp_path / "next")
    learner.load(tmp_path / "next")


def test_a_folder_that_was_not_finished_is_no_checkpoint(
    held_writer: threading.Event, new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    learner.begin_save(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="holds no policy checkpoint"):
        learner.load(tmp_path / "checkpoint")
    held_writer.set()
    learner.finish_save()
    learner.load(tmp_path / "checkpoint")


def test_a_flipped_bit_or_a_lost_byte_in_any_file_of_a_checkpoint_is_named(
    new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    folder = tmp_path / "checkpoint"
    save(learner, folder)
    files = {path.name for path in folder.iterdir()}
    assert {".metadata", "metadata.json", "common.pt", SUMS} < files
    for name in sorted(files - {SUMS}):
        whole = (folder / name).read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for content, words in ((bytes(flipped), "holds other bytes"), (whole[:-1], f"has {len(whole) - 1:,} of")):
            (folder / name).write_bytes(content)
            with pytest.raises(CheckpointError, match=f"damaged since it was saved: {folder / name} {words}"):
                learner.load(folder)
        (folder / name).write_bytes(whole)
    learner.load(folder)


class Call:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_of_somebody_else_runs_none_of_its_code(
    new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    folder, trace = tmp_path / "checkpoint", tmp_path / "executed"
    save(learner, folder)
    (folder / SUMS).unlink()  # who changes a file changes its sum, too
    index = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(pickle.dumps(Call(trace)))
    with pytest.raises(CheckpointError, match="names pathlib.Path.touch|names .*, which no checkpoint does"):
        learner.load(folder)
    (folder / ".metadata").write_bytes(index)
    torch.save({"content_metadata": Call(trace)}, folder / "common.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        learner.load(folder)
    assert not trace.exists()
