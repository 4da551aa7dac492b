"""Track one weight sync in an engine: does the stream fit the model, and did every byte arrive in order?

Nothing here touches the model. So everything that can be refused is refused while the engine still works.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from nemo_brorl.core.errors import ModelError, WeightSyncError
from nemo_brorl.core.model_folder import model_object
from nemo_brorl.core.weight_files import stored_tensors
from nemo_brorl.types import WEIGHT_ITEM_BYTES, BucketNotice, Period, TensorInfo, WeightBucket

_TIED_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class LoadReport:
    """Summary of what an engine received in one weight sync."""

    version: int
    num_tensors: int
    num_bytes: int
    checksum: int  # crc32 over the buckets' checksums, in order: equal in all engines
    period: Period | None = field(default=None, compare=False)  # time between the manifest and the last tensor


def read_shapes(model_folder: Path) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor in a model folder. Raises ModelError where the folder is not whole."""
    if not (model_folder / "config.json").is_file():
        raise ModelError(f"{model_folder} is not a model folder: it needs config.json. Pass a Hugging Face folder.")
    return {name: tensor.shape for name, tensor in stored_tensors(model_folder).items()}


def has_tied_head(model_folder: Path) -> bool:
    """Return whether the model's output head shares its weights with the embedding, as config.json says."""
    settings = model_object(model_folder / "config.json")
    return bool(settings.get("tie_word_embeddings", False))


def check_manifest(
    manifest: Sequence[TensorInfo],
    expected: Mapping[str, tuple[int, ...]],
    is_tied: bool,
) -> None:
    """Raise WeightSyncError unless a weight sync's manifest names each tensor of the model exactly once.

    Shapes must be those of the engine's model, and dtypes must be supported. A tied output head is the embedding, so
    either side may list it or leave it out.
    """
    optional = {_TIED_HEAD} if is_tied else set()
    announced = {info.name: info for info in manifest}
    if len(announced) != len(manifest):
        counts = Counter(info.name for info in manifest)
        name, times = counts.most_common(1)[0]
        raise WeightSyncError(f"weight stream names {name} {times} times")
    missing = sorted(expected.keys() - announced.keys() - optional)
    if missing:
        raise WeightSyncError(f"weight stream lacks {missing[0]} ({len(missing)} tensors missing of {len(expected)})")
    unknown = sorted(announced.keys() - expected.keys() - optional)
    if unknown:
        raise WeightSyncError(
            f"weight stream has {unknown[0]}, which the engine's model does not have ({len(unknown)} such tensors)"
        )
    for info in manifest:
        if info.dtype not in WEIGHT_ITEM_BYTES:
            raise WeightSyncError(
                f"weight stream has {info.name} as {info.dtype}; engines load only {', '.join(WEIGHT_ITEM_BYTES)}"
            )
        if info.name in expected and info.shape != expected[info.name]:
            raise WeightSyncError(
                f"weight stream has {info.name} in shape {info.shape}; the engine's model has {expected[info.name]}"
            )


class IncomingWeights:
    """One weight sync in an engine, from its manifest to its last bucket.

    announced ──first bucket──► loading ──last bucket──► whole. Call `accept` before a bucket touches the model. After a
    refusal while loading the model is half old and half new.
    """

    def __init__(self, manifest: Sequence[TensorInfo]) -> None:
        self._manifest = tuple(manifest)
        self._num_tensors = 0
        self._num_bytes = 0
        self._checksum = 0
        self._announced_at = time.time()

    @property
    def has_started(self) -> bool:
        """True once the first bucket of the weight sync has been accepted."""
        return self._num_tensors > 0

    def accept(self, bucket: WeightBucket | BucketNotice) -> None:
        """Count a weight bucket as arrived.

        Raises WeightSyncError when the bucket is not the next part of the manifest, or when its bytes have changed. A
        BucketNotice has no bytes: the engine's workers receive the bytes and compare them with the notice's checksum.
        """
        num_after = self._num_tensors + len(bucket.tensors)
        expected = self._manifest[self._num_tensors : num_after]
        for got, due in zip_longest(bucket.tensors, expected):
            if got != due:
                raise WeightSyncError(
                    f"weight stream is out of order: got {got}, the manifest says {due or 'the stream is over'}"
                )
        if isinstance(bucket, WeightBucket):
            _check_bytes(bucket)
        self._num_tensors = num_after
        self._num_bytes += sum(info.num_bytes for info in bucket.tensors)
        packed = struct.pack("<Q", bucket.checksum)
        self._checksum = zlib.crc32(packed, self._checksum)

    def finish(self, version: int) -> LoadReport:
        """Return the engine's report of the weights that arrived in a weight sync.

        Raises WeightSyncError when the weight stream ended early.
        """
        if self._num_tensors < len(self._manifest):
            raise WeightSyncError(
                f"weight stream ended after {self._num_tensors} of {len(self._manifest)} tensors; "
                f"{self._manifest[self._num_tensors].name} is missing"
            )
        return LoadReport(
            version=version,
            num_tensors=self._num_tensors,
            num_bytes=self._num_bytes,
            checksum=self._checksum,
            period=Period(self._announced_at, self._announced_at, time.time()),
        )


def _check_bytes(bucket: WeightBucket) -> None:
    num_bytes = sum(info.num_bytes for info in bucket.tensors)
    names = f"{bucket.tensors[0].name} to {bucket.tensors[-1].name}" if bucket.tensors else "no tensors"
    if bucket.data.nbytes != num_bytes:
        raise WeightSyncError(f"bucket {names} has {bucket.data.nbytes} bytes, its tensors need {num_bytes}")
    checksum = zlib.crc32(bucket.data.data)
    if checksum != bucket.checksum:
        raise WeightSyncError(
            f"bucket {names} arrived with checksum {checksum:08x}, it left with {bucket.checksum:08x}"
        )
