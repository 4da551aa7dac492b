"""Hugging Face weights survive the way to Megatron and back exactly, and nothing is left over or made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import hf_shapes, read_model_shape
from nemo_brorl.policy.model.model import build_model
from nemo_brorl.policy.process.device import Device
from nemo_brorl.policy.process.process_groups import weight_groups
from nemo_brorl.weights import sending
from nemo_brorl.weights.reading import load_hf
from nemo_brorl.weights.sending import HfExport
from tests.support.model_factory import make_config, make_model

MODELS: dict[str, dict[str, Any]] = {
    "qwen2 tied": {"architecture": "qwen2"},
    "qwen2": {"architecture": "qwen2", "tie_word_embeddings": False},
    "qwen3 with heads wider than its hidden size": {"architecture": "qwen3", "head_dim": 24},
    "llama": {"architecture": "llama", "tie_word_embeddings": False},
    "qwen3-moe": {"architecture": "qwen3_moe"},
    "qwen3-moe with a dense layer": {"architecture": "qwen3_moe", "mlp_only_layers": [1], "tie_word_embeddings": False},
}


def round_trip(folder: Path, device: Device) -> dict[str, torch.Tensor]:
    shape = read_model_shape(folder)
    models = build_model(make_config().policy, shape, ParallelLayout(1, 1, 1))
    groups = weight_groups()
    load_hf(models, shape, folder, groups)
    return {name: tensor.clone() for name, tensor in HfExport(models, shape, device.torch_device, groups).stream()}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
def test_loading_and_exporting_changes_no_bit(settings: dict[str, Any], tmp_path: Path, device: Device) -> None:
    folder = make_model(tmp_path, **settings)
    original, exported = load_file(folder / "model.safetensors"), round_trip(folder, device)
    assert set(exported) == set(original)
    assert list(exported) == list(hf_shapes(read_model_shape(folder)))
    for name, tensor in original.items():
        assert torch.equal(exported[name], tensor), name


def test_a_checkpoint_in_several_files_is_read_by_its_index(model_folder: Path, tmp_path: Path, device: Device) -> None:
    tensors = load_file(model_folder / "model.safetensors")
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    exported = round_trip(tmp_path, device)
    assert all(torch.equal(exported[name], tensor) for name, tensor in tensors.items())


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.2.mlp.up_proj.weight"]


def _add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.router.weight"] = torch.zeros(1)


def _resize(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = torch.zeros(33)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop, "1 tensors are missing, model.layers.2.mlp.up_proj.weight for one"),
        (_add, "1 tensors are not those of config.json, model.layers.0.mlp.router.weight for one"),
        (_resize, "model.norm.weight has 33 numbers, config.json says 32"),
    ],
    ids=["missing", "left over", "wrong shape"],
)
def test_tensors_that_do_not_fit_the_config_are_named(
    damage: Callable[[dict[str, torch.Tensor]], None], message: str, model_folder: Path, tmp_path: Path, device: Device
) -> None:
    tensors = load_file(model_folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match=message):
        round_trip(tmp_path, device)


def test_a_folder_without_weights_is_refused(model_folder: Path, tmp_path: Path, device: Device) -> None:
    (tmp_path / "config.json").write_bytes((model_folder / "config.json").read_bytes())
    with pytest.raises(ModelError, match="there are no weights"):
        round_trip(tmp_path, device)


def test_a_missing_expert_and_one_too_many_are_named(tmp_path: Path, device: Device) -> None:
    folder = make_model(tmp_path, "qwen3_moe", num_experts=2)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.experts.2.up_proj.weight"] = tensors.pop("model.layers.1.mlp.experts.1.up_proj.weight")
    save_file(tensors, folder / "model.safetensors")
    names = r"missing, model\.layers\.1\.mlp\.experts\.1\.up_proj.* not those .* model\.layers\.1\.mlp\.experts\.2\."
    with pytest.raises(ModelError, match=names):
        round_trip(folder, device)


def test_experts_of_a_layer_are_gathered_together(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective for the first product of all experts of a layer, and one for the second."""
    folder = make_model(tmp_path, "qwen3_moe")
    shape = read_model_shape(folder)
    gathered: list[int] = []
    all_gather = sending.dist.all_gather

    def note(parts: Any, own: torch.Tensor, **settings: Any) -> None:
        gathered.append(len(own))
        all_gather(parts, own, **settings)

    monkeypatch.setattr(sending.dist, "all_gather", note)
    round_trip(folder, device)
    assert shape.moe is not None
    assert gathered == [shape.moe.num_experts] * 2 * shape.num_layers
