"""The one-pass functions for GPUs, run step by step on the CPU, are the in-place ones."""

from __future__ import annotations

import pytest
import torch

from nemo_brorl.policy.model.log_probs import TokenScores, _add_tile, _ChunkGradient, add_tile, tile_gradient

pytestmark = pytest.mark.numbers

TOKENS, COLUMNS = 7, 20


def products(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(TOKENS, COLUMNS, generator=torch.Generator().manual_seed(seed))


def test_two_tiles_give_the_same_sums() -> None:
    """Targets in the first tile, in the second, and in neither."""
    targets = torch.tensor([0, 19, 20, 39, 7, 40, 99])
    largest, sums = torch.full((TOKENS,), torch.finfo(torch.float32).min), torch.zeros(3, TOKENS)
    fused = (largest, sums, torch.zeros(TOKENS))
    for seed in (0, 1):
        column = (targets - seed * COLUMNS)[:, None]
        largest, sums = _add_tile(products(seed=seed) / 0.7, largest, sums)
        fused = add_tile(products(seed=seed), column, *fused, 0.7)
    logits = torch.cat([products(seed=0), products(seed=1)], 1) / 0.7
    found = [logits[row, target] if target < 40 else torch.tensor(0.0) for row, target in enumerate(targets)]
    for mine, theirs in zip(fused, (largest, sums, torch.stack(found)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("has_more", [False, True])
def test_the_gradient_of_a_tile_is_the_same(has_more: bool) -> None:
    """Targets before, in and behind the tile, which begins at token 100."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.tensor([99, 100, 101, 110, 119, 120, 5])
    only = torch.tensor([1.0, float(has_more), float(has_more)])[:, None, None]
    grads = torch.randn(3, TOKENS, 1, generator=generator) * only
    per_token = [torch.rand(TOKENS, 1, generator=generator) + offset for offset in (4.0, 1.0, 0.0)]
    state = _ChunkGradient(targets, TokenScores(*grads), per_token)
    for dtype in (torch.float32, torch.bfloat16):
        expected = state.of_products(products(), 0.7, 100, dtype)
        column = (targets - 100)[:, None]
        mine = tile_gradient(products(), column, tuple(grads), tuple(per_token), 0.7, dtype)
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
