"""Which modules a transformer layer is built from: Transformer Engine's on GPUs, Megatron's own with our `RMSNorm` on
CPU."""

from __future__ import annotations

from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from nemo_brorl.policy.cpu.rms_norm import RMSNorm
from nemo_brorl.policy.model.attention import PackedAttention
from nemo_brorl.policy.model.moe import BalancedRouter


def layer_specs(config: TransformerConfig, on_gpu: bool, stage: int | None) -> TransformerBlockSubmodules:
    """The layers of one model chunk, with `PackedAttention` on every device."""
    if on_gpu:
        from megatron.core.extensions.transformer_engine import TENorm  # only there with Transformer Engine installed

        norm = TENorm
    else:
        norm = RMSNorm
    kinds = {is_moe: _layer_spec(config, on_gpu, is_moe) for is_moe in set(_is_moe_layer(config))}
    first = get_transformer_layer_offset(config, vp_stage=stage)
    mine = _is_moe_layer(config)[first : first + get_num_layers_to_build(config, vp_stage=stage)]
    return TransformerBlockSubmodules(layer_specs=[kinds[is_moe] for is_moe in mine], layer_norm=norm)


def _is_moe_layer(config: TransformerConfig) -> list[bool]:
    """Per layer of the whole model; `moe_layer_freq` is a list where they differ."""
    if isinstance(config.moe_layer_freq, list):
        return [bool(is_moe) for is_moe in config.moe_layer_freq]
    return [config.num_moe_experts is not None] * config.num_layers


def _layer_spec(config: TransformerConfig, on_gpu: bool, is_moe: bool) -> ModuleSpec:
    num_experts = config.num_moe_experts if is_moe else None
    if on_gpu:
        layer = get_gpt_layer_with_transformer_engine_spec(
            num_experts=num_experts, moe_grouped_gemm=config.moe_grouped_gemm, qk_layernorm=config.qk_layernorm
        )
    else:
        layer = get_gpt_layer_local_spec(
            num_experts=num_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
        )
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        if config.qk_layernorm:
            attention = layer.submodules.self_attention.submodules
            attention.q_layernorm = attention.k_layernorm = RMSNorm
    layer.submodules.self_attention.submodules.core_attention = PackedAttention
    if is_moe:
        layer.submodules.mlp.submodules.router = BalancedRouter
    return layer
