"""Costs of a model from its shape alone: parameters of a rank, bytes kept for the backward pass, operations, keys and
values.

Legend: h hidden size, a heads of d numbers, k key-value heads, f MLP size, V vocabulary, b bytes of a number.

Public models are known by name, with the shapes that their config.json files give, for plans on a machine that has not
downloaded them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.model_folder import local_model
from nemo_brorl.core.model_shape import ModelShape, MoeShape, Rope, read_model_shape

_QWEN2 = ModelShape(
    num_layers=28,
    hidden_size=1536,
    num_heads=12,
    num_key_value_heads=2,
    head_size=128,
    ffn_size=8960,
    vocab_size=151936,
    max_positions=131072,
    norm_epsilon=1e-6,
    rope=Rope(1e6),
    has_qkv_bias=True,
    is_tied=True,
)
_QWEN3 = replace(
    _QWEN2,
    max_positions=40960,
    has_qkv_bias=False,
    has_qk_norm=True,
    is_tied=False,
)
_LLAMA = replace(
    _QWEN2,
    has_qkv_bias=False,
    is_tied=False,
    norm_epsilon=1e-5,
    rope=Rope(5e5),
    vocab_size=128256,
)

_QWEN_7B = replace(
    _QWEN2,
    hidden_size=3584,
    num_heads=28,
    num_key_value_heads=4,
    ffn_size=18944,
    vocab_size=152064,
    is_tied=False,
    max_positions=131072,
)
_QWEN_14B = replace(
    _QWEN_7B,
    num_layers=48,
    hidden_size=5120,
    num_heads=40,
    num_key_value_heads=8,
    ffn_size=13824,
)
_QWEN_32B = replace(_QWEN_14B, num_layers=64, ffn_size=27648)

SHAPES = {
    "qwen2-1.5b": replace(_QWEN2),
    "qwen2.5-1.5b": replace(_QWEN2),
    "deepseek-r1-distill-qwen-1.5b": replace(_QWEN2, is_tied=False),
    "qwen2.5-0.5b": replace(
        _QWEN2,
        num_layers=24,
        hidden_size=896,
        num_heads=14,
        head_size=64,
        ffn_size=4864,
    ),
    "qwen2.5-7b": _QWEN_7B,
    "deepseek-r1-distill-qwen-7b": _QWEN_7B,
    "qwen2.5-14b": _QWEN_14B,
    "deepseek-r1-distill-qwen-14b": _QWEN_14B,
    "qwen2.5-32b": _QWEN_32B,
    "deepseek-r1-distill-qwen-32b": _QWEN_32B,
    "qwen3-8b": replace(
        _QWEN3,
        num_layers=36,
        hidden_size=4096,
        num_heads=32,
        num_key_value_heads=8,
        ffn_size=12288,
    ),
    "qwen3-32b": replace(
        _QWEN3,
        num_layers=64,
        hidden_size=5120,
        num_heads=64,
        num_key_value_heads=8,
        ffn_size=25600,
    ),
    "qwen3-30b-a3b": replace(
        _QWEN3,
        num_layers=48,
        hidden_size=2048,
        num_heads=32,
        num_key_value_heads=4,
        ffn_size=6144,
        moe=MoeShape(
            num_experts=128, experts_per_token=8, ffn_size=768, is_renormalised=True, is_moe_layer=(True,) * 48
        ),
    ),
    "llama-3.1-8b": replace(
        _LLAMA, num_layers=32, hidden_size=4096, num_heads=32, num_key_value_heads=8, ffn_size=14336
    ),
}

_WITHOUT = ("-instruct", "-base", "-math")  # variants of one shape


def find_shape(config: BroRLConfig) -> ModelShape:
    """Shape of `policy.model`: a known name with or without its owner, a folder, or what the hub's cache holds. Raises
    ModelError."""
    model = config.policy.model
    known = SHAPES.get(_plain(model))
    if known is not None:
        return known
    folder = local_model(model) or _cached(model)
    if folder is None:
        raise ModelError(
            f"policy.model={model} is not downloaded and its shape is not known here: write a folder with its "
            f"config.json, or one of {', '.join(sorted(SHAPES))}"
        )
    return read_model_shape(folder)


def _plain(model: str) -> str:
    name = model.rpartition("/")[2].lower()
    for suffix in _WITHOUT:
        name = name.replace(suffix, "")
    return name


def _cached(model: str) -> Path | None:
    """The newest snapshot of a model in the Hugging Face hub's cache."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    found = list(hub.glob(f"models--{model.replace('/', '--')}/snapshots/*/config.json"))
    if not found:
        return None
    return max(found, key=lambda path: path.stat().st_mtime).parent


@dataclass(frozen=True)
class Cut:
    """How the policy is cut over ranks, and what it keeps."""

    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    has_sequence_parallel: bool = False

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert: the tensor-parallel ones where experts are not spread."""
        return self.tensor if self.expert == 1 else 1

    @property
    def sequence_ranks(self) -> int:
        """Ranks that share the tokens of what lies between products."""
        return self.tensor if self.has_sequence_parallel else 1

    @property
    def replicas(self) -> int:
        """Ranks over which the optimizer's state of dense parameters is spread."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """The same, of experts' parameters."""
        return max(1, self.tensor * self.context * self.data // (self.expert * self.expert_tensor))


@dataclass(frozen=True)
class Parameters:
    """Number of parameters of one rank."""

    dense: int  # replicated over Cut.replicas
    experts: int  # replicated over Cut.expert_replicas
    linear: int  # of both, those of matrix products inside layers, which FP8 concerns

    @property
    def total(self) -> int:
        return self.dense + self.experts


def attention_size(shape: ModelShape) -> int:
    """Parameters of the four projections of a layer, without biases: (2 a d + 2 k d) h."""
    return 2 * shape.hidden_size * (shape.num_heads + shape.num_key_value_heads) * shape.head_size


@lru_cache(maxsize=1024)
def rank_parameters(shape: ModelShape, cut: Cut, stage: int) -> Parameters:
    """Parameters of a rank of a pipeline stage; with interleaved stages, of all its pieces."""
    width, tensor = shape.hidden_size, cut.tensor
    piece_size = shape.num_layers // (cut.pipeline * cut.virtual)
    layers: list[int] = []
    for piece in range(cut.virtual):
        first = (piece * cut.pipeline + stage) * piece_size
        layers += range(first, first + piece_size)
    bias = 0
    if shape.has_qkv_bias:
        bias = (shape.num_heads + 2 * shape.num_key_value_heads) * shape.head_size
    norms = 2 * width
    if shape.has_qk_norm:
        norms += 2 * shape.head_size
    attention = attention_size(shape) // tensor
    dense = experts = linear = 0
    for layer in layers:
        dense += attention + bias // tensor + norms
        linear += attention
        if shape.moe is not None and shape.moe.is_moe_layer[layer]:
            dense += shape.moe.num_experts * width
            mine = 3 * shape.moe.ffn_size * width * shape.moe.num_experts // (cut.expert * cut.expert_tensor)
            experts += mine
            linear += mine
        else:
            mlp = 3 * shape.ffn_size * width // tensor
            dense += mlp
            linear += mlp
    vocabulary = shape.padded_vocab_size(tensor) // tensor * width
    is_first = stage == 0
    if is_first:
        dense += vocabulary
    if stage == cut.pipeline - 1:
        dense += width
        if not (shape.is_tied and is_first):
            dense += vocabulary
    return Parameters(dense, experts, linear)


@lru_cache(maxsize=64)
def active_parameters(shape: ModelShape) -> int:
    """Parameters of the matrix products that one token takes part in, the output layer included, the embedding not."""
    total = shape.vocab_size * shape.hidden_size
    for layer in range(shape.num_layers):
        total += attention_size(shape)
        if shape.moe is not None and shape.moe.is_moe_layer[layer]:
            experts = 3 * shape.moe.experts_per_token * shape.moe.ffn_size
            total += (experts + shape.moe.num_experts) * shape.hidden_size
        else:
            total += 3 * shape.ffn_size * shape.hidden_size
    return total


def forward_flops(shape: ModelShape, context: float) -> float:
    """Operations of one token that attends to `context` tokens: 2 per parameter, and 4 a d per layer and token attended
    to."""
    attention = 4.0 * shape.num_layers * shape.num_heads * shape.head_size * context
    return 2.0 * active_parameters(shape) + attention


def key_value_bytes(shape: ModelShape, number_bytes: int) -> int:
    """Bytes of keys and values of one token in all layers: 2 layers k d b."""
    return 2 * shape.num_layers * shape.num_key_value_heads * shape.head_size * number_bytes


@dataclass(frozen=True)
class LayerKind:
    """Kind of layer, by what of its forward pass is kept."""

    is_gated: bool = True  # SwiGLU keeps gate and up; GELU one input of f numbers
    is_flash: bool = True  # no matrix of attention probabilities is kept
    has_dropout: bool = False  # three masks of a byte per number
    keeps_rotated: bool = True  # rotated queries and keys beside what they were made of


# The layer of Korthikanti et al. (arXiv 2205.05198, section 4.1): s b h (34 + 5 a s / h) bytes with h = a d = k d, f =
# 4 h, b = 2.
GPT = LayerKind(is_gated=False, is_flash=False, has_dropout=True, keeps_rotated=False)


def layer_activations(
    shape: ModelShape,
    number_bytes: int,
    cut: Cut,
    kind: LayerKind = LayerKind(),
    is_moe: bool = False,
    sequence: int = 0,
) -> float:
    """Bytes per token that one layer keeps for its backward pass on one rank. `sequence`: tokens attended to, where not
    flash.

    Inputs and outputs of both norms (4 h), queries, keys, values, the attention's output, the MLP's inside;
    tensor-parallel ranks share all but the first, which is cut over them by sequence parallelism only.
    """
    width, queries = shape.hidden_size, shape.num_heads * shape.head_size
    groups = shape.num_key_value_heads * shape.head_size
    whole = 4.0 * width * number_bytes
    if kind.has_dropout:
        whole += 2 * width
    split = (2.0 * queries + 2.0 * groups) * number_bytes
    if kind.keeps_rotated:
        split += (queries + groups) * number_bytes
    if kind.is_flash:
        split += 4.0 * shape.num_heads  # the log-sum-exps
    else:
        split += 5.0 * shape.num_heads * sequence
    if cut.has_sequence_parallel:
        whole /= cut.tensor
    return whole + split / cut.tensor + mlp_activations(shape, number_bytes, cut, kind, is_moe)


def mlp_activations(
    shape: ModelShape,
    number_bytes: int,
    cut: Cut,
    kind: LayerKind = LayerKind(),
    is_moe: bool = False,
) -> float:
    """The part of `layer_activations` that is inside the MLP, or inside the experts: tokens in the order of experts,
    and the router's probabilities in fp32."""
    numbers = 3.0 if kind.is_gated else 2.0
    if shape.moe is None or not is_moe:
        return numbers * number_bytes * shape.ffn_size / cut.tensor
    sent = 1.0 * shape.hidden_size * number_bytes
    hidden = numbers * number_bytes * shape.moe.ffn_size / cut.expert_tensor
    chosen = shape.moe.experts_per_token * (sent + hidden)
    return (chosen + 8.0 * shape.moe.num_experts) / cut.sequence_ranks


def layer_scratch(
    shape: ModelShape,
    number_bytes: int,
    cut: Cut,
    is_moe: bool = False,
) -> float:
    """Bytes per token that a layer holds for a moment beside what `layer_activations` has: the gradient of its output
    (h) and, at SwiGLU, of SwiGLU's input (2 f; that of its output takes the place of what the next product had kept).

    A mixture needs most in its forward pass (h twice): tokens as they were sent and as they came, and the experts'
    answers as they are and put in order to be sent back, of all chosen experts.
    """
    outside = number_bytes * shape.hidden_size / cut.sequence_ranks
    if shape.moe is None or not is_moe:
        return outside + 2.0 * number_bytes * shape.ffn_size / cut.tensor
    return outside * (2.0 + 4.0 * shape.moe.experts_per_token)
