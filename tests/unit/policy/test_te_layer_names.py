"""The policy's GPU layers, as Megatron builds them of the pinned Transformer Engine, against the Hugging Face layout.

`scripts/te_layers.py` wrote down what they are made of. Nothing of Transformer Engine is imported or run here, so this
shows names, shapes and switches, not that a card's products are right.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.core.model_shape import ModelShape, hf_shapes, read_model_shape
from nemo_brorl.weights.names import EMBEDDING, layer_slot, top_slot
from nemo_brorl.weights.shares import unpack
from tests.support.model_factory import make_model
from tests.support.te_families import FAMILIES

WRITTEN = json.loads((Path(__file__).parents[2] / "data" / "te_layers.json").read_text(encoding="utf-8"))
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


def hf_tensors(name: str, size: list[int], shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the Hugging Face tensors that a Megatron parameter is made of."""
    match = LAYER.fullmatch(name)
    if match:
        slot = layer_slot(match[2], int(match[1]), 0, shape)
    else:
        slot = EMBEDDING if name == "output_layer.weight" and shape.is_tied else top_slot(name)
    parts = unpack(slot.kind, [torch.empty(size, device="meta")], shape)
    return {hf_name: tuple(part.shape) for hf_name, part in zip(slot.names, parts, strict=True)}


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_of_gpu_layers_are_the_tensors_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    sizes = dict(FAMILIES[family])
    shape = read_model_shape(make_model(tmp_path, sizes.pop("architecture"), **sizes))
    found: dict[str, tuple[int, ...]] = {}
    for name, size in WRITTEN["families"][family]["parameters"].items():
        found |= hf_tensors(name, size, shape)
    assert found == hf_shapes(shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_product_inside_gpu_layers_sums_its_weight_gradient_in_fp32(family: str) -> None:
    written = WRITTEN["families"][family]
    products = {
        re.sub(r"\.weight\d*$", "", name)
        for name, size in written["parameters"].items()
        if ".linear_" in name and len(size) == 2
    }
    assert set(written["summed in buffers"]) == products


def test_recipes_are_those_of_the_pinned_transformer_engine() -> None:
    pinned = (Path(__file__).parents[3] / "requirements" / "gpu.in").read_text(encoding="utf-8")
    assert f"transformer-engine-cu13=={WRITTEN['transformer_engine']}" in pinned
    kinds: dict[str, Any] = {
        "delayed": "TEDelayedScaling",
        "tensorwise": "Float8CurrentScaling",
        "blockwise": "Float8BlockScaling",
    }
    for recipe, kind in kinds.items():
        assert WRITTEN["recipes"][f"{recipe} hybrid"] == f"{kind} HYBRID"
        assert WRITTEN["recipes"][f"{recipe} e4m3"] == f"{kind} E4M3"
