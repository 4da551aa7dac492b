"""Implement RMSNorm for CPU in place of Megatron's norms, with a hand-written forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class RMSNorm(torch.nn.Module):
    """RMSNorm (arXiv 1910.07467) with a hand-written forward and backward.

    On CPU torch runs it as a chain of elementwise operations and differentiates each of them. It replaces Megatron's
    norms in layer specs. It also works in a sequence-parallel region, which Megatron's wrapper of torch's norm refuses.

    With y = w x / r and r = sqrt(mean(x²) + eps), both gradients follow from the product g x of incoming gradient and
    input:

        dw = Σ_tokens g x / r,    dx = w g / r − x (Σ_h w g x) / (h r³)

    That is half the passes over memory, and only x and r are kept.
    """

    def __init__(
        self,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.eps = eps
        ones = torch.ones(hidden_size, dtype=config.params_dtype)
        self.weight = torch.nn.Parameter(ones)
        # With this attribute `finalize_model_grads` sums the weight's gradient over sequence-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weight, self.eps)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `hidden` [..., h] divided by the root of its mean square, times `weight` [h].

    The norm is computed in fp32 and returned in the format of `hidden`.
    """
    return _RMSNorm.apply(hidden, weight, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        eps: float,
    ) -> Tensor:
        rows = hidden.float()
        squares = torch.linalg.vecdot(rows, rows)
        mean_square = squares.div_(hidden.size(-1))
        inverse = mean_square.add_(eps).rsqrt_()
        ctx.save_for_backward(hidden, weight, inverse)
        normed = rows * inverse[..., None]
        normed.mul_(weight)
        return normed.to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, weight, inverse = ctx.saved_tensors
        size = hidden.size(-1)
        rows = hidden.float().reshape(-1, size)
        grads = grad.float().reshape(-1, size)
        inverse = inverse.reshape(-1, 1)
        products = grads * rows
        weight_grad = (inverse.T @ products)[0]
        shift = products @ weight.float()[:, None]
        shift.mul_(inverse.pow(3))
        shift.div_(size)
        hidden_grad = grads * weight
        hidden_grad.mul_(inverse)
        hidden_grad.addcmul_(rows, shift, value=-1)
        hidden_grad = hidden_grad.to(hidden.dtype).view_as(hidden)
        return hidden_grad, weight_grad.to(weight.dtype), None
