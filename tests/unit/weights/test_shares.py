"""Shares of ranks: packing and unpacking, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nemo_brorl.core.model_shape import ModelShape, Rope
from nemo_brorl.weights.shares import pack, share_of, slices_of, unpack


def shape_of(**sizes: int) -> ModelShape:
    numbers = {"num_layers": 1, "hidden_size": 8, "num_heads": 4, "num_key_value_heads": 2, "head_size": 4}
    numbers |= {"ffn_size": 12, "vocab_size": 11, "max_positions": 64}
    return ModelShape(**(numbers | sizes), norm_epsilon=1e-6, rope=Rope(1e4), has_qkv_bias=True, is_tied=True)


def packed(
    kind: str, tensors: list[torch.Tensor], local_size: tuple[int, ...], shape: ModelShape, ranks: int, rank: int
) -> torch.Tensor:
    local = torch.full(local_size, torch.nan)
    shares = []
    for tensor in tensors:
        shares.append(torch.cat([tensor[rows] for rows in slices_of(kind, tensor.shape, ranks, rank)]))
    pack(kind, shares, local, shape)
    return local


@pytest.mark.parametrize(
    ("kind", "sizes", "local_size"),
    [
        ("copy", [(8, 12)], (8, 12)),
        ("rows_of_input", [(8, 12)], (8, 6)),
        ("rows", [(12,)], (6,)),
        ("gate_up", [(12, 8), (12, 8)], (12, 8)),
        ("fused_gate_up", [(24, 8)], (12, 8)),
        ("vocab", [(11, 8)], (6, 8)),
        ("qkv", [(16, 8), (8, 8), (8, 8)], (16, 8)),
    ],
)
def test_unpacking_the_shares_of_two_ranks_undoes_packing(
    kind: str, sizes: list[tuple[int, int]], local_size: tuple[int, int]
) -> None:
    shape = shape_of()
    tensors = [torch.randn(size) for size in sizes]
    locals_ = [packed(kind, tensors, local_size, shape, 2, rank) for rank in range(2)]
    assert not any(local.isnan().any() for local in locals_)
    for original, restored in zip(tensors, unpack(kind, locals_, shape), strict=True):
        assert torch.equal(original, restored)


def test_a_vocabulary_smaller_than_the_ranks_leaves_the_last_ones_padding() -> None:
    assert [share_of("vocab", (5, 8), 4, rank)[0] for rank in range(4)] == [
        slice(0, 2),
        slice(2, 4),
        slice(4, 5),
        slice(5, 5),
    ]


def test_a_rank_has_gate_rows_then_up_rows_of_one_tensor() -> None:
    rows = torch.arange(8.0)  # gate 0 to 3, up 4 to 7
    assert packed("fused_gate_up", [rows], (4,), shape_of(), 2, 1).tolist() == [2, 3, 6, 7]


def test_interleaved_pairs_lie_half_a_head_apart_and_dimensions_that_do_not_rotate_come_last_in_both_halves() -> None:
    """Heads of 8 whose first 4 dimensions rotate in the pairs (0, 1) and (2, 3). Values do not rotate."""
    shape = replace(
        shape_of(num_heads=1, num_key_value_heads=1, head_size=8),
        rope=Rope(1e4, is_interleaved=True, rotated_share=0.5),
    )
    head = torch.arange(8.0)
    local = packed("qkv", [head, 10 + head, 20 + head], (24,), shape, 1, 0)
    assert local[:8].tolist() == [0, 2, 4, 5, 1, 3, 6, 7]
    assert local[16:].tolist() == [20, 21, 22, 23, 24, 25, 26, 27]
    restored = unpack("qkv", [local], shape)
    assert [tensor.tolist() for tensor in restored] == [head.tolist(), (10 + head).tolist(), (20 + head).tolist()]


def test_a_query_group_is_its_queries_then_its_key_then_its_value() -> None:
    shape = shape_of(head_size=1)
    query, key, value = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([10.0, 11.0]), torch.tensor([20.0, 21.0])
    assert packed("qkv", [query, key, value], (4,), shape, 2, 0).tolist() == [0, 1, 10, 20]
    assert packed("qkv", [query, key, value], (4,), shape, 2, 1).tolist() == [2, 3, 11, 21]
