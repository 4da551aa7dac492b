"""Set number formats: fp32 or bf16 parameters, and FP8 for matrix products.

On GPUs Transformer Engine computes FP8, on CPU `cpu.fp8_emulation` emulates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.policy.cpu.fp8_emulation import ChunkEmulation, chunks_of

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_FP8_ROWS = 16  # Transformer Engine's FP8 products need a multiple of this many tokens
_FP8_GATHERED_ROWS = 128  # tokens of each rank must be a multiple, to gather a blockwise quantised tensor


def param_dtype(config: PolicyConfig) -> torch.dtype:
    """Return the format of parameters and activations. Raises ConfigError for an unknown `policy.precision`.

    Gradients and the optimizer's master weights are always fp32.
    """
    if config.precision not in _DTYPES:
        raise ConfigError(f"policy.precision={config.precision!r} is unknown. Set one of {', '.join(_DTYPES)}.")
    return _DTYPES[config.precision]


def precision_settings(config: PolicyConfig, on_gpu: bool) -> dict[str, Any]:
    """Return the precision arguments of Megatron's TransformerConfig, which turn FP8 on only on GPUs.

    The amax history of the delayed FP8 recipe counts forward passes of micro-batches. `config.rules` checks which
    settings go together.
    """
    dtype = param_dtype(config)
    settings: dict[str, Any] = {
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
    }
    if config.fp8 is None or not on_gpu:
        return settings
    return settings | {
        "fp8": config.fp8,
        "fp8_recipe": config.fp8_recipe,
        "fp8_param": config.fp8_params,
        "fp8_amax_history_len": config.fp8_amax_history,
        "fp8_amax_compute_algo": "max",
        "first_last_layers_bf16": config.fp8_bf16_first_layers + config.fp8_bf16_last_layers > 0,
        "num_layers_at_start_in_bf16": config.fp8_bf16_first_layers,
        "num_layers_at_end_in_bf16": config.fp8_bf16_last_layers,
    }


def sum_gradients_in_buffers(model: torch.nn.Module) -> None:
    """Make Transformer Engine's linear layers add each micro-batch's weight gradient directly to the fp32 buffer.

    Otherwise the gradient would be rounded to bf16 first. Megatron's setting for all layers cannot be used: it needs
    Apex for the output layer, which `log_probs` computes here.
    """
    for module in model.modules():
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True


def row_multiple(config: PolicyConfig, layout: ParallelLayout) -> int:
    """Return the number to a multiple of which the tokens of every packed row are padded.

    Then every sequence-parallel rank has equally many tokens, in FP8 a number that FP8 products accept. The number is
    the same on CPU, where quantisation tiles then lie as on GPUs.
    """
    ranks = layout.tensor if layout.sequence_parallel else 1
    if config.fp8 is None:
        return ranks
    if config.fp8_recipe == "blockwise" and ranks > 1:
        return ranks * _FP8_GATHERED_ROWS
    return ranks * _FP8_ROWS


@contextmanager
def fp8_off(models: Sequence[Any]) -> Iterator[None]:
    """Switch FP8 off in model chunks while this context is open, without changing the delayed recipe's amax history.

    FP8 parameters (`policy.fp8_params`) are dequantised, which does not restore their unrounded values. On GPUs
    Megatron reads its config at every forward pass.
    """
    # Chunks may share one config, so all formats are read before any is changed.
    formats = [model.config.fp8 for model in models]
    emulations: list[tuple[ChunkEmulation, bool]] = []
    for model in models:
        for chunk in chunks_of(model):
            emulations.append((chunk, chunk.is_on))
    try:
        for model in models:
            model.config.fp8 = None
        for chunk, _ in emulations:
            chunk.is_on = False
        yield
    finally:
        for model, fp8 in zip(models, formats, strict=True):
            model.config.fp8 = fp8
        for chunk, was_on in emulations:
            chunk.is_on = was_on
