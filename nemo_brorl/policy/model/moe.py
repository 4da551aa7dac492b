"""Configure mixture-of-experts layers with Megatron, and choose which of their parameters are trained where."""

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
    """Megatron's router with the sampler's logits and a balancing loss that does not depend on the parallel layout.

    transformers and vLLM multiply in the format of the weights and then take the softmax in float32. Logits of bf16
    weights with another rounding would send tokens to other experts where two are close: a step is 0.03 between 4 and
    8.

    The loss of one rank is its part of a sum over `reduce_group`. Megatron 0.16.1 multiplies it by the tokens of this
    rank alone, while gradients are later divided by all tokens. So sequence parallelism over two ranks would halve it.
    """

    def gating(self, input: Tensor) -> Tensor:
        """Return the router's logits [..., experts] in float32 for hidden states [..., h]."""
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
        """Return `activation` [tokens of this rank, experts] unchanged, with the balancing loss in its gradient."""
        num_tokens = activation.shape[0] * reduce_group.size()
        return super().attach_and_log_load_balancing_loss(
            activation, aux_loss_coeff, aux_loss, aux_loss_name, reduce_group, reduce_group_has_dp, num_tokens
        )


def moe_settings(
    config: MoeConfig,
    shape: ModelShape,
    layout: ParallelLayout,
) -> dict[str, Any]:
    """Return the mixture-of-experts arguments of Megatron's TransformerConfig.

    A dense model needs only the token dispatcher's name.

    transformers and vLLM take the softmax over all experts, then the top k. If the model says so, they then scale the k
    probabilities to sum to one. That equals Megatron's softmax over the chosen experts alone. Otherwise it equals
    Megatron's softmax over all experts, whose top k sum to less than one.
    """
    # variable_seq_lengths needs it even in a dense model.
    settings: dict[str, Any] = {"moe_token_dispatcher_type": "alltoall"}
    moe = shape.moe
    if moe is None:
        return settings
    has_aux_loss = config.aux_loss_coefficient > 0
    layer_frequency: int | list[int] = [int(is_moe) for is_moe in moe.is_moe_layer]
    if all(moe.is_moe_layer):
        # An integer says that all layers are alike. Checkpoints then store them as one stacked tensor.
        layer_frequency = 1
    return settings | {
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        "num_moe_experts": moe.num_experts,
        "moe_ffn_hidden_size": moe.ffn_size,
        "moe_layer_freq": layer_frequency,
        "moe_router_topk": moe.experts_per_token,
        "moe_router_pre_softmax": not moe.is_renormalised,
        "moe_router_dtype": "fp32",  # format of probabilities; `BalancedRouter` computes the logits
        "moe_router_load_balancing_type": "aux_loss" if has_aux_loss else "none",
        "moe_aux_loss_coeff": config.aux_loss_coefficient,
        "moe_grouped_gemm": layout.on_gpu,
        "moe_permute_fusion": config.fused_permutation,
    }


def prepare_experts(config: MoeConfig, models: Sequence[torch.nn.Module]) -> None:
    """Give experts gradient buffers of their own, freeze routers if configured, and make token dispatchers free memory.

    Call it before gradient buffers are made. Megatron gives experts their own buffers and optimizer only with expert
    parallelism. Here they always have them, so that a checkpoint of one parallel layout has the parts that another
    layout needs. A frozen router is still saved and exported.
    """
    for model in models:
        for module in model.modules():
            if isinstance(module, MoELayer):
                _forget_rows(module.token_dispatcher)
        for name, param in model.named_parameters():
            if ".mlp.experts." in name:
                # In Megatron this means: do not reduce over the ranks of dense parameters.
                param.allreduce = False
            elif name.endswith(".mlp.router.weight"):
                param.requires_grad_(not config.freeze_router)


def _forget_rows(dispatcher: Any) -> None:
    """Make an MoE layer's token dispatcher drop all data of a packed row once the layer's output is complete.

    Megatron's dispatcher keeps the routing probabilities until the next row, and with them their autograd graph. For a
    layer that was recomputed in a backward pass, that keeps the layer's input and the input's gradient.
    """
    combine = dispatcher.combine_postprocess

    def combine_and_forget(tokens: Tensor) -> Tensor:
        output: Tensor = combine(tokens)
        dispatcher.probs = None
        dispatcher.routing_map = None
        dispatcher.reversed_local_input_permutation_mapping = None
        return output

    dispatcher.combine_postprocess = combine_and_forget
