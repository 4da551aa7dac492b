"""One weight update: the same stream of buckets into every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ray.exceptions import RayTaskError

from nemo_brorl.errors import WeightSyncError
from nemo_brorl.generation.incoming import LoadReport
from nemo_brorl.generation.slot import EngineSlot, explain, get_or_failure
from nemo_brorl.types import TensorInfo


class WeightBroadcast:
    """Life: `announce` (engines compare the manifest with their model, nothing is touched) → `send` → `finish`.

    An engine that refuses or fails a call makes the whole update fail. An engine that is gone does not: it is listed in `lost`,
    left out from then on, and its replacement loads the update as a whole.
    """

    def __init__(self, slots: Sequence[EngineSlot], timeout_s: float) -> None:
        self._slots = list(slots)
        self._timeout_s = timeout_s
        self.lost: dict[int, Exception] = {}  # by engine: how it was found dead

    def announce(self, manifest: Sequence[TensorInfo]) -> None:
        """Raises WeightSyncError when the manifest does not fit the engines' model."""
        self._gather(self._submit("begin_weights", tuple(manifest)))

    def send(self, buckets: Iterable[Any]) -> tuple[Any, ...]:
        """Forward the stream and return its references. One bucket is loading while the next is taken from the stream."""
        sent: list[Any] = []
        loading: dict[int, Any] = {}
        for bucket in buckets:
            self._gather(loading)
            loading = self._submit("receive_weights", bucket)
            sent.append(bucket)
        self._gather(loading)
        return tuple(sent)

    def finish(self, version: int) -> None:
        """Raises WeightSyncError when an engine did not get everything, or engines got different bytes."""
        reports: dict[int, LoadReport] = self._gather(self._submit("finish_weights", version))
        for engine, report in reports.items():
            first = min(reports)
            if report != reports[first]:
                raise WeightSyncError(f"engines hold different weights: engine {first} {reports[first]}, engine {engine} {report}")

    def _submit(self, method: str, *args: Any) -> dict[int, Any]:
        return {slot.index: getattr(slot.actor, method).remote(*args) for slot in self._slots if slot.index not in self.lost}

    def _gather(self, references: dict[int, Any]) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for engine, reference in references.items():
            result = get_or_failure(reference, self._timeout_s)
            if isinstance(result, RayTaskError):
                raise WeightSyncError(f"engine {engine}: {explain(result)}") from result
            if isinstance(result, Exception):
                self.lost[engine] = result
            else:
                results[engine] = result
        return results
