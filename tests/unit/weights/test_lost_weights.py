"""Weights of engines that die while a session samples: with a copy of the published ones, and without."""

from __future__ import annotations

import pytest

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.types import Period
from nemo_brorl.weights.broadcast import PublishedWeights
from nemo_brorl.weights.incoming import LoadReport
from nemo_brorl.weights.receivers import WeightReceivers
from tests.support.fake_engines import FakeEngines, finish, requests_of, session_of


def test_a_replacement_loads_the_published_weights() -> None:
    engines = FakeEngines()
    session = session_of(engines)
    engines.handles[0].published = PublishedWeights((), ("one", "two"), version=3)
    session.submit(requests_of(6))
    engines.actor().die()
    chunks = finish(engines, session)
    assert engines.actor().calls[0].args == ((), 3, "one", "two")
    assert {chunk.version for chunk in chunks} == {3}


def without_a_copy(engines: FakeEngines) -> FakeEngines:
    """Version 3 was published by a transport that keeps no copy."""
    for handle in engines.handles:
        handle.wait()
        handle.published = PublishedWeights((), None, version=3)
    return engines


def test_without_a_copy_of_the_weights_an_engine_that_died_samples_again_after_a_publication() -> None:
    engines = without_a_copy(FakeEngines(2, dies_at=["generate", ""]))
    session = session_of(engines)
    session.submit(requests_of(6))
    assert {chunk.engine for chunk in finish(engines, session)} == {1}
    assert [handle.lacks_weights for handle in engines.handles] == [True, False]
    WeightReceivers(engines.handles, 30.0, 2, "cuda_ipc", engines.transport).load_weights([], [], version=3)
    assert [handle.lacks_weights for handle in engines.handles] == [False, False]
    session.submit(requests_of(6))
    assert {chunk.engine for chunk in finish(engines, session)} == {0, 1}


def test_an_engine_that_gets_the_weights_again_samples_in_the_same_session() -> None:
    engines = without_a_copy(FakeEngines(1, dies_at=["generate"]))

    def restore_weights() -> None:
        lacking = [handle for handle in engines.handles if handle.lacks_weights and handle.starting is None]
        if lacking:
            WeightReceivers(lacking, 30.0, 1, "cuda_ipc", engines.transport).load_weights([], [], version=3)

    session = session_of(engines, restore_weights=restore_weights)
    session.submit(requests_of(6))
    assert len(finish(engines, session)) == 6
    assert engines.handles[0].num_started == 2


def test_without_a_copy_of_the_weights_the_last_engine_that_dies_ends_the_run() -> None:
    engines = without_a_copy(FakeEngines(2, dies_at=["generate", "generate"]))
    session = session_of(engines)
    session.submit(requests_of(6))
    with pytest.raises(GenerationError, match="all engines with the current weights were lost.*Causes: engine 0: "):
        session.poll()


def test_engines_that_loaded_weights_are_spans_of_the_timeline() -> None:
    engines = FakeEngines(2)
    for handle in engines.handles:
        handle.wait()
        handle.actor.answers["finish_weights"] = LoadReport(3, 1, 4, 7, Period(1001.0, 1001.0, 1001.5))
    timeline = Timeline(now=lambda: 1001.25)
    timeline.begin(1)
    receivers = WeightReceivers(engines.handles, 30.0, 2, "object_store", engines.transport, timeline)
    receivers.load_weights([], [], version=3)
    done = timeline.end()
    assert done is not None
    loads = [span for span in done.spans if span.lane == "weights"]
    assert [(span.process, span.name, span.seconds) for span in loads] == [
        ("engine 0", "load weights", 0.5),
        ("engine 1", "load weights", 0.5),
    ]
