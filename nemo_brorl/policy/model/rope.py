"""Rotary frequencies, stretched for longer contexts: computed here because Megatron 0.16.1 fixes Llama 3's bounds and
its YaRN takes another way to the same numbers. Each formula agrees with `transformers.modeling_rope_utils` bit for bit
in fp32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_brorl.config.model_shape import Rope


def inverse_frequencies(rope: Rope, head_size: int) -> Tensor:
    """Radians per position of every pair of dimensions, [head_size / 2] float32."""
    powers = rope.base ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    if rope.kind == "linear":  # position interpolation, arXiv 2306.15595
        return 1.0 / powers / rope.factor
    if rope.kind == "llama3":
        return _llama3(1.0 / powers, rope)
    if rope.kind == "yarn":
        return _yarn(powers, rope, head_size)
    return 1.0 / powers


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1's `apply_scaling` (github.com/meta-llama/llama-models, models/llama3/reference_impl/model.py): short
    wavelengths stay, long ones are stretched by `factor`, those between are blended."""
    wavelengths = 2 * math.pi / plain
    longest, shortest = (
        rope.original_max_positions / rope.low_freq_factor,
        rope.original_max_positions / rope.high_freq_factor,
    )
    stretched = torch.where(wavelengths > longest, plain / rope.factor, plain)
    share = (rope.original_max_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * stretched / rope.factor + share * stretched
    is_between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(is_between, blended, stretched)


def _yarn(powers: Tensor, rope: Rope, head_size: int) -> Tensor:
    """YaRN, arXiv 2309.00071, section 3.2: dimensions that turn often in pre-training stay, slow ones are stretched by
    `factor`."""

    def dimension(turns: float) -> float:
        """The dimension that makes this many turns over the positions of pre-training."""
        return head_size * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    width = high - low if high != low else 0.001
    kept = 1 - ((torch.arange(head_size // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept
