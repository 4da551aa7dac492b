"""publish on fakes of the two ports."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights.publication import publish

MANIFEST = [TensorInfo("embed", (4, 2), "float32"), TensorInfo("norm", (3,), "bfloat16")]
NUM_BYTES = 4 * 2 * 4 + 3 * 2


class FakePolicy:
    """Opens a link for receivers it has not seen, if it broadcasts."""

    def __init__(self, weight_transport: str = "object_store") -> None:
        self.weight_transport = weight_transport
        self.joined: tuple[str, ...] = ()

    def weight_manifest(self) -> list[TensorInfo]:
        return MANIFEST

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        if self.weight_transport == "object_store" or receivers == self.joined:
            return None
        self.joined = receivers
        return WeightLink("host", 1, receivers, 1, "gloo", 1.0)

    def weight_stream(self) -> Iterator[StreamedBucket]:
        yield StreamedBucket("first bucket", 32)
        yield StreamedBucket("second bucket", 6)


class FakeGenerator:
    """Fails the first loads with the given errors; whoever was lost comes back under another name."""

    def __init__(self, *errors: WeightSyncError) -> None:
        self.errors = list(errors)
        self.loaded: list[Any] = []
        self.links: list[tuple[str, ...]] = []
        self.num_started = 1
        self.version = 0

    def weight_receivers(self) -> tuple[str, ...]:
        return (f"engine 0 (number {self.num_started})",)

    def join_weight_link(self, link: WeightLink) -> None:
        self.links.append(link.receivers)

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> int:
        if self.errors:
            self.num_started += 1
            raise self.errors.pop(0)
        self.loaded = [bucket.message for bucket in buckets]
        self.version = version
        return 1000


def test_publish_forwards_every_bucket_and_reports_what_moved() -> None:
    generator = FakeGenerator()
    report = publish(FakePolicy(), generator, version=3)
    assert generator.loaded == ["first bucket", "second bucket"]
    assert (generator.version, report.version) == (3, 3)
    assert (report.transport, report.num_tensors, report.num_bytes, report.num_attempts) == (
        "object_store",
        2,
        NUM_BYTES,
        1,
    )
    metrics = report.metrics()
    assert metrics["sync/gib"] == NUM_BYTES / 2**30
    assert metrics["sync/peak_extra_gib"] == 1000 / 2**30
    assert metrics["sync/seconds"] == report.seconds >= 0


def test_a_refused_manifest_reaches_the_caller() -> None:
    with pytest.raises(WeightSyncError, match="lacks embed"):
        publish(FakePolicy(), FakeGenerator(WeightSyncError("engine 0: weight stream lacks embed")), version=1)


def test_engines_join_once_and_again_when_one_is_another() -> None:
    policy, generator = FakePolicy("collective"), FakeGenerator()
    publish(policy, generator, version=1)
    publish(policy, generator, version=2)
    generator.num_started = 5
    publish(policy, generator, version=3)
    assert generator.links == [("engine 0 (number 1)",), ("engine 0 (number 5)",)]


def test_a_publication_that_loses_an_engine_is_made_once_more() -> None:
    policy, generator = FakePolicy("collective"), FakeGenerator(ReceiverLostError("engine 0 is gone"))
    assert publish(policy, generator, version=1).num_attempts == 2
    assert generator.links == [("engine 0 (number 1)",), ("engine 0 (number 2)",)]
    assert generator.version == 1


def test_a_publication_that_loses_engines_twice_fails() -> None:
    lost = ReceiverLostError("engine 0 is late: it has confirmed 5 of 7 buckets sent")
    with pytest.raises(ReceiverLostError, match="confirmed 5 of 7"):
        publish(FakePolicy("collective"), FakeGenerator(lost, lost), version=1)
