"""Every attention backend against a mask written down from first principles, on one rank and cut over context-parallel
ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_brorl.policy.cpu.attention import attend_on_cpu
from nemo_brorl.policy.model.attention_flex import attend_with_flex, mask_mod
from nemo_brorl.policy.model.attention_sdpa import attend_by_blocks
from nemo_brorl.policy.rows.packed_rows import PackedSegment, Response, Row
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.policy.rows.row_layout import RowSettings

CPU = torch.device("cpu")
PROMPTS = (7, 5, 3, 4)
RESPONSES = ((2, 5, 2, 1, 4, 40), (30, 31, 2), (6,), (1, 0))
NUM_HEADS, NUM_KV, HEAD_SIZE = 4, 2, 8
NUM_IDS = 1 + sum(PROMPTS) + sum(map(sum, RESPONSES))  # 0 is padding


@dataclass(frozen=True)
class Token:
    """Where a token stands: response -1 is the prompt; the only response of a prompt forms a document with it."""

    segment: int
    response: int
    place: int


def make_segments() -> tuple[list[PackedSegment], dict[int, Token]]:
    """Every token has an id of its own, by which it is found again in a row."""
    segments, tokens, next_id = [], {}, 1
    for number, (prompt_length, lengths) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        parts = []
        for response, length in enumerate((prompt_length, *lengths)):
            ids = np.arange(next_id, next_id + length, dtype=np.int32)
            tokens |= {int(token_id): Token(number, response - 1, place) for place, token_id in enumerate(ids)}
            next_id += length
            parts.append(ids)
        responses = tuple(
            Response(number, i, ids, np.zeros(len(ids), np.float32), 0.0, True) for i, ids in enumerate(parts[1:])
        )
        segments.append(PackedSegment(parts[0], responses))
    return segments, tokens


def sees(query: Token, key: Token) -> bool:
    if query.segment != key.segment:
        return False
    if key.response == -1:
        return query.response != -1 or key.place <= query.place
    return query.response == key.response and key.place <= query.place


def rows_of(context_size: int) -> list[Row]:
    segments, _ = make_segments()
    return [
        build_row(segments, 1.0, RowSettings(CPU, 4, rank, context_size, with_sight=True))
        for rank in range(context_size)
    ]


def context_ids(rows: list[Row], row: Row) -> Tensor:
    """Token ids [C] of the context, as gathering over the ranks would give them."""
    if row.packing.num_cut == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.cat([other.token_ids[0, : other.packing.num_cut] for other in rows])[row.packing.context_order]


@pytest.mark.parametrize("context_size", [1, 2, 3])
def test_the_mask_lets_every_token_see_its_prompt_and_itself_once(context_size: int) -> None:
    _, tokens = make_segments()
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
    _, tokens = make_segments()
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


@pytest.mark.parametrize("context_size", [1, 2, 3])
@pytest.mark.parametrize("backend", [attend_on_cpu, attend_by_blocks], ids=["cpu", "sdpa"])
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
    assert output.dtype == torch.bfloat16
    expected = reference(*(part.float() for part in parts))[1:]
    torch.testing.assert_close(output.float(), expected, atol=0, rtol=2**-8)  # rounded once, at the end
