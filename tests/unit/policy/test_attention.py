"""Every attention backend against a mask written down from first principles, on one rank and cut over context-parallel
ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from nemo_brorl.policy.cpu.attention import attend_on_cpu
from nemo_brorl.policy.model import attention_flash
from nemo_brorl.policy.model.attention_blocks import attend_by_blocks
from nemo_brorl.policy.model.attention_flash import AttentionSequences, FlashKernel, attend_with_flash
from nemo_brorl.policy.model.attention_flex import attend_with_flex, mask_mod
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Row, RowSettings
from nemo_brorl.policy.rows.row_builder import build_row
from tests.support.attention_kernel import PlainKernel

pytestmark = pytest.mark.numbers

CPU = torch.device("cpu")
# of each packed group the tokens of its prompt, and parts of its responses: which have it, and how many tokens it is
PACKED_GROUPS: tuple[tuple[int, tuple[tuple[str, int], ...]], ...] = (
    (7, (("0", 2), ("1", 5), ("2", 2), ("3", 1), ("4", 4), ("5", 40))),
    (5, (("0", 30), ("1", 31), ("2", 2))),
    (3, (("0", 6),)),
    (4, (("0", 1), ("1", 0))),
    (6, (("01234", 5), ("0", 3), ("1", 3), ("234", 29), ("2", 1), ("3", 9), ("5", 2))),
)
MIN_SHARED_TOKENS = 4
NUM_HEADS, NUM_KV, HEAD_SIZE = 4, 2, 8
NUM_IDS = 1 + sum(prompt + sum(length for _, length in parts) for prompt, parts in PACKED_GROUPS)  # 0 is padding


@dataclass(frozen=True)
class Token:
    """Where a token stands, and in which responses; those of a prompt are in all."""

    packed_group: int
    responses: frozenset[str]
    place: int


def make_packed_groups() -> tuple[list[PackedGroup], dict[int, Token]]:
    """Every token has an id of its own, by which it is found again in a row."""
    packed_groups, tokens, next_id = [], {}, 1
    for number, (prompt_length, parts) in enumerate(PACKED_GROUPS):
        everyone = "".join(sorted(set("".join(names for names, _ in parts))))
        texts: dict[str, list[int]] = {name: [] for name in everyone}
        for names, length in ((everyone, prompt_length), *parts):
            ids = range(next_id, next_id + length)
            next_id += length
            for place, token_id in enumerate(ids, start=len(texts[names[0]])):
                tokens[token_id] = Token(number, frozenset(names), place)
            for name in names:
                texts[name] += ids
        responses = []
        for index, name in enumerate(everyone):
            token_ids = np.array(texts[name][prompt_length:], np.int32)
            responses.append(Response(number, index, token_ids, np.zeros(len(token_ids), np.float32), 0.0, True))
        prompt = np.array(texts["0"][:prompt_length], np.int32)
        packed_groups.append(PackedGroup(prompt, tuple(responses)))
    return packed_groups, tokens


def sees(query: Token, key: Token) -> bool:
    return query.packed_group == key.packed_group and query.responses <= key.responses and key.place <= query.place


def rows_of(context_size: int) -> list[Row]:
    packed_groups, _ = make_packed_groups()
    return [
        build_row(packed_groups, 1.0, RowSettings(CPU, 4, rank, context_size, "flex", MIN_SHARED_TOKENS))
        for rank in range(context_size)
    ]


def context_ids(rows: list[Row], row: Row) -> Tensor:
    """Token ids [C] of the context, as gathering over the ranks would give them."""
    if row.packing.num_cut == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.cat([other.token_ids[0, : other.packing.num_cut] for other in rows])[row.packing.context_order]


@pytest.mark.parametrize("context_size", [1, 2, 3])
def test_the_mask_lets_every_token_see_what_its_responses_have_before_it_once(context_size: int) -> None:
    _, tokens = make_packed_groups()
    rows = rows_of(context_size)
    seen_ids = []
    for row in rows:
        query_ids = row.token_ids[0].tolist()
        key_ids = [*context_ids(rows, row).tolist(), *query_ids]
        queries, keys = torch.arange(len(query_ids))[:, None], torch.arange(len(key_ids))[None]
        zero = torch.tensor(0)
        mask = mask_mod(row.packing.sight)(zero, zero, queries, keys).numpy()
        for query_id, allowed in zip(query_ids, mask, strict=True):
            assert allowed.any()  # a token that sees nothing has no softmax
            if query_id:
                expected = [key_id for key_id in tokens if sees(tokens[query_id], tokens[key_id])]
                assert sorted(np.array(key_ids)[allowed].tolist()) == expected
        seen_ids += [query_id for query_id in query_ids if query_id]
    assert sorted(seen_ids) == sorted(tokens)  # every token is on one rank


def heads() -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of every token id."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(NUM_IDS, num, HEAD_SIZE, generator=generator) for num in (NUM_HEADS, NUM_KV, NUM_KV))  # type: ignore[return-value]


def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One dense softmax over all tokens, in the order of their ids."""
    _, tokens = make_packed_groups()
    allowed = torch.eye(NUM_IDS, dtype=torch.bool)
    for query_id, query_token in tokens.items():
        for key_id, key_token in tokens.items():
            allowed[query_id, key_id] = sees(query_token, key_token)
    key, value = (part.repeat_interleave(NUM_HEADS // NUM_KV, 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * 0.3
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), value)


def attend(backend: object, context_size: int, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Outputs in the order of token ids, put together from all ranks; keys and values are looked up instead of sent."""
    rows = rows_of(context_size)
    output = torch.zeros_like(parts[0])
    for row in rows:
        if backend is not attend_with_flex:
            row.packing.sight = None
        ids = row.token_ids[0]
        lookup = context_ids(rows, row)
        context = (parts[1][lookup], parts[2][lookup]) if len(lookup) else None
        mine = backend(*(part[ids] for part in parts), context, row.packing, 0.3)  # type: ignore[operator]
        output = output.index_put((ids[ids > 0],), mine[ids > 0])
    return output[1:]


def flash(*arguments: Any) -> Tensor:
    """The algebra of the GPU's flash backend around a kernel in plain torch."""
    return attend_with_flash(*arguments, kernel=PlainKernel())


@pytest.mark.parametrize("context_size", [1, 2, 3])
@pytest.mark.parametrize("backend", [attend_on_cpu, attend_by_blocks, flash], ids=["cpu", "sdpa", "flash"])
def test_outputs_and_gradients_are_those_of_the_dense_softmax(backend: object, context_size: int) -> None:
    parts, expected_parts = (tuple(part.requires_grad_() for part in heads()) for _ in range(2))
    output, expected = attend(backend, context_size, parts), reference(*expected_parts)[1:]
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    output.backward(grad)
    expected.backward(grad)
    for part, expected_part in zip(parts, expected_parts, strict=True):
        torch.testing.assert_close(part.grad, expected_part.grad, atol=5e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")  # compiled on GPU only
@pytest.mark.parametrize("context_size", [1, 2])
def test_flex_attention_forward_is_that_of_the_dense_softmax(context_size: int) -> None:
    with torch.no_grad():
        torch.testing.assert_close(
            attend(attend_with_flex, context_size, heads()), reference(*heads())[1:], atol=2e-6, rtol=1e-5
        )


def test_bf16_goes_through_fp32_on_cpu() -> None:
    parts = tuple(part.bfloat16() for part in heads())
    output = attend(attend_on_cpu, 1, parts)
    in_fp32 = attend(attend_on_cpu, 1, tuple(part.float() for part in parts))
    assert torch.equal(output, in_fp32.bfloat16()), "rounded once, at the end"


def random_row(generator: np.random.Generator, min_shared_tokens: int) -> Row:
    """Some prompts with up to six responses each, one of which makes a document, padded to a multiple of eight. All
    tokens are the same, so shared segments stand on each other."""
    packed_groups = []
    for number in range(int(generator.integers(1, 4))):
        prompt = np.ones(generator.integers(1, 20), np.int32)
        lengths = generator.choice([1, 3, 3, 9, 14], size=generator.integers(1, 7))
        responses = tuple(
            Response(number, index, np.ones(length, np.int32), np.zeros(length, np.float32), 0.0, True)
            for index, length in enumerate(lengths)
        )
        packed_groups.append(PackedGroup(prompt, responses))
    return build_row(packed_groups, 1.0, RowSettings(CPU, 8, min_shared_tokens=min_shared_tokens))


def outputs_and_gradients(backend: Any, row: Row, parts: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [part.clone().requires_grad_() for part in parts]
    output = backend(*leaves, None, row.packing, 0.3)
    return [output, *torch.autograd.grad(output, leaves, grad)]


@pytest.mark.parametrize("num_kv", [1, 2, 6], ids="{} key-value heads of 6".format)
def test_flash_is_sdpa_over_random_packings(num_kv: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of a prompt are cut into sequences of at most five here, in place of 4,096."""
    monkeypatch.setattr(attention_flash, "_QUERIES", 5)
    for seed in range(30):
        row = random_row(np.random.default_rng(seed), min_shared_tokens=3 * (seed % 2))
        torch.manual_seed(seed)
        num_tokens = row.token_ids.size(1)
        parts = [torch.randn(num_tokens, num, HEAD_SIZE) for num in (6, num_kv, num_kv)]
        grad = torch.randn_like(parts[0])
        found = outputs_and_gradients(flash, row, parts, grad)
        for mine, expected in zip(found, outputs_and_gradients(attend_by_blocks, row, parts, grad), strict=True):
            torch.testing.assert_close(mine, expected, atol=5e-6, rtol=1e-5)


def test_responses_of_many_lengths_are_two_calls_and_no_score_is_computed_twice() -> None:
    """A prompt of 7 with responses of 1 to 5 tokens: 5 · 8 / 2 causal ones of the prompt, and so on; 15 · 7 on it."""
    tokens = [np.ones(length, np.int32) for length in range(1, 6)]
    responses = tuple(Response(0, i, ids, np.zeros(len(ids), np.float32), 0.0, True) for i, ids in enumerate(tokens))
    row = build_row([PackedGroup(np.ones(7, np.int32), responses)], 1.0, RowSettings(CPU))
    kernel = PlainKernel()
    heads_of = [torch.randn(22, num, HEAD_SIZE) for num in (NUM_HEADS, NUM_KV, NUM_KV)]
    attend_with_flash(*heads_of, None, row.packing, 0.3, kernel=kernel)
    assert kernel.num_calls == 2
    assert kernel.num_scores == 7 * 7 + (1 + 4 + 9 + 16 + 25) + 15 * 7


def test_torch_takes_the_arguments_of_the_flash_kernel() -> None:
    """On fake CUDA tensors: names, types and shapes, not numbers."""
    with FakeTensorMode():
        query, key, value = (torch.empty(8, num, 64, device="cuda", dtype=torch.bfloat16) for num in (6, 2, 2))
        fake_ends = torch.empty(3, device="cuda", dtype=torch.int32)
        sequences = AttentionSequences(fake_ends, fake_ends, 5, 5, is_causal=True)
        output, log_sums = FlashKernel().forward(query, key, value, sequences, 0.1)
        grads = FlashKernel().backward(output, query, key, value, output, log_sums, sequences, 0.1)
    assert (output.shape, log_sums.shape, log_sums.dtype) == (query.shape, (6, 8), torch.float32)
    assert [grad.shape for grad in grads] == [query.shape, key.shape, value.shape]
    assert output.device.type == "cuda"
