"""Read and write the values of a parameter, which Transformer Engine may keep quantised."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def fill(param: Tensor, values: Tensor) -> None:
    """Set the initial values of a model parameter, before the optimizer is built.

    Otherwise the optimizer would start the master weights of an FP8 parameter from the layer's random initialisation
    (`get_high_precision_init_val`).
    """
    param.copy_(values)
    if hasattr(param, "get_high_precision_init_val"):
        on_host = values.detach().cpu()
        param._high_precision_init_val = on_host.to(param.dtype)


def plain(param: Tensor) -> Tensor:
    """Return a parameter's values in its nominal format, without gradient. An FP8 parameter is dequantised."""
    if hasattr(param, "_quantizer"):
        return param.dequantize()
    return param.detach()
