"""Hugging Face names of Megatron's parameters."""

from __future__ import annotations

import pytest

from nemo_brorl.core.model_shape import ModelShape, Rope
from nemo_brorl.weights.names import Slot, layer_slot

SHAPE = ModelShape(1, 8, 4, 2, 4, 12, 11, 64, norm_epsilon=1e-6, rope=Rope(1e4))


@pytest.mark.parametrize(
    ("suffix", "parts", "kind"),
    [
        ("mlp.experts.local_experts.3.linear_fc1.weight", ("gate_proj", "up_proj"), "gate_up"),
        ("mlp.experts.local_experts.3.linear_fc2.weight", ("down_proj",), "rows_of_input"),
        ("mlp.experts.linear_fc1.weight3", ("gate_proj", "up_proj"), "gate_up"),  # Transformer Engine's grouped product
        ("mlp.experts.linear_fc2.weight3", ("down_proj",), "rows_of_input"),
    ],
)
def test_experts_are_counted_from_the_first_of_their_rank(suffix: str, parts: tuple[str, ...], kind: str) -> None:
    names = tuple(f"model.layers.7.mlp.experts.19.{part}.weight" for part in parts)
    assert layer_slot(suffix, 7, first_expert=16, shape=SHAPE) == Slot(names, kind, is_expert=True)


def test_names_of_transformer_engine_and_of_megatron_s_own_layers_mean_the_same_tensors() -> None:
    for theirs, own in (
        ("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
        ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
    ):
        assert layer_slot(theirs, 2, 0, SHAPE) == layer_slot(own, 2, 0, SHAPE)
    assert layer_slot("mlp.router.weight", 2, 0, SHAPE) == Slot(("model.layers.2.mlp.gate.weight",), "copy")
