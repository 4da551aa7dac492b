"""The CPU's RMSNorm is torch's, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nemo_brorl.policy.process.device import open_device

pytestmark = pytest.mark.numbers

open_device(on_gpu=False, num_threads=1)  # before the first import of megatron

from nemo_brorl.policy.cpu.rms_norm import rms_norm  # noqa: E402


def test_three_and_four_by_hand() -> None:
    normed = rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)  # the mean square is 12.5
    torch.testing.assert_close(normed, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


@pytest.mark.parametrize("shape", [(5, 1, 8), (5, 1, 3, 8)], ids=["hidden states", "heads"])
def test_value_and_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, grad = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    weight = torch.randn(8, generator=generator)
    own = [
        hidden.transpose(0, -2).contiguous().transpose(0, -2).requires_grad_(),
        weight.clone().requires_grad_(),
    ]  # strided
    theirs = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    mine, expected = rms_norm(own[0], own[1], 1e-5), F.rms_norm(theirs[0], (8,), theirs[1], 1e-5)
    mine.backward(grad)
    expected.backward(grad.double())
    torch.testing.assert_close(mine, expected.float())
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad.float(), atol=1e-6, rtol=1e-5)


def test_bf16_is_computed_in_fp32_and_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(4, 8, generator=generator).bfloat16(), torch.randn(8, generator=generator).bfloat16()
    expected = F.rms_norm(hidden.double(), (8,), weight.double(), 1e-5).bfloat16()
    assert torch.equal(rms_norm(hidden, weight, 1e-5), expected)
