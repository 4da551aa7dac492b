"""Passes of `log_probs` over a tile of logits, one each where torch compiles them: for GPUs, whose memory is slower
than their products. Step by step in place, as on CPU, a tile is read and written some fifteen times.

Legend: c tokens, w columns of the tile. `products` [c, w] are hidden @ weight.T in float32; `column` [c, 1] is where
each target is in this tile, negative or beyond it where it is in another.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_tile(
    products: Tensor,
    column: Tensor,
    largest: Tensor,
    sums: Tensor,
    target: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logit [c], the three sums [3, c] of `log_probs._sums` and the target's logit [c], with another tile
    taken in."""
    logits = products / temperature
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
    found = torch.where(_is_target(products, column), logits, 0.0)
    return larger, torch.stack([new_total, new_weighted, new_squared]), target + found.sum(1)


def tile_gradient(
    products: Tensor,
    column: Tensor,
    grads: tuple[Tensor, ...],
    per_token: tuple[Tensor, ...],
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """The gradient of a tile's logits [c, w] in a format, as `log_probs._ChunkGradient.of_logits` has it.

    `grads` of log-prob, entropy and collision mass, `per_token` normaliser, entropy and collision mass, [c, 1] each.
    """
    normaliser, entropy, collision = per_token
    of_log_prob, of_entropy, of_collision = grads
    log_p = products / temperature - normaliser
    p = log_p.exp()
    entropy_term = (log_p + entropy) * of_entropy
    collision_term = 2 * (p - collision) * of_collision
    inner = of_log_prob + entropy_term - collision_term
    gradient = torch.where(_is_target(products, column), of_log_prob, 0.0) - p * inner
    return gradient.to(dtype)


def _is_target(products: Tensor, column: Tensor) -> Tensor:
    """[c, w]"""
    return torch.arange(products.size(1), device=products.device) == column
