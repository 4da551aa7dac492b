"""Read the shape of a Hugging Face model from its `config.json`, and list its tensors by name. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.model_folder import model_object

ARCHITECTURES = ("qwen2", "qwen3", "qwen3_moe", "llama")  # values of `model_type` that the policy can train
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
QUANTISED = ("quantization_config", "compression_config", "quantization")  # entries of quantised checkpoints
MAX_LAYERS = 1000
MAX_EXPERTS = 1024
MAX_POSITIONS = 1 << 27
MAX_SIZE = 1 << 20  # largest other size
Shapes = dict[str, tuple[int, ...]]  # maps a tensor's name to its size


@dataclass(frozen=True)
class Rope:
    """Parameters of rotary position embeddings (arXiv 2104.09864) and of their length extension.

    `policy/model/attention.py` computes the angles.
    """

    base: float
    kind: str = "default"  # one of ROPE_TYPES
    factor: float = 1.0  # ratio of the sequence length to that of pre-training
    original_max_positions: int = 0  # llama3, yarn: number of positions in pre-training
    low_freq_factor: float = 1.0  # llama3: wavelengths above original_max_positions / this are divided by `factor`
    high_freq_factor: float = 4.0  # llama3: wavelengths below original_max_positions / this are kept
    beta_fast: float = 32.0  # yarn: dimensions with more rotations than this in pre-training are kept
    beta_slow: float = 1.0  # yarn: dimensions with fewer rotations than this are divided by `factor`
    is_truncated: bool = True  # yarn: the bounds between the two kinds are whole dimensions
    attention_factor: float = 1.0  # yarn: factor of queries and keys


@dataclass(frozen=True)
class MoeShape:
    """Shape of mixture-of-experts layers: softmax router, top-k, no shared expert."""

    num_experts: int
    experts_per_token: int
    ffn_size: int  # hidden size of one expert
    is_renormalised: bool  # True: the weights of the chosen experts sum to one
    is_moe_layer: tuple[bool, ...]  # flag of each layer [num_layers]; False: a dense layer


@dataclass(frozen=True)
class ModelShape:
    """Shape of a decoder with rotary positions, RMSNorm, grouped-query attention and gated SiLU MLPs."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_size: int
    ffn_size: int  # hidden size of the MLP in dense layers
    vocab_size: int
    max_positions: int
    norm_epsilon: float
    rope: Rope
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool = False  # True: the output layer is the embedding
    moe: MoeShape | None = None

    def padded_vocab_size(self, tensor_parallel: int) -> int:
        """Return the rows of the embedding: the vocabulary, rounded up to a multiple of the tensor-parallel size."""
        return -(-self.vocab_size // tensor_parallel) * tensor_parallel


def read_model_shape(folder: Path) -> ModelShape:
    """Return the shape of the model in a folder. Raises ModelError when it is missing, unreadable or not supported."""
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} has no config.json: {_what_instead(folder)}")
    config = model_object(path)
    try:
        _refuse_unsupported(config, path)
        return _shape_from(config, path)
    except KeyError as error:
        raise ModelError(f"{path} has no {error}: policy.model must be a decoder such as Qwen2 or Llama") from error
    except MALFORMED as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def _what_instead(folder: Path) -> str:
    """Return what to set, or to do, for a folder without config.json."""
    if (folder / "adapter_config.json").is_file():
        return "it holds an adapter (LoRA). Merge it into its model with peft's merge_and_unload, and save that"
    inside = sorted([*folder.glob("*/config.json"), *folder.glob("*/*/config.json")])
    if inside:
        return f"one is below it. Set policy.model={inside[-1].parent}"
    return "policy.model must be a Hugging Face model folder"


def _refuse_unsupported(config: Mapping[str, Any], path: Path) -> None:
    architecture = config["model_type"]
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"{path}: model_type {architecture!r} cannot be trained; supported are {', '.join(ARCHITECTURES)}"
        )
    kinds = [str(kind) for kind in config.get("architectures") or ()]
    if kinds and not any(kind.endswith("ForCausalLM") for kind in kinds):
        raise ModelError(f"{path}: the weights are of a {kinds[0]}, which writes no text: use one of a …ForCausalLM")
    for name in QUANTISED:
        if config.get(name):
            details = config[name] if isinstance(config[name], dict) else {}
            method = details.get("quant_method") or name
            raise ModelError(
                f"{path}: policy.model is quantised ({method}, {name}): training needs bf16 or fp32. Set "
                "policy.model to the model that it was made from, or save it dequantised, without this entry"
            )
    for name, wanted in (("mlp_bias", False), ("hidden_act", "silu"), ("partial_rotary_factor", 1.0)):
        if config.get(name, wanted) != wanted:
            raise ModelError(f"{path}: {name}={config[name]!r} is not supported, only {wanted!r}")
    if architecture != "qwen2" and config.get("attention_bias", False):
        raise ModelError(f"{path}: attention_bias=true is not supported for {architecture}")
    if _has_sliding_window(config):
        raise ModelError(
            f"{path}: some layers see only the last sliding_window={config.get('sliding_window')} tokens "
            "(use_sliding_window, layer_types), and the policy's attention over shared prompts sees all: use a model "
            "with use_sliding_window=false"
        )


def _has_sliding_window(config: Mapping[str, Any]) -> bool:
    """Return whether sliding-window attention is active; Qwen2 lists a window and which layers use it."""
    if "sliding_attention" in (config.get("layer_types") or ()):
        return True
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return False
    first = (
        config.get("max_window_layers", 0) if config["model_type"] != "qwen3_moe" else 0
    )  # qwen3_moe: all layers or none
    return bool(first < config["num_hidden_layers"])


def _shape_from(config: Mapping[str, Any], path: Path) -> ModelShape:
    architecture, num_heads = config["model_type"], _size(config, path, "num_attention_heads")
    hidden_size = _size(config, path, "hidden_size")
    return ModelShape(
        num_layers=_size(config, path, "num_hidden_layers", MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_key_value_heads=_size(config, path, "num_key_value_heads", default=num_heads),
        head_size=_size(config, path, "head_dim", default=max(hidden_size // num_heads, 1)),
        ffn_size=_size(config, path, "intermediate_size"),
        vocab_size=_size(config, path, "vocab_size"),
        max_positions=_size(config, path, "max_position_embeddings", MAX_POSITIONS),
        norm_epsilon=_positive(config["rms_norm_eps"]),
        rope=_rope_from(config, path),
        has_qkv_bias=architecture == "qwen2",
        has_qk_norm=architecture in ("qwen3", "qwen3_moe"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        moe=_moe_from(config, path) if architecture == "qwen3_moe" else None,
    )


def _size(
    config: Mapping[str, Any],
    path: Path,
    name: str,
    most: int = MAX_SIZE,
    default: int | None = None,
) -> int:
    """Return a size in a model's config, `default` where it is missing or null. Raises ModelError and KeyError."""
    value = config[name] if default is None else config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ModelError(f"{path}: {name}={value!r:.40} is no whole number from 1 to {most:,}")
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r:.40} is no finite number")
    return number


def _positive(value: Any) -> float:
    number = _finite(value)
    if number <= 0:
        raise ValueError(f"{value!r:.40} is not above 0")
    return number


def _moe_from(config: Mapping[str, Any], path: Path) -> MoeShape | None:
    """Return the mixture-of-experts shape, or None when every layer is dense.

    Layers are chosen as in transformers' Qwen3MoeDecoderLayer.
    """
    experts = "num_local_experts" if "num_local_experts" in config else "num_experts"
    num_experts = _size(config, path, experts, MAX_EXPERTS) if config[experts] else 0
    dense, step = config.get("mlp_only_layers") or (), _size(config, path, "decoder_sparse_step", default=1)
    is_moe_layer = tuple(
        num_experts > 0 and layer not in dense and (layer + 1) % step == 0
        for layer in range(config["num_hidden_layers"])
    )
    if not any(is_moe_layer):
        return None
    chosen, is_renormalised = _size(config, path, "num_experts_per_tok"), bool(config.get("norm_topk_prob", False))
    if chosen == 1 and is_renormalised:
        raise ModelError(
            f"{path}: num_experts_per_tok=1 with norm_topk_prob=true gives the router no gradient and is not supported"
        )
    if not 1 <= chosen <= num_experts:
        raise ModelError(f"{path}: num_experts_per_tok={chosen} must be from 1 to the number of experts, {num_experts}")
    return MoeShape(num_experts, chosen, _size(config, path, "moe_intermediate_size"), is_renormalised, is_moe_layer)


def _rope_from(config: Mapping[str, Any], path: Path) -> Rope:
    """Return the parameters of the rotary position embedding from a model's config.

    Transformers 5 writes one table. Earlier versions kept the base `rope_theta` apart from the scaling, with `type` for
    `rope_type`.
    """
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = table.get("rope_type", table.get("type", "default"))
    base = _positive(table.get("rope_theta", config.get("rope_theta", 10000.0)))
    if kind not in ROPE_TYPES:
        raise ModelError(f"{path}: rope_type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    if table.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{path}: partial_rotary_factor={table['partial_rotary_factor']} is not supported, only 1.0")
    if kind == "default":
        return Rope(base)
    factor = _finite(table["factor"])
    if kind == "linear":
        return Rope(base, kind, factor)
    given = config.get("original_max_position_embeddings") or table.get("original_max_position_embeddings")
    original = int(given or config["max_position_embeddings"])
    if kind == "llama3":
        low, high = _finite(table["low_freq_factor"]), _finite(table["high_freq_factor"])
        return Rope(base, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
    return Rope(
        base,
        kind,
        factor,
        original,
        beta_fast=_finite(table.get("beta_fast") or 32),
        beta_slow=_finite(table.get("beta_slow") or 1),
        is_truncated=bool(table.get("truncate", True)),
        attention_factor=_yarn_attention_factor(table, factor),
    )


def _yarn_attention_factor(table: Mapping[str, Any], factor: float) -> float:
    """Return YaRN's attention factor (arXiv 2309.00071, equation 22).

    Where a model's config gives both mscale weights, the result is the ratio of two such factors, as DeepSeek defines
    it.
    """
    if table.get("attention_factor") is not None:
        return _finite(table["attention_factor"])

    def weighted(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if table.get("mscale") and table.get("mscale_all_dim"):
        return weighted(table["mscale"]) / weighted(table["mscale_all_dim"])
    return weighted(1.0)


def hf_shapes(shape: ModelShape) -> Shapes:
    """Return the name and size of every tensor in a Hugging Face checkpoint of this model.

    The order is that in which a weight sync sends the tensors.
    """
    width = shape.hidden_size
    attention, norms = _attention(shape), {"post_attention_layernorm.weight": (width,)}
    dense = _mlp("mlp.", shape.ffn_size, width)
    sparse = _experts(shape.moe, width) if shape.moe else {}
    shapes: Shapes = {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for index in range(shape.num_layers):
        is_moe = shape.moe is not None and shape.moe.is_moe_layer[index]
        layer = attention | norms | (sparse if is_moe else dense)
        shapes |= {f"model.layers.{index}.{name}": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (width,)
    return shapes if shape.is_tied else shapes | {"lm_head.weight": (shape.vocab_size, width)}


def num_parameters(shape: ModelShape) -> int:
    """Return the number of parameters of the whole model, norms and biases included; a tied embedding counts once."""
    return sum(math.prod(size) for size in hf_shapes(shape).values())


def _attention(shape: ModelShape) -> Shapes:
    width, queries = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    rows = {"q": queries, "k": groups, "v": groups}
    layer: Shapes = {"input_layernorm.weight": (width,)}
    layer |= {f"self_attn.{part}_proj.weight": (num, width) for part, num in rows.items()}
    if shape.has_qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (num,) for part, num in rows.items()}
    if shape.has_qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (shape.head_size,) for part in "qk"}
    return layer | {"self_attn.o_proj.weight": (width, queries)}


def _mlp(prefix: str, ffn_size: int, width: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (ffn_size, width),
        f"{prefix}up_proj.weight": (ffn_size, width),
        f"{prefix}down_proj.weight": (width, ffn_size),
    }


def _experts(moe: MoeShape, width: int) -> Shapes:
    layer: Shapes = {"mlp.gate.weight": (moe.num_experts, width)}
    for expert in range(moe.num_experts):
        layer |= _mlp(f"mlp.experts.{expert}.", moe.ffn_size, width)
    return layer
