"""FlexAttention and flash kernels against the block loop on the GPU, forward and backward, for rows of several lengths.
megatron is imported late, as CPU tests of the same run prepare it for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu

SHAPES = ((20, [30, 12, 30, 7]), (300, [40] * 24), (33, [5, 90, 700]), (5, []))  # prompt and response lengths
NUM_HEADS, NUM_KV, HEAD_SIZE = 8, 2, 64


def make_row(prompt_length: int, lengths: list[int], min_shared_tokens: int = 0) -> Any:
    """A shared prompt and a document, padded for FlexAttention. All tokens are the same: where more than the prompt is
    shared, segments stand on each other."""
    from nemo_brorl.policy.model.attention_flex import ROW_MULTIPLE
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, RowSettings
    from nemo_brorl.policy.rows.row_builder import build_row

    def packed_group(prompt: int, responses: list[int]) -> PackedGroup:
        made = [
            Response(0, i, np.ones(n, np.int32), np.zeros(n, np.float32), 0.0, True) for i, n in enumerate(responses)
        ]
        return PackedGroup(np.ones(prompt, np.int32), tuple(made))

    settings = RowSettings(torch.device("cuda"), ROW_MULTIPLE, attention="flex", min_shared_tokens=min_shared_tokens)
    return build_row([packed_group(prompt_length, lengths), packed_group(11, [17])], 1.0, settings)


def outputs_and_gradients(attend: Any, row: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(num_heads: int) -> torch.Tensor:
        return torch.randn(row.token_ids.size(1), num_heads, HEAD_SIZE, device="cuda", dtype=dtype, generator=generator)

    heads = [random(num).requires_grad_() for num in (NUM_HEADS, NUM_KV, NUM_KV)]
    output = attend(*heads, None, row.packing, HEAD_SIZE**-0.5)
    output.backward(random(NUM_HEADS))
    return [output.detach(), *(part.grad for part in heads)]


TREES = pytest.mark.parametrize("min_shared_tokens", [0, 5], ids=["prompts", "trees"])


@TREES
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-3), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_flex_equals_the_block_loop(dtype: torch.dtype, tolerance: float, min_shared_tokens: int) -> None:
    from nemo_brorl.policy.model.attention_blocks import attend_by_blocks
    from nemo_brorl.policy.model.attention_flex import attend_with_flex

    for shape in SHAPES:
        row = make_row(*shape, min_shared_tokens)
        for mine, expected in zip(
            outputs_and_gradients(attend_with_flex, row, dtype),
            outputs_and_gradients(attend_by_blocks, row, dtype),
            strict=True,
        ):
            assert (mine - expected).abs().max() <= tolerance * expected.abs().max(), shape


@TREES
def test_flash_equals_the_block_loop(min_shared_tokens: int) -> None:
    from nemo_brorl.policy.model.attention_blocks import attend_by_blocks
    from nemo_brorl.policy.model.attention_flash import attend_with_flash

    for shape in SHAPES:
        row = make_row(*shape, min_shared_tokens)
        for mine, expected in zip(
            outputs_and_gradients(attend_with_flash, row, torch.bfloat16),
            outputs_and_gradients(attend_by_blocks, row, torch.bfloat16),
            strict=True,
        ):
            assert (mine - expected).abs().max() <= 3e-2 * expected.abs().max(), shape


def test_flex_of_a_shared_prompt_is_the_cpu_path(gpu_device: Any) -> None:
    """The mask that every response sees, against the kernel that CPU runs train with."""
    from dataclasses import replace

    from nemo_brorl.policy.cpu.attention import attend_on_cpu
    from nemo_brorl.policy.model.attention_flex import attend_with_flex

    for shape in SHAPES:
        row = make_row(*shape)
        heads = [torch.randn(row.token_ids.size(1), num, HEAD_SIZE) for num in (NUM_HEADS, NUM_KV, NUM_KV)]
        grad = torch.randn_like(heads[0])
        on_host = [part.clone().requires_grad_() for part in heads]
        expected = attend_on_cpu(*on_host, None, replace(row.packing, caches={}), HEAD_SIZE**-0.5)
        expected.backward(grad)
        on_gpu = [part.cuda().requires_grad_() for part in heads]
        output = attend_with_flex(*on_gpu, None, row.packing, HEAD_SIZE**-0.5)
        output.backward(grad.cuda())
        pairs = [(output, expected), *((mine.grad, other.grad) for mine, other in zip(on_gpu, on_host, strict=True))]
        for mine, other in pairs:
            assert (mine.detach().cpu() - other.detach()).abs().max() <= 5e-3 * other.detach().abs().max(), shape


def test_rows_of_other_lengths_compile_nothing_new() -> None:
    from torch._dynamo.utils import counters

    from nemo_brorl.policy.model.attention_flex import attend_with_flex

    for num in (4, 9):  # the first lengths, of more than one block
        outputs_and_gradients(attend_with_flex, make_row(64, [100] * num), torch.bfloat16)
    compiled = counters["stats"]["unique_graphs"]
    for num in (5, 14, 23):
        outputs_and_gradients(attend_with_flex, make_row(64, [100] * num), torch.bfloat16)
    assert counters["stats"]["unique_graphs"] == compiled
