"""Sessions and weight updates over real Ray actors that die and hang on purpose; no vLLM. All other faults are unit
tests, over fake actors."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
import ray

from nemo_brorl.cluster.actor_transport import RayTransport
from nemo_brorl.cluster.object_store import wait_any
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.generation.engine_handle import EngineHandle
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.types import RolloutChunk, StreamedBucket
from nemo_brorl.weights.broadcast import PublishedWeights
from nemo_brorl.weights.receivers import WeightReceivers
from tests.support.fake_engines import places, requests_of
from tests.support.faulty_engine import FaultyEngine

pytestmark = pytest.mark.usefixtures("cluster")

TRANSPORT = RayTransport()
ALL_PLACES = [0, 4, 8, 12, 16, 20]


def handles_of(folder: Path, *faults: str, timeout_s: float = 30.0) -> list[EngineHandle]:
    actor = ray.remote(num_cpus=0.1, max_restarts=0, max_task_retries=0)(FaultyEngine)
    handles = []
    for index, fault in enumerate(faults):
        start_actor = partial(actor.remote, index, str(folder), fault)
        handles.append(EngineHandle(index, start_actor, 2, timeout_s, TRANSPORT))
    return handles


def run_all(handles: list[EngineHandle], timeout_s: float = 30.0) -> list[RolloutChunk]:
    """Six chunks of four."""
    config = GenerationConfig(timeout_s=timeout_s, max_restarts=2, max_num_seqs=8)
    placement = ChunkPlacement([], max_rollouts=8)
    session = VllmSession(handles, placement, config, itertools.count(), {0, 3}, TRANSPORT, lambda: None)
    session.submit(requests_of(6))
    chunks: list[RolloutChunk] = []
    while len(chunks) < 6:
        wait_any(session.pending(), 0.5)
        chunks += session.poll()
    assert session.poll() == []
    session.close()
    for handle in handles:
        handle.close()
    return chunks


def test_an_engine_that_dies_with_chunks_is_replaced_with_the_published_weights(tmp_path: Path) -> None:
    handles = handles_of(tmp_path, "die")
    handles[0].published = PublishedWeights((), (ray.put("bucket"),), version=3)
    chunks = run_all(handles)
    assert places(chunks) == ALL_PLACES
    assert {chunk.version for chunk in chunks} == {3}
    assert handles[0].num_started == 2


def test_a_silent_engine_is_replaced_after_its_time(tmp_path: Path) -> None:
    handles = handles_of(tmp_path, "hang", timeout_s=25.0)  # to start in: on a busy machine over 10 s
    assert places(run_all(handles, timeout_s=8.0)) == ALL_PLACES
    assert handles[0].num_started == 2


def test_an_engine_that_dies_while_it_loads_weights_is_replaced_with_the_whole_update(tmp_path: Path) -> None:
    handles = handles_of(tmp_path, "none", "die loading")
    receivers = WeightReceivers(handles, 30.0, 2, "object_store", TRANSPORT)
    receivers.load_weights([], [StreamedBucket(ray.put(name), 4) for name in ("one", "two", "three")], version=3)
    assert receivers.weight_receivers() == ("engine 0", "engine 1 (number 2)")
    chunks = run_all(handles)
    assert places(chunks) == ALL_PLACES
    assert {chunk.version for chunk in chunks} == {3}
