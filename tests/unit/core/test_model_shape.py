"""A config.json is read as transformers reads it, in its old and its new spelling; what the policy cannot do is
refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_shape import ModelShape, Rope, read_model_shape

QWEN2: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 131,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
QWEN3_MOE = QWEN2 | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "head_dim": 32,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}


def read(folder: Path, config: dict[str, Any]) -> ModelShape:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_shape(folder)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
    ],
    ids=["transformers 5", "transformers 4", "older"],
)
def test_llama3_rope_scaling_is_read_in_every_spelling(spelling: dict[str, Any], tmp_path: Path) -> None:
    shape = read(tmp_path, QWEN2 | {"model_type": "llama"} | spelling)
    assert shape.rope == Rope(5e5, "llama3", 8.0, 256, low_freq_factor=1.0, high_freq_factor=4.0)


@pytest.mark.parametrize("factor", [0, -1, 1e999, "x", None])
def test_a_factor_of_rope_that_lengthens_nothing_is_refused(factor: object, tmp_path: Path) -> None:
    for kind in ("linear", "llama3", "yarn"):
        scaling = {**LLAMA3, "rope_type": kind, "factor": factor}
        with pytest.raises(ModelError, match="config.json cannot be read"):
            read(tmp_path, QWEN2 | {"model_type": "llama", "rope_scaling": scaling})


def test_yarn_multiplies_queries_and_keys_by_a_tenth_of_the_logarithm_of_its_factor_and_one(tmp_path: Path) -> None:
    rope = read(tmp_path, QWEN2 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).rope
    assert (rope.original_max_positions, rope.beta_fast, rope.beta_slow, rope.is_truncated) == (512, 32.0, 1.0, True)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(
    "config",
    [
        {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 0},
        {
            "use_sliding_window": True,
            "sliding_window": 128,
            "max_window_layers": 4,
        },  # from layer 4 on, and there is none
        {"use_sliding_window": True, "sliding_window": None},
        {"use_sliding_window": False, "layer_types": ["full_attention"] * 4},
    ],
)
def test_a_sliding_window_that_no_layer_uses_is_fine(config: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, QWEN2 | config).num_layers == 4


@pytest.mark.parametrize(
    "config",
    [
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3},
        {"layer_types": ["full_attention"] * 3 + ["sliding_attention"], "sliding_window": 128},
        QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 28},
    ],
)
def test_an_active_sliding_window_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="see only the last sliding_window=128 tokens"):
        read(tmp_path, QWEN2 | config)


def test_sparse_layers_are_those_that_are_not_listed_as_dense_and_that_the_step_hits(tmp_path: Path) -> None:
    moe = read(tmp_path, QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}).moe
    assert moe is not None
    assert moe.is_moe_layer == (False, False, False, True)
    assert (moe.num_experts, moe.experts_per_token, moe.ffn_size, moe.is_renormalised) == (8, 2, 24, True)


def test_transformers_5_calls_the_number_of_experts_local(tmp_path: Path) -> None:
    config = {name: value for name, value in QWEN3_MOE.items() if name != "num_experts"}
    moe = read(tmp_path, config | {"num_local_experts": 16}).moe
    assert moe is not None
    assert moe.num_experts == 16


def test_a_mixture_whose_layers_are_all_dense_is_a_dense_model(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN3_MOE | {"mlp_only_layers": [0, 1, 2, 3]}).moe is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts_per_tok": 1}, "gives the router no gradient"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 must be from 1 to the number of experts, 8"),
    ],
)
def test_a_router_that_cannot_be_trained_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, QWEN3_MOE | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, 'hidden_act="gelu" is not supported for qwen2, only "silu"'),
        (
            {"model_type": "llama", "attention_bias": True},
            "attention_bias=true is not supported for llama, only false",
        ),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported"),
        ({"mlp_bias": True}, "mlp_bias=true is not supported for qwen2, only false"),
        (
            {"model_type": "seed_oss", "attention_out_bias": True},
            "attention_out_bias=true is not supported for seed_oss, only false",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1, 0]},
            "no_rope_layers has 2 numbers and num_hidden_layers is 4",
        ),
        ({"head_dim": 15}, "15 of a head's 15 dimensions would rotate"),
        (
            {"model_type": "glm4", "head_dim": 12, "partial_rotary_factor": 0.25},
            "3 of a head's 12 dimensions would rotate",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5 is not supported"),
    ],
)
def test_a_model_that_is_refused_is_not_called_unreadable(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as refusal:
        read(tmp_path, QWEN2 | change)
    assert str(refusal.value).startswith(f"{tmp_path / 'config.json'}: {message[:8]}")


def test_a_table_that_is_none_makes_a_model_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json cannot be read: "):
        read(tmp_path, QWEN2 | {"rope_scaling": "linear"})


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": float("nan")},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 0},
        {"hidden_size": 0},
        {"hidden_size": 1e308},
        {"hidden_size": "8"},
        {"vocab_size": -1},
        {"vocab_size": None},
        {"max_position_embeddings": True},
        {"num_experts": 10**9},
        {"decoder_sparse_step": 0},
        {"rope_theta": 1e400},
        {"rope_scaling": [1]},
        {"rope_scaling": {"rope_type": "linear", "factor": "a"}},
        {"rms_norm_eps": float("inf")},
    ],
)
def test_sizes_that_no_model_has_are_refused(sizes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        read(tmp_path, QWEN3_MOE | sizes)
