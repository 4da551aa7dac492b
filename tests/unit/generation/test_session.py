"""A session's requests through every way an engine can fail, over engines that answer when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ObjectLostError, RayActorError

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkProgress, ReturnedChunk
from nemo_brorl.types import EngineStats, PartialRollouts, RolloutRequest
from tests.support.fake_engines import FakeEngines, finish, places, requests_of, session_of, whole_meta

ALL_PLACES = [0, 4, 8, 12, 16, 20]


def other_rollouts(call_id: int, request: RolloutRequest) -> Any:
    return whole_meta(call_id, replace(request, first_index=request.first_index + 1))


@pytest.mark.parametrize(
    "answer",
    [
        lambda call_id, request: ChunkFailure("RuntimeError: broken kernel"),
        lambda call_id, request: RayActorError(),
        lambda call_id, request: whole_meta(call_id + 1, request),
        other_rollouts,
        lambda call_id, request: whole_meta(call_id, request, version=9),
        lambda call_id, request: ReturnedChunk(),
    ],
    ids=["fails", "dies", "answers another", "answers other rollouts", "of another version", "gives back unasked"],
)
def test_a_failing_engine_is_replaced_and_every_chunk_arrives_once(
    answer: Callable[[int, RolloutRequest], Any],
) -> None:
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(6))
    first = engines.actor(0).waiting("generate")[0]
    first.reference.resolve(answer(first.args[0], first.args[1]))
    assert places(finish(engines, session)) == ALL_PLACES
    assert len(engines.actors[0]) == 2
    assert engines.actors[0][0].is_dead


def test_a_silent_engine_is_replaced_after_its_time() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    engines.transport.time_s += 100.0  # idle engines may be silent
    session.submit(requests_of(6))
    engines.transport.time_s += 29.0
    session.poll()
    assert len(engines.actors[0]) == 1
    engines.transport.time_s += 1.0
    session.poll()
    assert len(engines.actors[0]) == 2
    assert places(finish(engines, session)) == ALL_PLACES


def test_an_engine_that_gets_on_is_not_silent_and_one_that_repeats_itself_is() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    session.submit(requests_of(1))
    for num_ended, num_started in [(1, 1), (2, 1), (2, 2)]:
        engines.transport.time_s += 20.0
        engines.actor().answer("progress", (ChunkProgress(0, 4, num_ended, 1.0),))
        session.poll()
        engines.transport.time_s += 10.0
        session.poll()
        assert len(engines.actors[0]) == num_started


def test_new_tokens_are_progress_of_the_run_long_before_a_chunk_has_ended() -> None:
    """32,768 tokens at 28 ms each take 900 s, in which no response may end."""
    engines = FakeEngines()
    session = session_of(engines)
    session.submit(requests_of(1))
    before = engines.num_signs
    seen = []
    for age in (500.0, 1000.0, 1000.0, 1500.0):
        engines.actor().answer("progress", (ChunkProgress(0, 4, 0, age),))
        assert session.poll() == []
        seen.append(engines.num_signs - before)
    assert seen == [1, 2, 2, 3], "a report that repeats itself is no progress"


def test_an_engine_that_does_not_become_ready_is_replaced_after_its_time() -> None:
    engines = FakeEngines()
    engines.handles[0].starting.is_resolved = False
    session = session_of(engines)
    session.submit(requests_of(1))
    engines.transport.time_s += 30.0
    assert places(finish(engines, session)) == [0]
    assert len(engines.actors[0]) == 2


def test_an_engine_that_keeps_failing_ends_the_run_with_its_name_and_reason() -> None:
    engines = FakeEngines(max_restarts=2)
    session = session_of(engines, max_losses=9)
    session.submit(requests_of(6))
    with pytest.raises(
        GenerationError, match=r"engine 0 failed 3 times, generation.max_restarts=2; last: RuntimeError: broken kernel"
    ):
        for _ in range(3):
            engines.actor().answer("generate", ChunkFailure("RuntimeError: broken kernel"))
            session.poll()


def test_a_chunk_that_no_engine_survives_ends_the_run_with_its_name() -> None:
    engines = FakeEngines(2, max_restarts=9)
    session = session_of(engines, max_losses=1)
    session.submit(requests_of(6))
    with pytest.raises(
        GenerationError, match=r"prompt a, rollouts from .*, was lost with 2 engines, generation.max_restarts=1; last: "
    ):
        for _ in range(4):
            for index in (0, 1):
                engines.actor(index).answer("generate", ChunkFailure("broken"))
            session.poll()


@pytest.mark.parametrize(("gives_back", "by_engine"), [(True, [0, 0, 1, 1, 1, 1]), (False, [0, 0, 0, 1, 1, 1])])
def test_an_idle_engine_takes_over_what_does_not_fit_into_the_batch_of_another(
    gives_back: bool, by_engine: list[int]
) -> None:
    """Each is given three chunks of four for a batch of eight."""
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(6))
    engines.actor(1).finish_chunks()
    chunks = session.poll()
    withdrawals = engines.actor(0).waiting("withdraw")
    assert [call.args for call in withdrawals] == [(4,)], "the third that engine 0 was given"
    withdrawals[0].reference.resolve(gives_back)
    if gives_back:
        engines.actor(0).waiting("generate")[2].reference.resolve(ReturnedChunk())
    chunks += finish(engines, session)
    assert places(chunks) == ALL_PLACES
    assert sorted(chunk.engine for chunk in chunks) == by_engine
    assert len(engines.actors[0]) == 1


def test_an_engine_that_gives_a_chunk_back_and_says_that_it_keeps_it_is_replaced() -> None:
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(6))
    engines.actor(1).finish_chunks()
    chunks = session.poll()
    engines.actor(0).waiting("generate")[2].reference.resolve(ReturnedChunk())
    chunks += session.poll()
    assert len(engines.actors[0]) == 1
    engines.actor(0).answer("withdraw", False)
    chunks += finish(engines, session)
    assert places(chunks) == ALL_PLACES
    assert len(engines.actors[0]) == 2


def test_a_chunk_that_was_cut_comes_back_whether_an_engine_has_it_or_not() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    session.submit(requests_of(6))
    session.cut(["a"])
    session.cut(["a"])
    assert [call.args for call in engines.actor().waiting("cut")] == [([0, 1, 2],)], "once"
    assert places(session.poll()) == [12, 16, 20], "those that waited"
    engines.actor().cut_chunks()
    chunks = session.poll()
    assert places(chunks) == [0, 4, 8]
    assert all(chunk.partial is not None and chunk.partial.data == "partial" for chunk in chunks)


def test_a_chunk_that_was_cut_comes_back_also_when_its_engine_dies() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    session.submit(requests_of(6))
    session.cut(["a"])
    engines.actor().die()
    chunks = session.poll()
    assert places(chunks) == ALL_PLACES
    assert all(chunk.partial is not None and len(chunk.partial.indices) == 4 for chunk in chunks)


def test_partial_rollouts_that_are_gone_are_sampled_again_from_the_prompt() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    resumed = PartialRollouts(np.arange(4, dtype=np.int32), np.ones(4, np.int32), 0, data="tokens")
    session.submit([replace(requests_of(1)[0], partial=resumed)])
    call = engines.actor().waiting("generate")[0]
    assert call.args[2] == "tokens"
    call.reference.resolve(ObjectLostError("00", None, "test"))
    session.poll()
    assert engines.actor().waiting("generate")[0].args[2] is None
    assert places(finish(engines, session)) == [0]
    assert len(engines.actors[0]) == 1


def test_an_engine_that_somebody_else_replaced_gets_its_chunks_again() -> None:
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(2))
    engines.handles[0].replace("it was silent")
    assert places(finish(engines, session)) == [0, 4]


def test_slots_of_ended_rollouts_are_filled_before_their_chunk_is_done() -> None:
    """Of six chunks of four, three are given to an engine with a batch of nine. When three rollouts of the first have
    ended, five of two chunks are left beside the third: nine, and there is room for another."""
    engines = FakeEngines()
    session = session_of(engines, max_num_seqs=9)
    session.submit(requests_of(6))
    assert len(engines.actor().waiting("generate")) == 3
    engines.actor().answer("progress", (ChunkProgress(0, num_started=4, num_ended=3, age=1.0),))
    assert session.poll() == []
    assert len(engines.actor().waiting("generate")) == 4
    assert len(engines.actor().waiting("progress")) == 1, "it is asked again"


def test_an_engine_that_dies_idle_is_replaced_at_once() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    session.submit(requests_of(2))
    assert places(finish(engines, session)) == [0, 4]
    engines.actor().die()
    assert session.poll() == []
    assert engines.handles[0].num_started == 2
    session.submit(requests_of(2))
    assert places(finish(engines, session)) == [0, 4]


def test_garbage_is_counted_apart() -> None:
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(6))
    first = engines.actor(0).waiting("generate")[0]
    first.reference.resolve(other_rollouts(first.args[0], first.args[1]))
    engines.actor(1).die()
    finish(engines, session)
    counts = [handle.count(EngineStats(handle.index, 0, 0, 0, 0, 0, 0)) for handle in engines.handles]
    assert [stats.num_restarts for stats in counts] == [1, 1]
    assert [stats.num_garbage for stats in counts] == [1, 0]
    assert [stats.num_resampled for stats in counts] == [12, 12], "three chunks of four each"


def test_closing_drops_what_is_unfinished_and_replaces_engines_that_do_not_answer() -> None:
    engines = FakeEngines(2)
    session = session_of(engines)
    session.submit(requests_of(6))
    engines.actor(1).die()
    session.close()
    assert not session.is_open
    assert not session.busy_engines()
    assert [call.args for call in engines.actor(0).calls if call.method == "abort"] == [([0, 2, 4],)]
    assert [len(actors) for actors in engines.actors] == [1, 2]
