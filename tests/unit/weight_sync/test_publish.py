"""publish on fakes of the two ports."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from nemo_brorl.errors import WeightSyncError
from nemo_brorl.types import TensorInfo
from nemo_brorl.weight_sync.publish import publish

MANIFEST = [TensorInfo("embed", (4, 2), "float32"), TensorInfo("norm", (3,), "bfloat16")]


class FakePolicy:
    def weight_manifest(self) -> list[TensorInfo]:
        return MANIFEST

    def weight_stream(self) -> Iterator[Any]:
        yield "first bucket"
        yield "second bucket"


class FakeGenerator:
    def __init__(self, is_refusing: bool = False) -> None:
        self.is_refusing = is_refusing
        self.loaded: list[Any] = []
        self.version = 0

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> None:
        if self.is_refusing:
            raise WeightSyncError("engine 0: weight stream lacks embed")
        self.loaded = list(buckets)
        self.version = version


def test_publish_forwards_every_bucket_and_reports_what_moved() -> None:
    generator = FakeGenerator()
    report = publish(FakePolicy(), generator, version=3)
    assert generator.loaded == ["first bucket", "second bucket"]
    assert (generator.version, report.version) == (3, 3)
    assert report.num_tensors == 2
    assert report.num_bytes == 4 * 2 * 4 + 3 * 2
    assert report.seconds >= 0


def test_a_refused_manifest_reaches_the_caller() -> None:
    with pytest.raises(WeightSyncError, match="lacks embed"):
        publish(FakePolicy(), FakeGenerator(is_refusing=True), version=1)
