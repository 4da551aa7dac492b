"""One engine's handle: how long it forgives, what it counts, and what it says."""

from __future__ import annotations

import pytest
from ray.exceptions import RayTaskError

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.engine_handle import EngineReady
from nemo_brorl.types import EngineStats
from tests.support.fake_engines import FakeEngines


def test_a_chunk_forgives_the_failures_before_it() -> None:
    handle = FakeEngines(max_restarts=1).handles[0]
    for _ in range(3):
        handle.replace("test")
        handle.note_chunk()
    handle.replace("test")
    with pytest.raises(GenerationError, match="engine 0 failed 2 times"):
        handle.replace("test")


def test_an_engine_that_does_not_start_is_named() -> None:
    engines = FakeEngines()
    engines.handles[0].starting.resolve(RayTaskError("__init__", "", TypeError("None is no folder")))
    with pytest.raises(GenerationError, match="engine 0 did not start: TypeError: None is no folder"):
        engines.handles[0].wait()


def test_an_engine_that_failed_to_start_is_replaced_without_waiting() -> None:
    engines = FakeEngines()
    handle = engines.handles[0]
    handle.starting.resolve(RayTaskError("__init__", "", TypeError("None is no folder")))
    handle.check_start()
    assert handle.name == "engine 0 (number 2)"
    assert handle.lost_to == "TypeError: None is no folder"
    handle.check_start()
    assert handle.starting is None, "the second one is ready"


def test_an_engine_that_died_while_nothing_was_sampled_is_replaced_when_waited_for() -> None:
    engines = FakeEngines()
    handle = engines.handles[0]
    handle.wait_alive()
    engines.actor().die()
    handle.wait_alive()
    assert handle.name == "engine 0 (number 2)"


def test_the_first_start_has_the_run_s_limit_and_a_restart_the_engine_s() -> None:
    engines = FakeEngines(timeout_s=30.0)
    handle = engines.handles[0]
    handle.starting.is_resolved = False
    with pytest.raises(GenerationError, match="engine 0 did not start: .*no answer within 1800 s"):
        handle.wait_alive(1800.0)
    with pytest.raises(GenerationError, match="no answer within 30 s"):
        handle.wait()


def test_counters_go_on_when_an_engine_is_replaced() -> None:
    handle = FakeEngines().handles[0]
    handle.count(EngineStats(0, 1, 100, 90, 0, 50, 5))
    handle.replace("test")
    assert handle.count(EngineStats(0, 1, 10, 9, 0, 5, 1)) == EngineStats(0, 1, 110, 99, 0, 55, 6, num_restarts=1)
    handle.replace("test again")
    assert handle.count(EngineStats(0, 1, 1, 1, 0, 1, 1)).generated_samples == 7


def test_an_engine_in_anothers_place_gets_a_cache_of_the_same_size() -> None:
    engines = FakeEngines()
    engines.handles[0].note_ready(EngineReady(0, 0, 0.0, 0.0, cache_bytes=700))
    engines.handles[0].replace("test")
    assert engines.cache_bytes == [0, 700]
