"""Measure the card's highest rates, after a check that Transformer Engine works.

The rates are of a large matrix product in bf16 and FP8, a device-to-device copy, and a copy into pinned host memory.
The check is one layer, forward and backward, where Transformer Engine is installed.

    python -m bench.gpu.ceilings [--tiny] [--results FOLDER]
"""

from __future__ import annotations

import importlib.util

import torch

from bench.gpu.record import Row
from bench.gpu.setting import Ceilings, Setting, median_seconds, open_setting

SIZE, TINY_SIZE = 8192, 256  # of square matrices
COPY_BYTES, TINY_COPY_BYTES = 4 * 2**30, 2**22
REPEATS = 10


def matmul_flops(setting: Setting) -> float:
    """Measure the FLOPs per second of a bf16 matrix product on random data."""
    size = TINY_SIZE if setting.is_tiny else SIZE
    left, right = (torch.randn(size, size, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / median_seconds(lambda: torch.mm(left, right, out=out), setting.device, REPEATS, warm_ups=3)


def fp8_flops(setting: Setting) -> float | None:
    """Measure the FLOPs per second of an e4m3 matrix product with one scale per tensor.

    None on CPU, which has no such product.
    """
    if setting.is_tiny:
        return None
    scale = torch.ones((), device=setting.device)
    left, right = (torch.randn(SIZE, SIZE, device=setting.device).to(torch.float8_e4m3fn) for _ in range(2))

    def product() -> torch.Tensor:
        return torch._scaled_mm(left, right.t(), scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * SIZE**3 / median_seconds(product, setting.device, REPEATS, warm_ups=3)


def copy_rates(setting: Setting) -> tuple[float, float]:
    """Measure the bytes per second of a copy on the device (read and written) and into host memory."""
    num_bytes = TINY_COPY_BYTES if setting.is_tiny else COPY_BYTES
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=setting.device)
    beside, host = torch.empty_like(source), torch.empty(num_bytes, dtype=torch.uint8, pin_memory=not setting.is_tiny)
    on_device = median_seconds(lambda: beside.copy_(source), setting.device, REPEATS, warm_ups=2)
    to_host = median_seconds(lambda: host.copy_(source, non_blocking=True), setting.device, 5)
    return 2 * num_bytes / on_device, num_bytes / to_host


def transformer_engine_works(setting: Setting) -> str:
    """Run one FP8 layer of Transformer Engine forward and backward, and return the outcome in words.

    It fails where the kernels of a trimmed library are missing.
    """
    if setting.is_tiny or importlib.util.find_spec("transformer_engine") is None:
        return "not there"
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import Float8CurrentScaling

    layer = te.Linear(256, 256, params_dtype=torch.bfloat16, device="cuda")
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=True, fp8_recipe=Float8CurrentScaling()):
        y = layer(x)
    y.sum().backward()
    assert x.grad is not None and bool(torch.isfinite(x.grad).all()), (
        "Transformer Engine's layer gave no finite gradient"
    )
    return "forward and backward in FP8 ran"


def measure(setting: Setting) -> Ceilings:
    """Measure all rates of the card. It takes seconds on a GPU, whose memory is free again afterwards."""
    ceilings = Ceilings(matmul_flops(setting), fp8_flops(setting), *copy_rates(setting))
    if not setting.is_tiny:
        torch.cuda.empty_cache()
    return ceilings


def measure_once(setting: Setting) -> None:
    """Measure and save the rates, which a part with floors needs, unless another part has saved them."""
    if not setting.ceilings_file.exists():
        setting.save_ceilings(measure(setting))


def main() -> None:
    """Measure and keep."""
    setting = open_setting("ceilings", __doc__)
    results = setting.results
    ceilings = measure(setting)
    setting.save_ceilings(ceilings)
    results.add(Row("bf16 product", ceilings.bf16_flops / 1e12, "TFLOP/s"))
    results.add(Row("FP8 product", None if ceilings.fp8_flops is None else ceilings.fp8_flops / 1e12, "TFLOP/s"))
    results.add(Row("copy on the device", ceilings.copy_bytes / 1e9, "GB/s", note="read + written"))
    results.add(Row("copy to pinned memory", ceilings.to_host_bytes / 1e9, "GB/s"))
    results.detail("transformer engine", transformer_engine_works(setting))
    results.finish()


if __name__ == "__main__":
    main()
