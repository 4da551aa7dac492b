"""Routes from an engine's requests into the arrays of a chunk. Two layers of one expert each, by hand."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from nemo_brorl.generation.chunk_messages import ChunkMeta
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation
from nemo_brorl.generation.routes import RowRoutes, as_routes, packed_routes
from nemo_brorl.scoring.response_arrays import select_responses, with_observations
from nemo_brorl.types import ChunkArrays, PartialRollouts, Prompt, RolloutRequest, Routes, Sampling

PROMPT = Prompt("a", "task", "verifier", (7, 8), {})
REQUEST = RolloutRequest(PROMPT, 0, 2, 100, Sampling(1.0, 1.0, 5))
NOT_KNOWN = [-1, -1]


def routes(*numbers: int) -> Routes:
    """[T, 2 layers, 1] of tokens that went to experts `number` and `number + 1`."""
    both = np.array([numbers, numbers], np.int8).T + np.array([0, 1], np.int8)
    return both[:, :, None]


def sampled(tokens: list[int], computed: Routes | None, has_ended: bool = True) -> Continuation:
    return Continuation(tokens, [-0.5] * len(tokens), [6], has_ended, is_stopped=has_ended, routes=computed)


def arrays_of(task: ChunkTask) -> tuple[ChunkArrays, ChunkArrays | None]:
    meta, arrays, partial = task.reply(6, vocab_size=10)
    assert isinstance(meta, ChunkMeta)
    assert arrays is not None
    return arrays, partial


def both(found: Routes | None) -> list[list[int]]:
    assert found is not None
    listed: list[list[int]] = found[:, :, 0].tolist()
    return listed


def test_the_last_token_of_a_response_has_no_route_and_the_prompts_come_once() -> None:
    task = ChunkTask(1, REQUEST, None, Future())
    task.put(0, sampled([1, 2, 3], routes(10, 20, 30, 40)))
    task.put(1, sampled([4], routes(10, 20)))
    arrays, _ = arrays_of(task)
    assert both(arrays.prompt_routes) == [[10, 11], [20, 21]]
    assert both(arrays.routes) == [[30, 31], [40, 41], NOT_KNOWN, NOT_KNOWN]


def test_a_resumed_token_keeps_its_route_and_the_last_one_before_the_cut_gets_one() -> None:
    """Two tokens were sampled elsewhere, of which the second had not been computed; this engine computes both again,
    by newer weights."""
    earlier = ChunkArrays(
        token_ids=np.array([1, 2], np.int32),
        log_probs=np.array([-1.0, -1.0], np.float32),
        offsets=np.array([0, 2, 2]),
        routes=np.concatenate([routes(30), np.full((1, 2, 1), -1, np.int8)]),
        prompt_routes=routes(10, 20),
    )
    partial = PartialRollouts(np.array([0, 1], np.int32), np.array([2, 0], np.int32), version=3, data=None)
    task = ChunkTask(1, replace(REQUEST, partial=partial), earlier, Future())
    task.put(0, sampled([3], routes(50, 60, 70, 80), has_ended=False))
    task.put(1, sampled([4], routes(50, 60)))
    ended, cut = arrays_of(task)
    assert both(ended.prompt_routes) == [[10, 11], [20, 21]]
    assert both(ended.routes) == [NOT_KNOWN]
    assert cut is not None
    assert both(cut.routes) == [[30, 31], [80, 81], NOT_KNOWN]


def test_what_an_engine_without_routes_goes_on_with_has_none() -> None:
    task = ChunkTask(1, REQUEST, None, Future())
    task.put(0, sampled([1], None))
    task.put(1, sampled([2], None))
    arrays, _ = arrays_of(task)
    assert arrays.routes is arrays.prompt_routes is None
    known = RowRoutes(earlier=routes(30), computed=None)
    assert both(packed_routes([known], [0, 3], 2)) == [[30, 31], NOT_KNOWN, NOT_KNOWN]


def test_an_observation_has_no_route() -> None:
    offsets = np.array([0, 2, 3])
    data = ChunkArrays(np.array([1, 2, 3], np.int32), np.zeros(3, np.float32), offsets, routes=routes(30, 40, 50))
    longer = with_observations(data, [[8], []])
    assert both(longer.routes) == [[30, 31], [40, 41], NOT_KNOWN, [50, 51]]
    assert both(select_responses(data, [1]).routes) == [[50, 51]]


def test_experts_fit_in_a_byte_beside_the_number_of_an_unknown_one_up_to_128() -> None:
    from_vllm = np.array([[[127]], [[128]]], np.uint8)
    assert as_routes(from_vllm[:1], 128).dtype == np.int8
    wide = as_routes(from_vllm, 129)
    assert wide.dtype == np.int16
    assert wide.ravel().tolist() == [127, 128]
