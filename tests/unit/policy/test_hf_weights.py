"""Hugging Face weights survive the way to Megatron and back exactly, and nothing is left over or made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_brorl.errors import ModelError
from nemo_brorl.policy.device import Device
from nemo_brorl.policy.hf_weights import HfExport, hf_shapes, load_hf, pack, unpack
from nemo_brorl.policy.layout import ParallelLayout
from nemo_brorl.policy.model import build_model
from nemo_brorl.policy.model_shape import ModelShape, read_model_shape
from tests.model_factory import make_config, make_model

MODELS: dict[str, dict[str, Any]] = {
    "qwen2 tied": {"architecture": "qwen2"},
    "qwen2": {"architecture": "qwen2", "tie_word_embeddings": False},
    "qwen3 with heads wider than its hidden size": {"architecture": "qwen3", "head_dim": 24},
    "llama": {"architecture": "llama", "tie_word_embeddings": False},
}


def round_trip(folder: Path, device: Device) -> dict[str, torch.Tensor]:
    shape = read_model_shape(folder)
    models = build_model(make_config().policy, shape, ParallelLayout(1, 1, 1))
    load_hf(models, shape, folder)
    return {name: tensor.clone() for name, tensor in HfExport(models, shape, device.torch_device).stream()}


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
def test_loading_and_exporting_changes_no_bit(settings: dict[str, Any], tmp_path: Path, device: Device) -> None:
    folder = make_model(tmp_path, **settings)
    original, exported = load_file(folder / "model.safetensors"), round_trip(folder, device)
    assert set(exported) == set(original)
    assert list(exported) == list(hf_shapes(read_model_shape(folder)))
    for name, tensor in original.items():
        assert torch.equal(exported[name], tensor), name


@pytest.mark.parametrize("kind", ["copy", "rows_of_input", "gate_up", "vocab", "qkv"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_unpacking_the_shards_of_all_ranks_undoes_packing(kind: str, ranks: int) -> None:
    shape = ModelShape(1, 8, 4, 2, 4, 12, 11, 64, 1e4, 1e-6, True, False, True)
    sizes = {"qkv": [(16, 8), (8, 8), (8, 8)], "gate_up": [(12, 8), (12, 8)], "vocab": [(11, 8)]}
    tensors = [torch.randn(size) for size in sizes.get(kind, [(8, 12)])]
    shards = [pack(kind, tensors, shape, ranks, rank) for rank in range(ranks)]
    assert len({shard.shape for shard in shards}) == 1
    for original, restored in zip(tensors, unpack(kind, shards, shape), strict=True):
        assert torch.equal(original, restored)


def test_a_query_group_is_its_queries_then_its_key_then_its_value() -> None:
    shape = ModelShape(1, 1, 4, 2, 1, 1, 1, 1, 1e4, 1e-6, True, False, True)
    query, key, value = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([10.0, 11.0]), torch.tensor([20.0, 21.0])
    assert pack("qkv", [query, key, value], shape, 2, 0).tolist() == [0, 1, 10, 20]
    assert pack("qkv", [query, key, value], shape, 2, 1).tolist() == [2, 3, 11, 21]


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
        (_drop, "missing model.layers.2.mlp.up_proj.weight; left over none"),
        (_add, "missing none; left over model.layers.0.mlp.router.weight"),
        (_resize, r"model.norm.weight has shape \(33,\), but config.json says \(32,\)"),
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
    with pytest.raises(ModelError, match="holds neither model.safetensors nor"):
        round_trip(tmp_path, device)
