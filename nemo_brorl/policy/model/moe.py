"""Mixture-of-experts layers: Megatron's settings for them, and what of them is trained where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.policy import MoeConfig
from nemo_brorl.core.model_shape import ModelShape


class BalancedRouter(TopKRouter):
    """Megatron's router, but its logits are those of the sampler, and its balancing loss weighs the same however its
    tokens are spread over ranks.

    transformers and vLLM multiply in the format of the weights and then take the softmax in float32. Logits of bf16
    weights rounded otherwise would send tokens to other experts where two are close: a step is 0.03 between 4 and 8.

    The loss of one rank is its part of a sum over `reduce_group`. Megatron 0.16.1 multiplies it by the tokens of the
    rank alone where gradients are later divided by all tokens, so sequence parallelism over two ranks would halve it.
    """

    def gating(self, input: Tensor) -> Tensor:
        """Logits [..., experts] float32 of hidden states [..., h]."""
        return F.linear(input, self.weight, self.bias).float()

    def attach_and_log_load_balancing_loss(
        self,
        activation: Tensor,
        aux_loss_coeff: float,
        aux_loss: Tensor,
        aux_loss_name: str,
        reduce_group: dist.ProcessGroup,
        reduce_group_has_dp: bool = False,
        valid_token_count: int | Tensor | None = None,
    ) -> Tensor:
        """`activation` [tokens of this rank, experts], unchanged; its gradient carries the loss along."""
        num_tokens = activation.shape[0] * reduce_group.size()
        return super().attach_and_log_load_balancing_loss(
            activation, aux_loss_coeff, aux_loss, aux_loss_name, reduce_group, reduce_group_has_dp, num_tokens
        )


def moe_settings(
    config: MoeConfig,
    shape: ModelShape,
    layout: ParallelLayout,
) -> dict[str, Any]:
    """Keyword arguments for Megatron's TransformerConfig; a dense model needs the dispatcher's name only.

    Transformers and vLLM take the softmax over all experts, then the top k, then make those sum to one if the model
    says so. Megatron's softmax over the chosen ones alone is the same as that; its softmax over all leaves the sum
    below one.
    """
    # variable_seq_lengths asks for it even in a dense model
    settings: dict[str, Any] = {"moe_token_dispatcher_type": "alltoall"}
    moe = shape.moe
    if moe is None:
        return settings
    has_aux_loss = config.aux_loss_coefficient > 0
    layer_frequency: int | list[int] = [int(is_moe) for is_moe in moe.is_moe_layer]
    if all(moe.is_moe_layer):
        layer_frequency = 1  # an integer says that all layers are alike: checkpoints hold them as one stacked tensor
    return settings | {
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "num_moe_experts": moe.num_experts,
        "moe_ffn_hidden_size": moe.ffn_size,
        "moe_layer_freq": layer_frequency,
        "moe_router_topk": moe.experts_per_token,
        "moe_router_pre_softmax": not moe.is_renormalised,
        "moe_router_dtype": "fp32",  # of probabilities; logits are `BalancedRouter`'s
        "moe_router_load_balancing_type": "aux_loss" if has_aux_loss else "none",
        "moe_aux_loss_coeff": config.aux_loss_coefficient,
        "moe_grouped_gemm": layout.on_gpu,
        "moe_permute_fusion": config.fused_permutation,
    }


def prepare_experts(config: MoeConfig, models: Sequence[torch.nn.Module]) -> None:
    """Set which buffers the gradients of experts and routers go to, and what is kept of a row. Call it before gradient
    buffers are made.

    Megatron gives experts buffers and an optimizer of their own only where expert parallelism is on. With them always,
    the checkpoint of one layout has the parts that another one looks for. A frozen router is saved and exported all the
    same.
    """
    for model in models:
        for module in model.modules():
            if isinstance(module, MoELayer):
                _forget_rows(module.token_dispatcher)
        for name, param in model.named_parameters():
            if ".mlp.experts." in name:
                # Megatron's word for: not over the ranks that dense parameters are reduced over
                param.allreduce = False
            elif name.endswith(".mlp.router.weight"):
                param.requires_grad_(not config.freeze_router)


def _forget_rows(dispatcher: Any) -> None:
    """Have a layer's dispatcher keep nothing of a row that it has put together again. Megatron's keeps the
    probabilities until the next row, and through them the graph that they come from: of a layer that was recomputed in
    a backward pass, its input and the gradient of that."""
    combine = dispatcher.combine_postprocess

    def combine_and_forget(tokens: Tensor) -> Tensor:
        output: Tensor = combine(tokens)
        dispatcher.probs = None
        dispatcher.routing_map = None
        dispatcher.reversed_local_input_permutation_mapping = None
        return output

    dispatcher.combine_postprocess = combine_and_forget
