"""What Transformer Engine's layers keep in a checkpoint is read as data before they unpickle it.

Pickles are made as `TransformerEngineBaseModule.get_extra_state` makes them. Nothing of Transformer Engine is here, so
this does not show that its recipes are read; their names are those of 2.11.
"""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_brorl.policy.state.checkpoint_pickles import ScaleReader, check_scales

pytestmark = pytest.mark.numbers


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


class AttackInTensor:
    """The same, in the pickle that a tensor is within a pickle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        legacy = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        storage = b"".join(legacy) + pickle.dumps(Attack(self.folder), 2) + pickle.dumps([], 2)
        return torch.storage._load_from_bytes, (storage,)


def packed(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def test_scales_and_histories_of_a_layer_are_read() -> None:
    kept = {
        "scale_fwd": torch.ones(3),
        "amax_history_fwd": torch.zeros(16, 3),
        "extra_fp8_variables": {"num_gemms": 1, "fp8_checkpoint": True},
    }
    check_scales(
        {
            "decoder.layers.0.mlp.linear_fc1._extra_state": packed(kept),
            "decoder.layers.0.mlp.linear_fc2._extra_state": torch.empty(0, dtype=torch.uint8),
            "decoder.layers.0.mlp.linear_fc2.weight": torch.ones(2),
        },
        plain=(),
    )
    found = ScaleReader(io.BytesIO(pickle.dumps(kept))).load()
    assert torch.equal(found["scale_fwd"], kept["scale_fwd"])
    assert torch.equal(found["amax_history_fwd"], kept["amax_history_fwd"])
    assert found["extra_fp8_variables"] == kept["extra_fp8_variables"]


@pytest.mark.parametrize("attack", [Attack, AttackInTensor])
def test_a_name_that_no_layer_writes_is_refused_and_not_called(attack: Any, tmp_path: Path) -> None:
    made = tmp_path / "made"
    state = {"decoder.layers.0.mlp.experts.linear_fc1._extra_state3": packed({"scale_fwd": attack(made)})}
    with pytest.raises(pickle.UnpicklingError):
        check_scales(state, plain=())
    assert not made.exists()


def test_numbers_are_read_as_scales_unless_their_layer_takes_numbers() -> None:
    history = "decoder.layers.0.mlp.linear_fc1._extra_state"
    state = {history: torch.ones(3, 17)}
    check_scales(state, plain={history})
    with pytest.raises(pickle.UnpicklingError):
        check_scales(state, plain={"decoder.layers.1.mlp.linear_fc1._extra_state"})
