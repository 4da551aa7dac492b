"""Read the shape of a Hugging Face model from its `config.json`, and list its tensors by name. Without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.families import FAMILIES, LLAMA_NORMS, Family, NormNames, why_unknown
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.model_folder import model_object

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
    attention_factor: float = 1.0  # yarn: factor of queries and keys that rotate
    is_interleaved: bool = False  # True: the checkpoint's pairs are 2i and 2i + 1, not i and i + half of the head
    rotated_share: float = 1.0  # share of a head's dimensions, its first ones, that rotate

    def num_rotated(self, head_size: int) -> int:
        """Return how many dimensions of a head rotate."""
        return int(head_size * self.rotated_share)


@dataclass(frozen=True)
class MoeShape:
    """Shape of mixture-of-experts layers: softmax router, top-k, no shared expert."""

    num_experts: int
    experts_per_token: int
    ffn_size: int  # hidden size of one expert
    is_renormalised: bool  # True: the weights of the chosen experts sum to one
    is_moe_layer: tuple[bool, ...]  # flag of each layer [num_layers]; False: a dense layer


@dataclass(frozen=True)
class Multipliers:
    """Constants by which a model multiplies its activations."""

    embedding: float = 1.0
    residual: float = 1.0  # factor of what attention and MLP add
    attention: float | None = None  # factor of queries times keys; None: 1 / √(head size)
    logits: float = 1.0


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
    without_rope: tuple[bool, ...] = ()  # flag of each layer that does not rotate; empty: all layers rotate
    norms: NormNames = LLAMA_NORMS
    has_joint_qk_norm: bool = False  # True: one norm over the queries of all heads, and one over the keys
    has_fused_mlp: bool = False  # True: gate and up projection are one tensor
    multipliers: Multipliers = Multipliers()

    @property
    def num_norms(self) -> int:
        """Number of norms of the hidden size in a layer."""
        return sum(name != "" for name in astuple(self.norms))

    @property
    def attention_scale(self) -> float:
        """Factor of queries times keys."""
        given = self.multipliers.attention
        return self.head_size**-0.5 if given is None else given

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
        family = _family_of(config, path)
        config = family.complete(config)
        _refuse_unsupported(config, family, path)
        return _shape_from(config, family, path)
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


def model_family(folder: Path) -> str:
    """Return the model type in a folder whose shape was read, and the public models of that family."""
    name = model_object(folder / "config.json")["model_type"]
    return f"{name} ({FAMILIES[name].models})"


def _family_of(config: Mapping[str, Any], path: Path) -> Family:
    architecture = config["model_type"]
    if architecture not in FAMILIES:
        raise ModelError(f"{path}: model_type {architecture!r} cannot be trained: {why_unknown(architecture)}")
    return FAMILIES[architecture]


def _refuse_unsupported(config: Mapping[str, Any], family: Family, path: Path) -> None:
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
    unsupported = family.unsupported(config)
    if unsupported is not None:
        name, wanted = unsupported
        given, needed = json.dumps(config[name]), json.dumps(wanted)
        raise ModelError(f"{path}: {name}={given} is not supported for {config['model_type']}, only {needed}")
    rotates, num_layers = config.get("no_rope_layers"), config["num_hidden_layers"]
    if family.has_layers_without_rope and rotates is not None and len(rotates) < num_layers:
        raise ModelError(f"{path}: no_rope_layers has {len(rotates)} numbers and num_hidden_layers is {num_layers}")
    if family.has_window(config):
        raise ModelError(
            f"{path}: some layers see only the last sliding_window={config.get('sliding_window')} tokens "
            "(layer_types may say which), and the policy's attention over shared prompts sees all: use a model "
            f"with {f'{family.window_switch}=false' if family.window_switch else 'sliding_window=null'}"
        )


def _shape_from(config: Mapping[str, Any], family: Family, path: Path) -> ModelShape:
    num_heads, hidden_size = _size(config, path, "num_attention_heads"), _size(config, path, "hidden_size")
    head_size = _size(config, path, "head_dim", default=max(hidden_size // num_heads, 1))
    rope = _rope_from(config, family, path)
    num_rotated = rope.num_rotated(head_size)
    if num_rotated % 2 or not 0 < num_rotated <= head_size:
        raise ModelError(
            f"{path}: {num_rotated} of a head's {head_size} dimensions would rotate (head_dim, partial_rotary_factor), "
            "which come in pairs"
        )
    return ModelShape(
        num_layers=_size(config, path, "num_hidden_layers", MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_key_value_heads=_size(config, path, "num_key_value_heads", default=num_heads),
        head_size=head_size,
        ffn_size=_size(config, path, "intermediate_size"),
        vocab_size=_size(config, path, "vocab_size"),
        max_positions=_size(config, path, "max_position_embeddings", MAX_POSITIONS),
        norm_epsilon=_positive(config["rms_norm_eps"]),
        rope=rope,
        has_qkv_bias=family.qkv_bias(config),
        has_qk_norm=family.has_qk_norm,
        is_tied=bool(config.get("tie_word_embeddings", False)),
        moe=_moe_from(config, path) if family.has_experts else None,
        without_rope=family.layers_without_rope(config),
        norms=family.norms,
        has_joint_qk_norm=family.has_joint_qk_norm,
        has_fused_mlp=family.has_fused_mlp,
        multipliers=_multipliers_from(config) if family.has_multipliers else Multipliers(),
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


def _multipliers_from(config: Mapping[str, Any]) -> Multipliers:
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    embedding, residual, attention, logits_divisor = (_finite(config[name]) for name in names)
    return Multipliers(embedding, residual, attention, 1.0 / logits_divisor)


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


def _rope_from(config: Mapping[str, Any], family: Family, path: Path) -> Rope:
    """Return the parameters of the rotary position embedding from a model's config.

    Transformers 5 writes one table. Earlier versions kept the base `rope_theta` apart from the scaling, with `type` for
    `rope_type`.
    """
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = table.get("rope_type", table.get("type", "default"))
    base = _positive(table.get("rope_theta", config.get("rope_theta", 10000.0)))
    if kind not in ROPE_TYPES:
        raise ModelError(f"{path}: rope_type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    rotated = table.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if rotated != 1.0 and not family.has_interleaved_rope:
        raise ModelError(f"{path}: partial_rotary_factor={rotated} is not supported, only 1.0")
    rope = Rope(base, kind, is_interleaved=family.has_interleaved_rope, rotated_share=_finite(rotated))
    if kind == "default":
        return rope
    factor = _positive(table["factor"])
    if kind == "linear":
        return replace(rope, factor=factor)
    given = config.get("original_max_position_embeddings") or table.get("original_max_position_embeddings")
    original = int(given or config["max_position_embeddings"])
    if kind == "llama3":
        low, high = _finite(table["low_freq_factor"]), _finite(table["high_freq_factor"])
        return replace(rope, factor=factor, original_max_positions=original, low_freq_factor=low, high_freq_factor=high)
    return replace(
        rope,
        factor=factor,
        original_max_positions=original,
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
    width, norms = shape.hidden_size, shape.norms
    before = _norm(norms.before_attention, width) | _attention(shape)
    before |= _norm(norms.after_attention, width) | _norm(norms.before_mlp, width)
    dense = _mlp("mlp.", shape.ffn_size, width, shape.has_fused_mlp)
    sparse = _experts(shape.moe, width) if shape.moe else {}
    shapes: Shapes = {"model.embed_tokens.weight": (shape.vocab_size, width)}
    for index in range(shape.num_layers):
        is_moe = shape.moe is not None and shape.moe.is_moe_layer[index]
        layer = before | (sparse if is_moe else dense) | _norm(norms.after_mlp, width)
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
    layer: Shapes = {f"self_attn.{part}_proj.weight": (num, width) for part, num in rows.items()}
    if shape.has_qkv_bias:
        layer |= {f"self_attn.{part}_proj.bias": (num,) for part, num in rows.items()}
    if shape.has_qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (shape.head_size,) for part in "qk"}
    if shape.has_joint_qk_norm:
        layer |= {f"self_attn.{part}_norm.weight": (rows[part],) for part in "qk"}
    return layer | {"self_attn.o_proj.weight": (width, queries)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,)} if name else {}


def _mlp(prefix: str, ffn_size: int, width: int, is_fused: bool = False) -> Shapes:
    rows = {"gate_up": 2 * ffn_size} if is_fused else {"gate": ffn_size, "up": ffn_size}
    inner: Shapes = {f"{prefix}{part}_proj.weight": (num, width) for part, num in rows.items()}
    return inner | {f"{prefix}down_proj.weight": (width, ffn_size)}


def _experts(moe: MoeShape, width: int) -> Shapes:
    layer: Shapes = {"mlp.gate.weight": (moe.num_experts, width)}
    for expert in range(moe.num_experts):
        layer |= _mlp(f"mlp.experts.{expert}.", moe.ffn_size, width)
    return layer
