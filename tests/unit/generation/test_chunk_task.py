"""What one chunk asks of vLLM, and what it answers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkMeta, no_arrays
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation, rollout_seed
from nemo_brorl.types import ChunkArrays, PartialRollouts, Prompt, RolloutRequest, Sampling, TurnRecord

PROMPT = Prompt("a", "task", "verifier", (7, 8), {})
REQUEST = RolloutRequest(PROMPT, 4, 3, 100, Sampling(1.0, 1.0, 5))
RESUMED_ARRAYS = ChunkArrays(
    np.array([1, 2, 3], np.int32), np.array([-0.1, -0.2, -0.3], np.float32), np.array([0, 2, 2, 3])
)
PARTIAL = PartialRollouts(np.array([1, 5, 9], np.int32), np.array([2, 0, 1], np.int32), version=3, data=None)
RESUMED = replace(REQUEST, first_index=1, partial=PARTIAL)


def task_of(request: RolloutRequest, partial: ChunkArrays | None = None) -> ChunkTask:
    return ChunkTask(12, request, partial, Future())


def sampled(tokens: list[int], version: int = 6, has_ended: bool = True) -> Continuation:
    return Continuation(tokens, [-0.5] * len(tokens), [version] if tokens else [], has_ended, is_stopped=has_ended)


def meta_of(task: ChunkTask, version: int = 6) -> tuple[ChunkMeta, ChunkArrays, ChunkArrays | None]:
    meta, arrays, partial = task.reply(version, vocab_size=10)
    assert isinstance(meta, ChunkMeta)
    assert arrays is not None
    return meta, arrays, partial


def test_a_rollout_is_drawn_with_the_seed_of_its_place_in_the_group() -> None:
    tasks = list(task_of(REQUEST).rollouts())
    assert [task.seed for task in tasks] == [104, 105, 106]
    assert all(task.token_ids == [7, 8] and task.max_tokens == 5 for task in tasks)


def test_a_resumed_rollout_goes_on_from_its_beginning_with_another_seed() -> None:
    tasks = list(task_of(RESUMED, RESUMED_ARRAYS).rollouts())
    assert [task.token_ids for task in tasks] == [[7, 8, 1, 2], [7, 8], [7, 8, 3]]
    assert [task.max_tokens for task in tasks] == [3, 5, 4]
    assert tasks[0].seed not in (101, rollout_seed(100, 1, 1)), "nor that of a continuation from elsewhere"
    assert tasks[1].seed == 105, "nothing was sampled of it: it begins as it would have"
    assert all(0 <= task.seed < 2**63 for task in tasks)


def test_a_chunk_whose_partial_rollouts_are_gone_starts_from_the_prompt() -> None:
    assert [task.token_ids for task in task_of(RESUMED).rollouts()] == [[7, 8]] * 3


def test_a_resumed_response_is_its_beginning_and_its_continuation() -> None:
    task = task_of(RESUMED, RESUMED_ARRAYS)
    for row, tokens in enumerate([[4], [5, 6], [9]]):
        task.put(row, sampled(tokens))
    meta, arrays, partial = meta_of(task)
    assert arrays.token_ids.tolist() == [1, 2, 4, 5, 6, 3, 9]
    assert arrays.log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.5, -0.5, -0.5, -0.3, -0.5])
    assert meta.lengths.tolist() == [3, 2, 2]
    assert meta.indices.tolist() == [1, 5, 9]
    assert (meta.version, meta.newest_version) == (3, 6)
    assert meta.partial is None
    assert partial is None
    assert task.num_sampled == 4, "the first tokens were sampled elsewhere"


def test_a_cut_chunk_parts_what_has_ended_from_what_has_not() -> None:
    task = task_of(REQUEST)
    task.put(1, sampled([1, 2]))
    assert not task.is_finished
    assert task.missing() == [0, 2]
    task.put(0, sampled([3], version=5, has_ended=False))
    task.put(2, sampled([], has_ended=False))
    meta, arrays, partial = meta_of(task)
    assert meta.indices.tolist() == [5]
    assert meta.lengths.tolist() == [2]
    assert meta.is_stopped.tolist() == [True]
    assert (meta.version, meta.newest_version) == (6, 6)
    assert arrays.token_ids.tolist() == [1, 2]
    assert meta.partial is not None
    assert partial is not None
    assert meta.partial.indices.tolist() == [4, 6]
    assert meta.partial.lengths.tolist() == [1, 0]
    assert meta.partial.version == 5
    assert partial.token_ids.tolist() == [3]
    assert partial.offsets.tolist() == [0, 1, 1]


def test_a_rollout_cut_twice_keeps_its_first_tokens_and_their_version() -> None:
    task = task_of(RESUMED, RESUMED_ARRAYS)
    task.put(0, sampled([4], has_ended=False))
    task.put(1, sampled([], has_ended=False))
    task.put(2, sampled([9, 9]))
    meta, arrays, partial = meta_of(task)
    assert arrays.token_ids.tolist() == [3, 9, 9]
    assert partial is not None
    assert partial.token_ids.tolist() == [1, 2, 4]
    assert meta.partial is not None
    assert meta.partial.version == 3


def test_what_makes_no_sense_is_a_failure_of_the_engine() -> None:
    for tokens, log_probs in (
        ([11], [-1.0]),
        ([-1], [-1.0]),
        ([1], [float("nan")]),
        ([1], [float("-inf")]),
        ([1], [0.1]),
        ([], []),
    ):
        task = task_of(replace(REQUEST, num_rollouts=1))
        task.put(0, Continuation(tokens, log_probs, [6], has_ended=True, is_stopped=True))
        failure, arrays, _ = task.reply(6, vocab_size=10)
        assert isinstance(failure, ChunkFailure), tokens
        assert failure.is_garbage
        assert arrays is None


def test_no_arrays_are_responses_without_tokens() -> None:
    assert no_arrays(3).offsets.tolist() == [0, 0, 0, 0]


TURNS = TurnRecord(np.array([[0.5], [0.25]], np.float32), np.array([[False], [True]]))
# Two trajectories after one turn: 1 2 sampled and 8 9 said by the environment; 3 sampled and 8 said, 4 sampled since.
SECOND_TURN = replace(
    REQUEST,
    num_rollouts=2,
    sampling=Sampling(1.0, 1.0, 9, max_turn_tokens=3),
    partial=PartialRollouts(np.array([1, 5], np.int32), np.array([4, 3], np.int32), 3, None, turns=TURNS),
)
SECOND_ARRAYS = ChunkArrays(
    np.array([1, 2, 8, 9, 3, 8, 4], np.int32),
    np.array([-0.1, -0.2, 0, 0, -0.3, 0, -0.4], np.float32),
    np.array([0, 4, 7]),
    np.array([1, 1, 0, 0, 1, 0, 1], bool),
)


def test_a_turn_has_its_own_limit_that_counts_what_was_sampled_since_the_observation() -> None:
    tasks = list(task_of(SECOND_TURN, SECOND_ARRAYS).rollouts())
    assert [task.max_tokens for task in tasks] == [3, 2]
    whole = replace(SECOND_TURN, sampling=Sampling(1.0, 1.0, 5, max_turn_tokens=3))
    assert [task.max_tokens for task in task_of(whole, SECOND_ARRAYS).rollouts()] == [1, 2], "the response is full"


def test_a_trajectory_that_goes_on_keeps_its_observations_unsampled_and_its_record_where_it_is_cut() -> None:
    task = task_of(SECOND_TURN, SECOND_ARRAYS)
    task.put(0, sampled([5]))
    task.put(1, sampled([6], has_ended=False))
    meta, arrays, partial = meta_of(task)
    assert arrays.is_sampled is not None and partial is not None and partial.is_sampled is not None
    assert arrays.token_ids.tolist() == [1, 2, 8, 9, 5]
    assert arrays.is_sampled.tolist() == [True, True, False, False, True]
    assert partial.is_sampled.tolist() == [True, False, True, True]
    assert meta.num_sampled is not None and meta.num_sampled.tolist() == [3]
    assert meta.partial is not None and meta.partial.num_sampled is not None and meta.partial.turns is not None
    assert meta.partial.num_sampled.tolist() == [3]
    assert meta.partial.turns.rewards.tolist() == [[0.25]]


def test_a_trajectory_whose_tokens_are_gone_begins_anew_without_a_record() -> None:
    task = task_of(SECOND_TURN)
    task.put(0, sampled([5]))
    task.put(1, sampled([6], has_ended=False))
    meta, arrays, _ = meta_of(task)
    assert arrays.is_sampled is None
    assert meta.partial is not None and meta.partial.turns is None
