"""Kernels that torch writes for a Hopper GPU, compiled to its code where Triton's wheel is installed: they fit a
multiprocessor. What this cannot show stands in `tests/support/kernel_code.py`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.support import fake_cuda
from tests.support.kernel_code import SHAPES, usage

SHARED_OF_A_BLOCK = 227 * 1024  # bytes, compute capability 9.0
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton, as in requirements/gpu.txt")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every kernel takes."""
    found: list[dict[str, Any]] = fake_cuda.report("tests.support.kernel_code", tmp_path_factory.mktemp("fake_cuda"))
    return found


@needs_triton
def test_every_kernel_fits_the_shared_memory_of_a_block(kernels: list[dict[str, Any]]) -> None:
    too_large = [kernel for kernel in kernels if kernel["shared"] > SHARED_OF_A_BLOCK]
    assert not too_large


@needs_triton
def test_attention_is_one_kernel_forward_and_one_backward_for_every_shape(kernels: list[dict[str, Any]]) -> None:
    for name in SHAPES:
        mine = [kernel["name"] for kernel in kernels if kernel["part"] == f"FlexAttention, {name}"]
        templates = [kernel for kernel in mine if kernel.startswith("triton_tem_")]
        assert len(templates) == len({"forward", "backward"}), templates


def test_registers_and_spills_are_read_from_what_ptxas_says() -> None:
    log = """ptxas info    : Function properties for kernel
    480 bytes stack frame, 508 bytes spill stores, 616 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers"""
    assert usage(log) == (255, 508)
