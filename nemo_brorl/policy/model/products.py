"""Matrix products summed in float32 and left in it, whatever their factors are in."""

from __future__ import annotations

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
