"""The CPU's SwiGLU is torch's to the bit, also where a row is cut into tiles."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nemo_brorl.policy.cpu import swiglu
from nemo_brorl.policy.cpu.swiglu import SwiGLU

pytestmark = pytest.mark.numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_value_and_gradient_are_those_of_torch(
    dtype: torch.dtype, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swiglu, "_TILE", 10)  # two rows
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(num_rows, 10, generator=generator).to(dtype).requires_grad_()
    theirs = own.detach().clone().requires_grad_()
    grad = torch.randn(num_rows, 5, generator=generator).to(dtype)
    gate, up = theirs.chunk(2, -1)
    mine, expected = SwiGLU.apply(own, False, False), F.silu(gate) * up
    mine.backward(grad)
    expected.backward(grad)
    assert torch.equal(mine, expected)
    assert torch.equal(own.grad, theirs.grad)


def test_megatron_runs_it() -> None:
    from nemo_brorl.policy.process.device import open_device

    open_device(on_gpu=False, num_threads=1)  # before the first import of megatron
    from megatron.core.fusions import fused_bias_swiglu

    assert fused_bias_swiglu.SwiGLUFunction is SwiGLU
