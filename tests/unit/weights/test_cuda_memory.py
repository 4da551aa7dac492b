"""What is exported of GPU memory names torch's arguments, so that the index of the card can be replaced."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.weights import cuda_memory
from nemo_brorl.weights.cuda_memory import DEVICE_PARAMETER, by_name, map_memory

CARD = torch.device("cuda", 3)


def parameters() -> list[str]:
    return list(inspect.signature(rebuild_cuda_tensor).parameters)


def test_the_installed_torch_calls_the_index_of_the_gpu_as_we_do() -> None:
    assert DEVICE_PARAMETER in parameters()


def test_the_installed_torch_hands_the_device_over_where_its_parameter_is() -> None:
    """`reduce_tensor` makes a tuple, so its order must be that of the parameters."""
    source = inspect.getsource(torch.multiprocessing.reductions.reduce_tensor)
    made = source[source.index("rebuild_cuda_tensor") :]
    order = [made.index(text) for text in ("tensor.dtype,", "device,", "handle,", "storage_size_bytes,")]
    assert order == sorted(order)
    place = parameters().index(DEVICE_PARAMETER)
    assert parameters()[place - 1 : place + 3] == ["dtype", DEVICE_PARAMETER, "storage_handle", "storage_size_bytes"]


def test_arguments_get_the_names_of_torch() -> None:
    values = tuple(range(len(parameters())))
    assert by_name(values) == dict(zip(parameters(), values, strict=True))


def test_who_maps_uses_its_own_index_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = by_name(tuple(range(len(parameters()))))
    rebuilt: dict[str, Any] = {}
    monkeypatch.setattr(cuda_memory, "gpu_name", lambda device: "card")
    monkeypatch.setattr(cuda_memory, "rebuild_cuda_tensor", lambda **arguments: rebuilt.update(arguments))
    map_memory({"card": exported}, CARD)
    assert rebuilt == {**exported, DEVICE_PARAMETER: 3}


def test_an_engine_on_another_card_is_told_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_memory, "gpu_name", lambda device: "its own")
    with pytest.raises(WeightSyncError, match="no policy rank is on GPU its own .* Set it to object_store"):
        map_memory({"another": {}}, CARD)
