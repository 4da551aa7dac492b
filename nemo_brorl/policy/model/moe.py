"""Mixture-of-experts layers: Megatron's settings for them, and what of them is trained where."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from nemo_brorl.config.policy import MoeConfig
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.policy.process.layout import ParallelLayout


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


class RouterReplay:
    """Sends the tokens of a row to the experts that its engine chose in a layer, where they are known (rollout routing
    replay, arXiv 2510.11370). Megatron's router asks it in place of a top-k (`topk_routing_with_score_function`).

    Weights of the chosen experts are of the router's own scores, so that it learns through them. Its balancing loss is
    as without replay, of its own choice: that is what the next rollouts will be routed by.

    Every row is announced by `follow` before its forward pass. What is recomputed in the backward pass is not, and
    other rows may have come between: a checkpointed forward pass, which has no gradient, notes its routes, and they are
    taken back first in, first out, as rows go through the backward pass in the order of their forward passes.
    """

    def __init__(self, router: TopKRouter) -> None:
        self.layer = router.layer_number - 1  # of the whole model
        self.is_cut = router.config.sequence_parallel
        self.num_tokens: Tensor | int = 0  # of training passes
        self.num_replayed: Tensor | int = 0
        self.num_changed: Tensor | int = 0
        self._routes: Tensor | None = None  # [n, k] of this rank's part of the row
        self._is_training = False
        self._to_recompute: deque[Tensor | None] = deque()

    def follow(self, routes: Tensor | None, is_training: bool) -> None:
        """The row that comes next: `routes` [T, layers, k]."""
        self._is_training = is_training
        self._routes = None
        if routes is None:
            return
        of_layer = routes[:, self.layer]
        if self.is_cut:
            rank = parallel_state.get_tensor_model_parallel_rank()
            num_ranks = parallel_state.get_tensor_model_parallel_world_size()
            of_layer = of_layer.chunk(num_ranks)[rank]
        self._routes = of_layer

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        compute_topk: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Scores and numbers [n, k] of the experts of n tokens; `scores` [n, experts]."""
        _, own = compute_topk(scores, topk, num_groups, group_topk)
        routes = self._routes
        with_gradient = torch.is_grad_enabled()
        if with_gradient and self._to_recompute:
            routes = self._to_recompute.popleft()
        elif self._is_training:
            self._count(own, routes)
            if not with_gradient:
                self._to_recompute.append(routes)
        chosen = own
        if routes is not None:
            chosen = torch.where(routes < 0, own, routes.long())
        return scores.gather(1, chosen), chosen

    def _count(self, own: Tensor, routes: Tensor | None) -> None:
        self.num_tokens += len(own)
        if routes is None:
            return
        is_replayed = routes[:, 0] >= 0
        in_order, _ = own.sort(1)
        routed, _ = routes.sort(1)
        differs = (in_order != routed).any(1)
        is_changed = is_replayed & differs
        self.num_replayed += is_replayed.sum()
        self.num_changed += is_changed.sum()


def add_router_replay(model: torch.nn.Module) -> list[RouterReplay]:
    """Give every router of a model chunk its replay."""
    replays = []
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module.router_replay = RouterReplay(module)
            replays.append(module.router_replay)
    return replays


def take_replay_metrics(replays: Sequence[RouterReplay], device: torch.device) -> dict[str, float]:
    """Shares of all routers of all ranks since the last call. Collective."""
    counts = torch.zeros(3, dtype=torch.int64, device=device)
    for replay in replays:
        counts[0] += replay.num_tokens
        counts[1] += replay.num_replayed
        counts[2] += replay.num_changed
        replay.num_tokens = 0
        replay.num_replayed = 0
        replay.num_changed = 0
    dist.all_reduce(counts)
    num_tokens, num_replayed, num_changed = counts.tolist()
    return {
        "policy/router_replayed": num_replayed / max(1, num_tokens),
        "policy/router_changed": num_changed / max(1, num_replayed),
    }


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
