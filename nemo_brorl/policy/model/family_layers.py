"""Parts of a layer that some model families have: a norm over all heads, and a norm or factor behind a sublayer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor

_OutputAndBias = tuple[Tensor, Tensor | None]


class ResidualAdd(torch.nn.Module):
    """Adds what attention or MLP computed to its input, after a norm and times a factor.

    A layer spec names it in place of Megatron's addition. Its sublayers have no bias and no dropout.
    """

    def __init__(self, config: TransformerConfig, norm: type | None, factor: float) -> None:
        super().__init__()
        self.norm = norm(config, config.hidden_size, eps=config.layernorm_epsilon) if norm else None
        self.factor = factor

    def forward(self, *settings: Any) -> Callable[[_OutputAndBias, Tensor, float], Tensor]:
        """Return the function that adds. Megatron's settings for training and fusion do not matter."""
        return self._add

    def _add(self, output_and_bias: _OutputAndBias, residual: Tensor, dropout: float) -> Tensor:
        output, _ = output_and_bias
        if self.norm is not None:
            output = self.norm(output)
        return residual + output * self.factor


class JointNorm(torch.nn.Module):
    """RMSNorm over the queries, or keys, of all heads together. Tensor-parallel ranks sum their mean squares.

    Megatron would sum the gradients of a weight with its own name over these ranks, which hold different heads.
    """

    def __init__(self, hidden_size: int, config: TransformerConfig, eps: float, num_heads: int) -> None:
        super().__init__()
        self.eps = eps
        self.num_features = num_heads * hidden_size
        num_local = self.num_features // parallel_state.get_tensor_model_parallel_world_size()
        self.joint_weight = torch.nn.Parameter(torch.ones(num_local, dtype=config.params_dtype))
        set_tensor_model_parallel_attributes(self.joint_weight, is_parallel=True, dim=0, stride=1)

    def forward(self, heads: Tensor) -> Tensor:
        """Return heads [T, 1, H, D] of this rank, normed in fp32."""
        rows = heads.float()
        squares = reduce_from_tensor_model_parallel_region(rows.square().sum((-2, -1), keepdim=True))
        # The sum goes to every rank, so the gradients of all ranks come back.
        mean_square = copy_to_tensor_model_parallel_region(squares) / self.num_features
        weight = self.joint_weight.view(heads.shape[-2:])
        return (rows * (mean_square + self.eps).rsqrt() * weight).to(heads.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        """Return the weight with the place of this rank's share, as Megatron's checkpoints need it."""
        state = self.state_dict(keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"joint_weight": 0}, sharded_offsets)
