"""Know the shapes of public models by name, for plans on a machine that has not downloaded them.

The numbers are those of the models' config.json files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ModelError
from nemo_brorl.core.families import FAMILIES
from nemo_brorl.core.model_folder import cached_model, local_model
from nemo_brorl.core.model_shape import ModelShape, MoeShape, Multipliers, Rope, read_model_shape
from nemo_brorl.core.weight_files import check_model_files, has_weights

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


def _other(sizes: tuple[int, int, int, int, int], vocab_size: int, max_positions: int, **others: Any) -> ModelShape:
    """Return a shape from layers, hidden size, heads, key-value heads and MLP size, with heads of 128."""
    names = ("num_layers", "hidden_size", "num_heads", "num_key_value_heads", "ffn_size")
    given = dict(zip(names, sizes, strict=True)) | others
    return replace(_LLAMA, vocab_size=vocab_size, max_positions=max_positions, **given)


# One size of each further family.
_OTHERS = {
    "mistral-7b-v0.3": _other((32, 4096, 32, 8, 14336), 32768, 32768, rope=Rope(1e6)),
    "seed-oss-36b": _other(
        (64, 5120, 80, 8, 27648), 155136, 524288, norm_epsilon=1e-6, rope=Rope(1e7), has_qkv_bias=True
    ),
    "smollm3-3b": _other(
        (36, 2048, 16, 4, 11008),
        128256,
        65536,
        norm_epsilon=1e-6,
        rope=Rope(5e6),
        is_tied=True,
        without_rope=(False, False, False, True) * 9,
    ),
    "granite-3.3-8b": _other(
        (40, 4096, 32, 8, 12800),
        49159,
        131072,
        rope=Rope(1e7),
        is_tied=True,
        multipliers=Multipliers(embedding=12.0, residual=0.22, attention=1 / 128, logits=1 / 16),
    ),
    "olmo-2-1124-7b": _other(
        (32, 4096, 32, 32, 11008),
        100352,
        4096,
        norm_epsilon=1e-6,
        norms=FAMILIES["olmo2"].norms,
        has_joint_qk_norm=True,
    ),
    "glm-4-9b-0414": _other(
        (40, 4096, 32, 2, 13696),
        151552,
        32768,
        rope=Rope(1e4, is_interleaved=True, rotated_share=0.5),
        has_qkv_bias=True,
        norms=FAMILIES["glm4"].norms,
        has_fused_mlp=True,
    ),
}

SHAPES = {
    "qwen2-1.5b": replace(_QWEN2),
    "qwen2.5-1.5b": replace(_QWEN2),
    "deepseek-r1-distill-qwen-1.5b": replace(_QWEN2, is_tied=False),
    "nemotron-research-reasoning-qwen-1.5b": replace(_QWEN2, is_tied=False),
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
    **_OTHERS,
}

_WITHOUT = ("-instruct", "-base", "-math")  # name suffixes that do not change the shape


def find_shape(config: BroRLConfig) -> ModelShape:
    """Return the shape (layers, sizes, heads) of the model that `policy.model` names.

    The name is that of a known model (with or without its owner), a folder, or a cached Hugging Face model. Raises
    ModelError when the shape cannot be found.
    """
    model = config.policy.model
    known = SHAPES.get(_plain(model))
    if known is not None:
        return known
    folder = local_model(model) or cached_model(model)
    if folder is None:
        raise ModelError(
            f"policy.model={model} is not downloaded and its shape is not known here: set a folder with its "
            f"config.json, or one of {', '.join(sorted(SHAPES))}"
        )
    shape = read_model_shape(folder)
    # A folder with nothing but a config.json is a plan for weights that come later.
    if has_weights(folder):
        check_model_files(folder)
    return shape


def _plain(model: str) -> str:
    name = model.partition("@")[0].rpartition("/")[2].lower()
    for suffix in _WITHOUT:
        name = name.replace(suffix, "")
    return name
