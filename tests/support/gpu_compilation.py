"""Everything the policy compiles for a GPU, traced forward and backward over rows of many lengths on fake CUDA tensors:
`python -m tests.support.gpu_compilation LIBRARY` prints how often each function was compiled.

A graph break, a part that falls back to eager, or a function that is compiled for each length ends it with an error.
What a backend makes of the graphs is not seen: they end before code generation.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import fake_cuda

NUM_LENGTHS = 9  # one more than torch compiles a function for before it gives up
HEADS, KV_HEADS, HEAD_SIZE = 12, 2, 128
num_compiled: Counter[str] = Counter()


def traced(name: str) -> Callable[[Any, Any], Any]:
    """A backend of torch.compile that counts, and stops at the graphs of the forward and the backward pass."""
    from torch._dynamo.backends.debugging import aot_eager

    def backend(graph: Any, inputs: Any) -> Any:
        num_compiled[name] += 1
        return aot_eager(graph, inputs)

    return backend


def count_compilations() -> None:
    """Have `compiled` use the backend above, everything else as it is."""
    import torch

    compile_for_good = torch.compile

    def compile_and_count(function: Any, **options: Any) -> Any:
        return compile_for_good(function, backend=traced(function.__name__), **options)

    torch.compile = compile_and_count  # type: ignore[assignment]


def rows_of_many_lengths() -> list[Any]:
    """Packings as the policy makes them for FlexAttention, of 256 tokens and more."""
    import numpy as np
    import torch

    from nemo_brorl.policy.model.attention_flex import ROW_MULTIPLE
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, RowSettings
    from nemo_brorl.policy.rows.row_builder import build_row

    settings = RowSettings(torch.device("cpu"), ROW_MULTIPLE, attention="flex")
    rows = []
    for number in range(NUM_LENGTHS):
        tokens = np.ones(20 + 148 * number, np.int32)
        log_probs = np.zeros(len(tokens), np.float32)
        responses = tuple(Response(0, index, tokens, log_probs, 0.0, True) for index in range(5))
        rows.append(build_row([PackedGroup(np.ones(33, np.int32), responses)], 1.0, settings).packing)
    return rows


def as_fake(packing: Any, mode: Any) -> Any:
    """A packing whose tensors are on the fake device."""
    from dataclasses import fields, replace

    import torch

    sight = packing.sight
    with mode:
        parts = {
            field.name: torch.empty(len(getattr(sight, field.name)), dtype=torch.int32, device="cuda")
            for field in fields(sight)
        }
    return replace(packing, sight=replace(sight, **parts), caches={})


def attend(with_gradient: bool) -> None:
    """FlexAttention and its block mask over all rows."""
    import torch
    from torch._subclasses import FakeTensorMode

    from nemo_brorl.policy.model.attention_flex import attend_with_flex

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for packing in rows_of_many_lengths():
        num_tokens = packing.positions.numel()
        with mode:
            parts = [
                torch.empty(num_tokens, num, HEAD_SIZE, dtype=torch.bfloat16, device="cuda")
                for num in (HEADS, KV_HEADS, KV_HEADS)
            ]
            for part in parts:
                part.requires_grad_(with_gradient)
            with torch.set_grad_enabled(with_gradient):
                output = attend_with_flex(*parts, None, as_fake(packing, mode), HEAD_SIZE**-0.5)
            if with_gradient:
                output.sum().backward()
                assert parts[1].grad is not None and parts[1].grad.shape == parts[1].shape


def score() -> None:
    """Log-probs of many numbers of tokens, forward and backward, over several tiles."""
    import torch
    from torch._subclasses import FakeTensorMode

    from nemo_brorl.policy.model.log_probs import token_scores, vocab_slice

    with FakeTensorMode(allow_non_fake_inputs=True):
        weight = torch.empty(151_936, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for number in range(NUM_LENGTHS):
            num_tokens = 900 + 2068 * number
            hidden = torch.empty(num_tokens, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            targets = torch.empty(num_tokens, dtype=torch.int64, device="cuda")
            scores = token_scores(hidden, weight, targets, vocab_slice(151_900, 151_936, None), 0.6, 8192)
            assert scores.dtype == torch.float32
            scores.sum().backward()


def rotate_heads() -> None:
    """Queries and keys of one projection turned, and their gradients turned back, by a table that grows. Some rows are
    as long as it."""
    import torch
    from torch._subclasses import FakeTensorMode

    from nemo_brorl.policy.model.rotary import rotate

    with FakeTensorMode(allow_non_fake_inputs=True):
        for number in range(NUM_LENGTHS):
            num_tokens = 256 + 256 * number
            table = torch.empty(1 << (num_tokens - 1).bit_length(), HEAD_SIZE, dtype=torch.bfloat16, device="cuda")
            positions = torch.empty(num_tokens, dtype=torch.int64, device="cuda")
            heads = torch.empty(num_tokens, HEADS + KV_HEADS, HEAD_SIZE, dtype=torch.bfloat16, device="cuda")
            heads.requires_grad_(True)
            for part in heads.split([HEADS, KV_HEADS], dim=1):
                rotate(part, table, positions).sum().backward()


def attend_with_flash_kernels() -> None:
    """The merge of two flash calls, forward and backward."""
    import torch
    from torch._subclasses import FakeTensorMode

    from nemo_brorl.policy.model.attention_flash import attend_with_flash

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for packing in rows_of_many_lengths():
        num_tokens = packing.positions.numel()
        with mode:
            parts = [
                torch.empty(num_tokens, num, HEAD_SIZE, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                for num in (HEADS, KV_HEADS, KV_HEADS)
            ]
            output = attend_with_flash(*parts, None, packing, HEAD_SIZE**-0.5)
            output.sum().backward()
            assert parts[2].grad is not None and parts[2].grad.dtype == torch.bfloat16


def main() -> None:
    fake_cuda.use(Path(sys.argv[1]))
    import torch

    from nemo_brorl.policy.cpu import megatron

    megatron.install()
    torch.set_num_threads(1)
    count_compilations()
    found = {}
    for name, part in {
        "training": lambda: attend(with_gradient=True),
        "scoring": lambda: attend(with_gradient=False),
        "log-probs": score,
        "flash": attend_with_flash_kernels,
        "rotation": rotate_heads,
    }.items():
        num_compiled.clear()
        part()
        found[name] = dict(num_compiled)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
