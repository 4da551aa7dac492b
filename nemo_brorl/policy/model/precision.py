"""Number formats: fp32 or bf16 parameters, and FP8 for the matrix products: Transformer Engine's on GPUs, its emulation
on CPU (`cpu.fp8_emulation`)."""

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
_FP8_ROWS = 16  # Transformer Engine's FP8 products want row counts that are multiples of it
_FP8_GATHERED_ROWS = 128  # of every rank, where a blockwise quantised tensor is gathered


def param_dtype(config: PolicyConfig) -> torch.dtype:
    """The format of parameters and activations; gradients and the optimizer's master weights are always fp32."""
    if config.precision not in _DTYPES:
        raise ConfigError(f"policy.precision={config.precision!r} is unknown: write one of {', '.join(_DTYPES)}")
    return _DTYPES[config.precision]


def precision_settings(config: PolicyConfig, on_gpu: bool) -> dict[str, Any]:
    """Keyword arguments for Megatron's TransformerConfig; FP8 is only there on GPUs, on CPU `cpu.fp8_emulation`
    does it.

    The history of the delayed recipe counts forward passes of micro-batches. Which settings go together is in
    `config.rules`.
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
    """Have Transformer Engine's linears add the weight gradient of every micro-batch to the fp32 buffer as it is
    computed, not rounded to bf16 before. Megatron's setting for all layers cannot be used: it wants Apex for the output
    layer, which `log_probs` takes care of."""
    for module in model.modules():
        if hasattr(module, "fuse_wgrad_accumulation"):
            module.fuse_wgrad_accumulation = True


def row_multiple(config: PolicyConfig, layout: ParallelLayout) -> int:
    """What the tokens of a row are padded to a multiple of, so that every sequence-parallel rank has an equal and, in
    FP8, allowed number of them. The same on CPU, where tiles then lie as on GPUs."""
    ranks = layout.tensor if layout.sequence_parallel else 1
    if config.fp8 is None:
        return ranks
    if config.fp8_recipe == "blockwise" and ranks > 1:
        return ranks * _FP8_GATHERED_ROWS
    return ranks * _FP8_ROWS


@contextmanager
def fp8_off(models: Sequence[Any]) -> Iterator[None]:
    """Inside, model chunks compute without FP8; the delayed recipe's history does not notice.

    FP8 parameters (`policy.fp8_params`) are dequantised, not restored. On GPUs Megatron asks its config at every
    forward.
    """
    formats = [model.config.fp8 for model in models]  # chunks may share one config
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
