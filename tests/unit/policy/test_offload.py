"""Offload: nothing of it is left on the device, and training goes on as if it had never left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from tests.support.model_factory import make_config, make_model, make_plan

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

NewLearner = Callable[[Path, BroRLConfig], Any]


def params(learner: Any) -> list[torch.Tensor]:
    return [param for model in learner.state.models for param in model.parameters()]


def moments(learner: Any) -> list[torch.Tensor]:
    states = [state for part in learner.state.optimizer.chained_optimizers for state in part.optimizer.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]


def masters(learner: Any) -> list[torch.Tensor]:
    return [
        param
        for part in learner.state.optimizer.chained_optimizers
        for group in part.optimizer.param_groups
        for param in group["params"]
    ]


def gradients(learner: Any) -> list[torch.Tensor]:
    return [buffer.grad_data for chunk in learner.state.chunks for buffer in chunk.buffers]


def num_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_the_device_is_empty_meanwhile_and_training_is_bit_identical(
    offload: str, precision: str, new_learner: NewLearner, model_folder: Path
) -> None:
    resident = new_learner(model_folder, make_config(precision=precision))
    moving = new_learner(model_folder, make_config(precision=precision, offload=offload))
    for seed in range(3):
        moving.offload()
        moving.offload()  # a second call does nothing
        assert num_bytes(moments(moving)) == num_bytes(gradients(moving)) == 0
        assert (num_bytes(params(moving)) == 0) == (offload == "all")
        assert (num_bytes(masters(moving)) == 0) == (offload == "all" or precision == "bf16")
        moving.onload()
        moving.onload()
        assert not any(gradient.any() for gradient in gradients(moving))
        assert moving.update(make_plan(seed=seed)).metrics == resident.update(make_plan(seed=seed)).metrics
    for mine, theirs in zip((*params(moving), *moments(moving)), (*params(resident), *moments(resident)), strict=True):
        assert torch.equal(mine, theirs)


def test_a_state_that_was_loaded_is_what_moves(new_learner: NewLearner, model_folder: Path, tmp_path: Path) -> None:
    first = new_learner(model_folder, make_config())
    first.update(make_plan(seed=1))
    first.begin_save(tmp_path / "checkpoint")
    first.finish_save()
    second = new_learner(make_model(tmp_path / "other", seed=5), make_config(offload="all"))
    second.offload()
    second.onload()
    second.load(tmp_path / "checkpoint")
    second.offload()
    assert num_bytes(params(second)) == num_bytes(moments(second)) == 0
    second.onload()
    assert second.update(make_plan(seed=2)).metrics == first.update(make_plan(seed=2)).metrics


def test_without_the_setting_nothing_moves(new_learner: NewLearner, model_folder: Path) -> None:
    learner = new_learner(model_folder, make_config())
    learner.offload()
    assert num_bytes(params(learner)) > 0 and num_bytes(gradients(learner)) > 0
    learner.onload()


def test_quantised_copies_of_weights_are_forgotten(new_learner: NewLearner, model_folder: Path) -> None:
    """Transformer Engine keeps them in a dictionary of its modules; here one is put there."""
    learner = new_learner(model_folder, make_config(offload="optimizer"))
    layer = learner.state.models[0].decoder.layers[0]
    layer._fp8_workspaces = {"weight": torch.zeros(1)}
    learner.offload()
    assert layer._fp8_workspaces == {}
    learner.onload()
