"""The one-pass functions for GPUs, run step by step on the CPU, are the in-place ones."""

from __future__ import annotations

import pytest
import torch

from nemo_brorl.policy.model import fused_tiles
from nemo_brorl.policy.model.log_probs import TokenScores, _add_tile, _ChunkGradient

TOKENS, COLUMNS = 7, 20


def products(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(TOKENS, COLUMNS, generator=torch.Generator().manual_seed(seed))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_tiles_give_the_same_sums(dtype: torch.dtype) -> None:
    states = []
    for add_tile in (_add_tile, fused_tiles.add_tile):
        largest, sums = torch.full((TOKENS,), torch.finfo(torch.float32).min), torch.zeros(3, TOKENS)
        for seed in (0, 1):
            largest, sums = add_tile(products(dtype, seed), 0.7, largest, sums)
        states.append((largest, sums))
    for mine, theirs in zip(*states, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("has_more", [False, True])
def test_the_gradient_of_a_tile_is_the_same(has_more: bool) -> None:
    """Targets before, in and behind the tile, which begins at token 100."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.tensor([99, 100, 101, 110, 119, 120, 5])
    grads = (
        torch.randn(3, TOKENS, 1, generator=generator)
        * torch.tensor([1.0, float(has_more), float(has_more)])[:, None, None]
    )
    per_token = [torch.rand(TOKENS, 1, generator=generator) + offset for offset in (4.0, 1.0, 0.0)]
    state = _ChunkGradient(targets, TokenScores(*grads), per_token)
    expected = state.of_products(products(torch.float32), 0.7, 100, has_more)
    mine = fused_tiles.tile_gradient(
        products(torch.float32), 0.7, (targets - 100)[:, None], tuple(grads), tuple(per_token), has_more
    )
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    rounded = fused_tiles.tile_gradient(
        products(torch.bfloat16), 0.7, (targets - 100)[:, None], tuple(grads), tuple(per_token), has_more
    )
    assert rounded.dtype == torch.bfloat16
