"""Passes of `log_probs` over a tile of logits, one each where torch compiles them: for GPUs, whose memory is slower
than their products. Step by step in place, as on CPU, a tile is read and written some fifteen times.

Legend: c tokens, w columns of the tile. `products` [c, w] are hidden @ weight.T in the format of the weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


def add_tile(
    products: Tensor,
    temperature: float,
    largest: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """The largest logit [c] and the three sums [3, c] of `log_probs._sums`, with another tile taken in."""
    logits = products.float() / temperature
    larger = torch.maximum(largest, logits.amax(1))
    shifted = logits - larger[:, None]
    exps = shifted.exp()
    shift = (largest - larger).clamp(min=-1e4)
    scale = shift.exp()
    total, weighted, squared = sums
    new_total = total * scale + exps.sum(1)
    new_weighted = (weighted + shift * total) * scale
    new_weighted = new_weighted + (shifted * exps).sum(1)
    new_squared = squared * scale.square()
    new_squared = new_squared + exps.square().sum(1)
    return larger, torch.stack([new_total, new_weighted, new_squared])


def tile_gradient(
    products: Tensor,
    temperature: float,
    column: Tensor,
    grads: tuple[Tensor, ...],
    per_token: tuple[Tensor, ...],
    has_more: bool,
) -> Tensor:
    """The gradient of a tile's logits [c, w] in the format of `products`, as `log_probs._ChunkGradient.of_logits` has
    it.

    `column` [c, 1]: of each target in this tile, negative or beyond it where it is in another. `grads` of log-prob,
    entropy and collision mass, `per_token` normaliser, entropy and collision mass, [c, 1] each. Without `has_more` only
    the first of `grads` counts.
    """
    normaliser, entropy, collision = per_token
    of_log_prob, of_entropy, of_collision = grads
    log_p = products.float() / temperature - normaliser
    p = log_p.exp()
    inner = of_log_prob
    if has_more:
        entropy_term = (log_p + entropy) * of_entropy
        collision_term = 2 * (p - collision) * of_collision
        inner = of_log_prob + entropy_term - collision_term
    is_target = torch.arange(products.size(1), device=products.device) == column
    gradient = torch.where(is_target, of_log_prob, 0.0) - p * inner
    return gradient.to(products.dtype)


@cache
def compiled(function: Any) -> Any:
    """For tiles of any size."""
    return torch.compile(function, dynamic=True)
