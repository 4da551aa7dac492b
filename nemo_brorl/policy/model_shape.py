"""A Hugging Face `config.json` read into the few numbers the policy builds its model from. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_brorl.errors import ConfigError, ModelError
from nemo_brorl.policy.layout import ParallelLayout

ARCHITECTURES = ("qwen2", "qwen3", "llama")  # `model_type` values the policy can train


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder with rotary positions, RMSNorm, grouped-query attention and a gated SiLU MLP."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    rope_base: float
    norm_epsilon: float
    has_qkv_bias: bool
    has_qk_norm: bool
    is_tied: bool  # the output layer is the embedding

    def padded_vocab_size(self, tensor_parallel: int) -> int:
        """Rows of the embedding, rounded up so that every tensor-parallel rank holds the same number."""
        return -(-self.vocab_size // tensor_parallel) * tensor_parallel


def read_model_shape(folder: Path) -> ModelShape:
    """The shape of the model in a folder. Raises ModelError when it is missing, unreadable or not supported."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error.strerror}): policy.model must be a Hugging Face model folder") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    _refuse_unsupported(config, path)
    try:
        return _shape_from(config)
    except KeyError as error:
        raise ModelError(f"{path} has no {error.args[0]!r}") from error


def _refuse_unsupported(config: Mapping[str, Any], path: Path) -> None:
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"{path}: model_type {architecture!r} cannot be trained; supported are {', '.join(ARCHITECTURES)}")
    rope = _rope(config)
    if rope.get("rope_type", "default") != "default":
        raise ModelError(f"{path}: rope_type {rope['rope_type']!r} is not supported, only plain rotary positions")
    for name, wanted in (("use_sliding_window", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if config.get(name, wanted) != wanted:
            raise ModelError(f"{path}: {name}={config[name]!r} is not supported")
    if architecture != "qwen2" and config.get("attention_bias", False):
        raise ModelError(f"{path}: attention_bias=true is not supported for {architecture}")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Transformers 5 writes one table; before, the base stood alone and scaling beside it (with `type` for `rope_type`)."""
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "type" in table:
        table.setdefault("rope_type", table["type"])
    table.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return table


def _shape_from(config: Mapping[str, Any]) -> ModelShape:
    num_heads = config["num_attention_heads"]
    return ModelShape(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_heads=num_heads,
        num_key_value_heads=config.get("num_key_value_heads") or num_heads,
        head_size=config.get("head_dim") or config["hidden_size"] // num_heads,
        ffn_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        rope_base=float(_rope(config)["rope_theta"]),
        norm_epsilon=config["rms_norm_eps"],
        has_qkv_bias=config["model_type"] == "qwen2",
        has_qk_norm=config["model_type"] == "qwen3",
        is_tied=config.get("tie_word_embeddings", False),
    )


def check_fits(shape: ModelShape, layout: ParallelLayout) -> None:
    """Raises ConfigError when heads or layers cannot be cut as the layout says."""
    for name, number in (
        ("num_attention_heads", shape.num_heads),
        ("num_key_value_heads", shape.num_key_value_heads),
        ("intermediate_size", shape.ffn_size),
    ):
        if number % layout.tensor:
            raise ConfigError(
                f"policy.tensor_model_parallel_size={layout.tensor} does not divide the model's {name}={number}: write a divisor of it"
            )
    stages = layout.pipeline * (layout.virtual_pipeline or 1)
    if shape.num_layers % stages:
        raise ConfigError(
            f"the model's {shape.num_layers} layers cannot be cut into {stages} pipeline stages: "
            "change policy.pipeline_model_parallel_size or policy.virtual_pipeline_model_parallel_size"
        )
