"""Number formats: fp32 or bf16 parameters, and Transformer Engine's FP8 for the matrix products on GPUs."""

from __future__ import annotations

from typing import Any

import torch

from nemo_brorl.config.schema import PolicyConfig
from nemo_brorl.errors import ConfigError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_FP8_FORMATS = ("hybrid", "e4m3")
_FP8_RECIPES = ("delayed", "tensorwise", "blockwise")


def param_dtype(config: PolicyConfig) -> torch.dtype:
    """The format of parameters and activations; gradients and the optimizer's master weights are always fp32."""
    if config.precision not in _DTYPES:
        raise ConfigError(f"policy.precision={config.precision!r} is unknown: write one of {', '.join(_DTYPES)}")
    return _DTYPES[config.precision]


def precision_settings(config: PolicyConfig, on_gpu: bool) -> dict[str, Any]:
    """Keyword arguments for Megatron's TransformerConfig. Raises ConfigError where the format cannot run."""
    dtype = param_dtype(config)
    settings: dict[str, Any] = {"params_dtype": dtype, "pipeline_dtype": dtype, "bf16": dtype == torch.bfloat16}
    if config.fp8 is None:
        return settings
    if not on_gpu:
        raise ConfigError(f"policy.fp8={config.fp8!r} needs a GPU: write policy.fp8=null on CPU")
    if config.fp8 not in _FP8_FORMATS:
        raise ConfigError(f"policy.fp8={config.fp8!r} is unknown: write null or one of {', '.join(_FP8_FORMATS)}")
    if config.fp8_recipe not in _FP8_RECIPES:
        raise ConfigError(f"policy.fp8_recipe={config.fp8_recipe!r} is unknown: write one of {', '.join(_FP8_RECIPES)}")
    if dtype != torch.bfloat16:
        raise ConfigError(f"policy.fp8={config.fp8!r} needs policy.precision=bf16, not {config.precision!r}")
    return settings | {"fp8": config.fp8, "fp8_recipe": config.fp8_recipe}
