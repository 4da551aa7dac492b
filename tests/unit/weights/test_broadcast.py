"""One weight update to engines of which some refuse, die or are late."""

from __future__ import annotations

import pytest
from ray.exceptions import RayTaskError

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import StreamedBucket
from nemo_brorl.weights.broadcast import WeightBroadcast
from nemo_brorl.weights.receivers import WeightReceivers
from tests.support.fake_engines import FakeEngines


def buckets(*names: str) -> list[StreamedBucket]:
    return [StreamedBucket(name, 4) for name in names]


def broadcast_to(engines: FakeEngines, is_collective: bool = False) -> WeightBroadcast:
    return WeightBroadcast(engines.handles, 30.0, engines.transport, is_collective)


def test_a_refused_manifest_names_the_engine() -> None:
    engines = FakeEngines(2)
    refusal = RayTaskError("begin_weights", "", WeightSyncError("weight stream lacks embed"))
    engines.actor(1).answers["begin_weights"] = refusal
    with pytest.raises(WeightSyncError, match="engine 1: weight stream lacks embed"):
        broadcast_to(engines).announce([])


def test_an_engine_that_dies_while_loading_does_not_fail_the_update() -> None:
    engines = FakeEngines(2, dies_at=["", "receive_weights"])
    broadcast = broadcast_to(engines)
    broadcast.announce([])
    assert broadcast.send(buckets("one", "two", "three")) == ("one", "two", "three")
    broadcast.finish(2)
    assert set(broadcast.lost) == {1}
    assert [call.args for call in engines.actor(0).calls if call.method == "receive_weights"] == [
        ("one",),
        ("two",),
        ("three",),
    ]


def test_an_engine_that_is_late_while_loading_does_not_fail_the_update() -> None:
    engines = FakeEngines(2)
    engines.actor(1).is_stuck = True
    broadcast = broadcast_to(engines)
    broadcast.send(buckets("one", "two"))
    assert engines.transport.time_s == 100.0 + 30.0, "it is waited for once"
    assert set(broadcast.lost) == {1}


def test_in_a_collective_an_engine_that_dies_while_loading_is_named_with_how_far_all_are() -> None:
    engines = FakeEngines(2, dies_at=["", "receive_weights"])
    with pytest.raises(
        ReceiverLostError, match=r"engine 1 is gone: it has confirmed 0 of 1 buckets sent \(engine 0: 0\)"
    ):
        broadcast_to(engines, is_collective=True).send(buckets("one", "two"))


def test_engines_that_got_different_bytes_fail_the_update() -> None:
    engines = FakeEngines(2)
    engines.actor(1).checksum = 8
    with pytest.raises(WeightSyncError, match="hold different weights: engine 0 .*checksum=7.*engine 1 .*checksum=8"):
        broadcast_to(engines).finish(2)


def test_an_update_that_arrives_in_part_replaces_all_engines_and_keeps_the_weights_before() -> None:
    engines = FakeEngines(2)
    receivers = WeightReceivers(engines.handles, 30.0, 2, "object_store", engines.transport)
    receivers.load_weights([], buckets("old"), version=1)
    engines.actor(1).checksum = 8
    with pytest.raises(WeightSyncError, match="different weights"):
        receivers.load_weights([], buckets("new"), version=2)
    assert [handle.version for handle in engines.handles] == [1, 1]
    assert [engines.actor(index).calls[0].args for index in (0, 1)] == [((), 1, "old")] * 2


def test_an_engine_that_dies_while_loading_is_replaced_by_one_that_loads_the_whole_update() -> None:
    engines = FakeEngines(2, dies_at=["", "receive_weights"])
    receivers = WeightReceivers(engines.handles, 30.0, 2, "object_store", engines.transport)
    receivers.load_weights([], buckets("one", "two"), version=4)
    assert receivers.weight_receivers() == ("engine 0", "engine 1 (number 2)")
    assert engines.actor(1).calls[0].args == ((), 4, "one", "two")
    assert [handle.version for handle in engines.handles] == [4, 4]
