"""Route a row's tokens to the experts that their engine chose (rollout routing replay, arXiv 2510.11370)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor


class RouterReplay:
    """Replay of an engine's expert choices in one layer, where they are known.

    Source: rollout routing replay, arXiv 2510.11370.

    Megatron's router calls it instead of a top-k (`topk_routing_with_score_function`). The chosen experts are weighted
    by the router's own scores, so gradients reach the router. The balancing loss is computed from the router's own
    choice, as without replay, because the next rollouts will be routed by it.

    Call `follow` before every row's forward pass. Activation recomputation in the backward pass does not call it, and
    other rows may have come between. So a checkpointed forward pass, which has no gradient, stores its routes. The
    backward pass takes them first in, first out, because rows go through it in the order of their forward passes.
    """

    def __init__(self, router: TopKRouter) -> None:
        self.layer = router.layer_number - 1  # index of the layer in the whole model
        self.is_cut = router.config.sequence_parallel
        self.num_tokens: Tensor | int = 0  # tokens in training passes
        self.num_replayed: Tensor | int = 0
        self.num_changed: Tensor | int = 0
        self._routes: Tensor | None = None  # [n, k] experts of the tokens in this rank's part of the row
        self._is_training = False
        self._to_recompute: deque[Tensor | None] = deque()

    def follow(self, routes: Tensor | None, is_training: bool) -> None:
        """Set the k experts that this MoE router must choose for each token of the next packed row.

        `routes` [T, layers, k] are the experts of T tokens in all layers. With None the router chooses itself.
        """
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
        """Return scores and indices [n, k] of the experts for n tokens, from the router's `scores` [n, experts].

        The experts are those that the inference engine chose where known, else those that `compute_topk` chooses.
        """
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
    """Attach a `RouterReplay` to every MoE router of a model chunk, and return all of them.

    It makes the router choose the experts that the inference engine chose.
    """
    replays = []
    for module in model.modules():
        if isinstance(module, TopKRouter):
            module.router_replay = RouterReplay(module)
            replays.append(module.router_replay)
    return replays


def take_replay_metrics(replays: Sequence[RouterReplay], device: torch.device) -> dict[str, float]:
    """Return the metrics of MoE router replay since the last call, over all routers and ranks.

    Collective.
    """
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
