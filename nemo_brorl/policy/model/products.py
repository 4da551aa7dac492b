"""Sums in float32, whatever their terms are in: of matrix products, and of the gradients of a row that was taken more
than once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32, of factors in one format."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right in float32, of factors in one format."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [n] int64 of a table [T, h]: [n, h].

    The last token of a prompt predicts the first one of every response that shares it. On a GPU torch's own gradient
    adds those of one row one by one in the table's format (`index_add_`), and in bf16 a sum of ones ends at 256.
    """
    return _TakeRows.apply(table, index)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows = len(table)
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        total = grad.new_zeros(ctx.num_rows, grad.size(1), dtype=torch.float32)
        total.index_add_(0, index, grad.float())
        return total.to(grad.dtype), None
