"""Mixture-of-experts layers: Megatron's settings for them, and what of them is trained where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nemo_brorl.config.model_shape import ModelShape
from nemo_brorl.config.schema import MoeConfig
from nemo_brorl.policy.layout import ParallelLayout


def moe_settings(config: MoeConfig, shape: ModelShape, layout: ParallelLayout) -> dict[str, Any]:
    """Keyword arguments for Megatron's TransformerConfig; a dense model needs the dispatcher's name only.

    Transformers and vLLM take the softmax over all experts, then the top k, then make those sum to one if the model says so.
    Megatron's softmax over the chosen ones alone is the same as that; its softmax over all leaves the sum below one.
    """
    settings: dict[str, Any] = {"moe_token_dispatcher_type": "alltoall"}  # variable_seq_lengths asks for it even in a dense model
    moe = shape.moe
    if moe is None:
        return settings
    has_aux_loss = config.aux_loss_coefficient > 0
    return settings | {
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "num_moe_experts": moe.num_experts,
        "moe_ffn_hidden_size": moe.ffn_size,
        # An integer says that all layers are alike, which makes checkpoints of them one stacked tensor.
        "moe_layer_freq": 1 if all(moe.is_moe_layer) else [int(is_moe) for is_moe in moe.is_moe_layer],
        "moe_router_topk": moe.experts_per_token,
        "moe_router_pre_softmax": not moe.is_renormalised,
        "moe_router_dtype": "fp32",  # choosing between close experts in bf16 would differ from the sampler's choice
        "moe_router_load_balancing_type": "aux_loss" if has_aux_loss else "none",
        "moe_aux_loss_coeff": config.aux_loss_coefficient,
        "moe_grouped_gemm": layout.on_gpu,
    }


def prepare_experts(config: MoeConfig, models: Sequence[torch.nn.Module]) -> None:
    """Set which buffers the gradients of experts and routers go to. Call it before gradient buffers are made.

    Megatron gives experts buffers and an optimizer of their own only where expert parallelism is on. With them always, the
    checkpoint of one layout has the parts that another one looks for. A frozen router is saved and exported all the same.
    """
    for model in models:
        for name, param in model.named_parameters():
            if ".mlp.experts." in name:
                param.allreduce = False  # Megatron's word for: not over the ranks that dense parameters are reduced over
            elif name.endswith(".mlp.router.weight"):
                param.requires_grad_(not config.freeze_router)
