"""Attention of many sequences that lie end to end, by one kernel: what every such kernel takes and gives, and torch's.

Legend: n sequences, R queries and C keys of all of them, H heads, K key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import attention


@dataclass(frozen=True)
class Sequences:
    """Queries and keys that lie end to end: those of a sequence attend to each other."""

    query_ends: Tensor  # [n + 1] int32: 0, then where each sequence ends
    key_ends: Tensor  # [n + 1] int32
    longest_query: int
    longest_key: int
    is_causal: bool


class Kernel(Protocol):
    """Attention of n sequences. Query [R, H, D], key and value [C, K, D]; log-sum-exps [H, R] float32."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: Sequences,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Output [R, H, D] and log-sum-exps."""

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sums: Tensor,
        sequences: Sequences,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value. `output` and `log_sums` may be of more keys than these."""


class FlashKernel:
    """torch's own flash attention (arXiv 2307.08691) for bf16 on CUDA; FlashAttention 3 after `use_newest_kernel`."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sequences: Sequences,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """See `Kernel`."""
        output, log_sums, *_ = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            sequences.query_ends,
            sequences.key_ends,
            sequences.longest_query,
            sequences.longest_key,
            0.0,
            sequences.is_causal,
            False,
            scale=scale,
        )
        return output, log_sums

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sums: Tensor,
        sequences: Sequences,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel`."""
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
        unused = torch.empty(0, device=query.device)
        return torch.ops.aten._flash_attention_backward(
            grad,
            query,
            key,
            value,
            output,
            log_sums,
            sequences.query_ends,
            sequences.key_ends,
            sequences.longest_query,
            sequences.longest_key,
            0.0,
            sequences.is_causal,
            no_dropout,
            unused,
            scale=scale,
        )


def use_newest_kernel() -> str:
    """FlashAttention 3 (arXiv 2407.08608) where its module `flash_attn_interface` is installed and the GPU is a Hopper.
    Returns the name of what `FlashKernel` then is."""
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    if is_hopper and find_spec("flash_attn_interface"):
        attention.activate_flash_attention_impl("FA3")
        return "FlashAttention 3"
    return "FlashAttention 2"
