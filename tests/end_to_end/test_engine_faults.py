"""Slots, sampling runs and weight broadcasts over real Ray actors that misbehave on purpose; no vLLM."""

from __future__ import annotations

import itertools
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import ray

from nemo_brorl.config.schema import GenerationConfig
from nemo_brorl.core.errors import GenerationError, WeightSyncError
from nemo_brorl.core.object_store import wait_any
from nemo_brorl.generation.engine_handle import EngineSlot, PublishedWeights
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.generation.weights.broadcast import WeightBroadcast
from nemo_brorl.generation.weights.receivers import WeightReceivers
from nemo_brorl.types import EngineStats, Prompt, RolloutChunk, RolloutRequest, Sampling
from tests.support.faulty_engine import FaultyEngine

pytestmark = pytest.mark.usefixtures("cluster")


def slots_of(folder: Path, *faults: str, max_restarts: int = 2, timeout_s: float = 30.0) -> list[EngineSlot]:
    actor = ray.remote(num_cpus=0.1, max_restarts=0, max_task_retries=0)(FaultyEngine)
    return [
        EngineSlot(index, partial(actor.remote, index, str(folder), fault), max_restarts, timeout_s)
        for index, fault in enumerate(faults)
    ]


def requests_of(num_chunks: int) -> list[RolloutRequest]:
    prompt = Prompt("a", "task", "verifier", (1, 2), {})
    return [RolloutRequest(prompt, 4 * i, 4, 7, Sampling(1.0, 1.0, 8)) for i in range(num_chunks)]


def session_of(slots: list[EngineSlot], timeout_s: float = 30.0, max_losses: int = 2) -> VllmSession:
    config = GenerationConfig(timeout_s=timeout_s, max_restarts=max_losses, max_num_seqs=8)
    return VllmSession(slots, ChunkPlacement([], max_rollouts=8), config, itertools.count(), known_versions={0, 3})


def drain(session: VllmSession, num: int) -> list[RolloutChunk]:
    """The next `num` chunks."""
    chunks: list[RolloutChunk] = []
    while len(chunks) < num:
        wait_any(session.pending(), 0.5)
        chunks += session.poll()
    return chunks


def run_all(
    slots: list[EngineSlot], timeout_s: float = 30.0, num_chunks: int = 6, max_losses: int = 2
) -> list[RolloutChunk]:
    session = session_of(slots, timeout_s, max_losses)
    session.submit(requests_of(num_chunks))
    chunks = drain(session, num_chunks)
    assert session.poll() == []
    session.close()
    for slot in slots:
        slot.close()
    return chunks


@pytest.mark.parametrize(
    "fault", ["fail", "die", "answer another", "answer other rollouts", "answer of another version"]
)
def test_a_failing_engine_is_replaced_and_every_chunk_arrives_once(tmp_path: Path, fault: str) -> None:
    chunks = run_all(slots_of(tmp_path, fault, "none"))
    assert sorted(chunk.request.first_index for chunk in chunks) == [0, 4, 8, 12, 16, 20]


def test_a_silent_engine_is_replaced_after_its_time(tmp_path: Path) -> None:
    chunks = run_all(slots_of(tmp_path, "hang", timeout_s=10.0), timeout_s=10.0)
    assert len(chunks) == 6


def test_a_replacement_loads_the_published_weights(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "die")
    slots[0].published = PublishedWeights((), (), version=3)
    chunks = run_all(slots)
    assert {chunk.version for chunk in chunks} == {3}


def test_an_engine_that_keeps_failing_ends_the_run_with_its_name_and_reason(tmp_path: Path) -> None:
    with pytest.raises(
        GenerationError, match=r"engine 0 failed 3 times, generation.max_restarts=2; last: RuntimeError: broken kernel"
    ):
        run_all(slots_of(tmp_path, "always fail", max_restarts=2))


@pytest.mark.parametrize(("fault", "by_engine"), [("slow", [0, 0, 1, 1, 1, 1]), ("slow and keeps", [0, 0, 0, 1, 1, 1])])
def test_an_idle_engine_takes_over_what_does_not_fit_into_the_batch_of_another(
    tmp_path: Path, fault: str, by_engine: list[int]
) -> None:
    """Each is given three chunks of four for a batch of eight."""
    slots = slots_of(tmp_path, fault, "none")
    for slot in slots:
        slot.wait()
    session = session_of(slots)
    session.submit(requests_of(6))
    chunks = drain(session, by_engine.count(1))
    session.cut(["a"])
    chunks += drain(session, by_engine.count(0))
    session.close()
    assert sorted(chunk.request.first_index for chunk in chunks) == [0, 4, 8, 12, 16, 20]
    assert sorted(chunk.engine for chunk in chunks) == by_engine


def test_a_chunk_that_was_cut_comes_back_also_when_its_engine_dies(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "slow and dies when cut")
    slots[0].wait()
    session = session_of(slots)
    session.submit(requests_of(6))
    session.cut(["a"])
    chunks = drain(session, 6)
    assert sorted(chunk.request.first_index for chunk in chunks) == [0, 4, 8, 12, 16, 20]
    assert all(chunk.unfinished is not None and len(chunk.unfinished.indices) == 4 for chunk in chunks)
    session.close()


def test_an_engine_that_somebody_else_replaced_gets_its_chunks_again(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "slow", "none")
    for slot in slots:
        slot.wait()
    session = session_of(slots)
    session.submit(requests_of(2))
    slots[0].replace("it held too much memory", is_fault=False)
    assert len(drain(session, 2)) == 2
    session.close()


def test_slots_of_ended_rollouts_are_filled_before_their_chunk_is_done(tmp_path: Path) -> None:
    """Of six chunks of four, three are given to an engine with a batch of eight. When three rollouts of the first have
    ended, five of two chunks are left beside the third: nine; with a batch of nine there is room for another."""
    slots = slots_of(tmp_path, "slow and tells")
    slots[0].wait()
    placement = ChunkPlacement([], max_rollouts=9)
    session = VllmSession(slots, placement, GenerationConfig(max_num_seqs=9), itertools.count(), known_versions={0})
    session.submit(requests_of(6))
    assert placement.num_waiting == 3
    deadline = time.monotonic() + 30
    while placement.num_waiting == 3 and time.monotonic() < deadline:
        wait_any(session.pending(), 0.5)
        assert session.poll() == []
    assert placement.num_waiting == 2
    session.cut(["a"])
    assert sorted(chunk.request.first_index for chunk in drain(session, 6)) == [0, 4, 8, 12, 16, 20]
    session.close()


def test_an_engine_that_dies_idle_is_replaced_at_once(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "none")
    run = slots[0].wait()
    session = session_of(slots)
    session.submit(requests_of(2))
    assert len(drain(session, 2)) == 2
    os.kill(run.process, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while slots[0].num_started == 1 and time.monotonic() < deadline:
        wait_any(session.pending(), 0.5)
        assert session.poll() == []
    assert slots[0].num_started == 2
    session.submit(requests_of(2))
    assert len(drain(session, 2)) == 2
    session.close()


def without_a_copy(slots: list[EngineSlot]) -> list[EngineSlot]:
    """Version 3 was published under generation.keep_published=false."""
    for slot in slots:
        slot.wait()
        slot.published = PublishedWeights((), None, version=3)
    return slots


def test_without_a_copy_of_the_weights_an_engine_that_died_samples_again_after_a_publication(tmp_path: Path) -> None:
    slots = without_a_copy(slots_of(tmp_path, "die", "none"))
    session = session_of(slots)
    session.submit(requests_of(6))
    chunks = drain(session, 6)
    assert {chunk.engine for chunk in chunks} == {1}
    assert [slot.lacks_weights for slot in slots] == [True, False]
    slots[0].wait()
    WeightReceivers(slots, 30.0, 2, is_collective=False).load([], [], version=3)
    assert [slot.lacks_weights for slot in slots] == [False, False]
    session.submit(requests_of(6))
    assert {chunk.engine for chunk in drain(session, 6)} == {0, 1}
    session.close()


def test_without_a_copy_of_the_weights_the_last_engine_that_dies_ends_the_run(tmp_path: Path) -> None:
    slots = without_a_copy(slots_of(tmp_path, "die", "die"))
    session = session_of(slots)
    session.submit(requests_of(6))
    with pytest.raises(GenerationError, match="no engine is left that has the published weights.*Lost to: engine 0: "):
        drain(session, 6)
    for slot in slots:
        slot.close()


def test_a_chunk_that_no_engine_survives_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        GenerationError, match=r"prompt a, rollouts from .*, was lost with 2 engines, generation.max_restarts=1; last: "
    ):
        run_all(slots_of(tmp_path, "always fail", "always fail", max_restarts=9), max_losses=1)


def test_a_chunk_forgives_the_failures_before_it(tmp_path: Path) -> None:
    slot = slots_of(tmp_path, "none", max_restarts=1)[0]
    for _ in range(3):
        slot.replace("test")
        slot.note_chunk()
    slot.replace("test")
    with pytest.raises(GenerationError, match="engine 0 failed 2 times"):
        slot.replace("test")


def test_garbage_is_counted_apart(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "answer other rollouts", "die")
    run_all(slots)
    counts = [slot.count(EngineStats(slot.index, 0, 0, 0, 0, 0, 0)) for slot in slots]
    assert all(stats.num_restarts >= 1 for stats in counts)  # more where the machine is too slow to start them in time
    assert [stats.num_garbage for stats in counts] == [1, 0]
    assert all(stats.num_resampled >= 4 for stats in counts)


def test_an_engine_that_does_not_start_is_named(tmp_path: Path) -> None:
    actor = ray.remote(num_cpus=0.1, max_restarts=0)(FaultyEngine)
    slot = EngineSlot(4, partial(actor.remote, 4, None, "none"), 2, 30.0)  # None is no folder
    with pytest.raises(GenerationError, match=r"engine 4 did not start: .*TypeError"):
        slot.wait()


def test_a_refused_manifest_names_the_engine(tmp_path: Path) -> None:
    slots = slots_of(tmp_path, "none", "refuse")
    with pytest.raises(WeightSyncError, match="engine 1: weight stream lacks embed"):
        WeightBroadcast(slots, 30.0).announce([])


def test_an_engine_that_dies_while_loading_does_not_fail_the_update(tmp_path: Path) -> None:
    broadcast = WeightBroadcast(slots_of(tmp_path, "none", "die loading"), 30.0)
    broadcast.announce([])
    buckets = [ray.put("one"), ray.put("two"), ray.put("three")]
    assert broadcast.send(iter(buckets)) == tuple(buckets)
    broadcast.finish(2)
    assert set(broadcast.lost) == {1}


def test_engines_that_got_different_bytes_fail_the_update(tmp_path: Path) -> None:
    broadcast = WeightBroadcast(slots_of(tmp_path, "none", "differ"), 30.0)
    with pytest.raises(WeightSyncError, match="engines hold different weights: engine 0 .*engine 1"):
        broadcast.finish(2)


def test_counters_go_on_when_an_engine_is_replaced(tmp_path: Path) -> None:
    slot = slots_of(tmp_path, "none")[0]
    snapshot = EngineStats(0, 1, 100, 90, 0, 50, 5)
    slot.count(snapshot)
    slot.replace("test")
    assert slot.count(EngineStats(0, 1, 10, 9, 0, 5, 1)) == EngineStats(0, 1, 110, 99, 0, 55, 6, num_restarts=1)
    slot.replace("test again")
    assert slot.count(EngineStats(0, 1, 1, 1, 0, 1, 1)).generated_samples == 7
    slot.close()
