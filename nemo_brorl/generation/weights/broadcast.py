"""One weight update: the same stream of buckets into every engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.generation.engine_handle import EngineSlot, explain, get_or_failure
from nemo_brorl.generation.weights.incoming import LoadReport
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink

_GRACE_S = 2.0  # for other engines to answer once one has failed: the first to fail is often not the one to blame


class WeightBroadcast:
    """Life: `announce` (engines compare the manifest with their model, nothing is touched) → `send` → `finish`.

    An engine that refuses or fails a call makes the whole update fail. An engine that is gone, or silent for
    `timeout_s`, does not, where each engine gets the bytes on its own: it is listed in `lost`, left out from then on,
    and its replacement loads the update as a whole. In a collective (`is_collective`) all move together or not at all:
    ReceiverLostError names the engine.
    """

    def __init__(self, slots: Sequence[EngineSlot], timeout_s: float, is_collective: bool = False) -> None:
        self._slots = list(slots)
        self._timeout_s = timeout_s
        self._is_collective = is_collective
        self._num_sent = 0
        self._largest = 0  # bytes of a bucket
        self._confirmed = {slot.index: 0 for slot in slots}  # buckets, by engine
        self.lost: dict[int, Exception] = {}  # by engine: how it was found dead

    def join(self, link: WeightLink) -> None:
        """Bring all engines into a broadcast group. Raises ReceiverLostError that names those that do not come."""
        joining = {
            slot.index: slot.actor.join_weight_link.remote(link, number) for number, slot in enumerate(self._slots)
        }
        # The group itself says after `timeout_s` who is late; engines that cannot even say so are given up.
        results = self._collect(joining, 2 * link.timeout_s)
        self.lost = {engine: result for engine, result in results.items() if _is_gone(result)}
        refused = [explain(result) for result in results.values() if isinstance(result, RayTaskError)]
        if refused:
            raise ReceiverLostError(refused[0])
        if self.lost:
            names = ", ".join(f"engine {engine}" for engine in self.lost)
            raise ReceiverLostError(f"{names} did not join the weight group within {link.timeout_s:g} s")

    def announce(self, manifest: Sequence[TensorInfo]) -> None:
        """Raises WeightSyncError when the manifest does not fit the engines' model."""
        self._gather(self._submit("begin_weights", tuple(manifest)))

    def send(self, buckets: Iterable[Any]) -> tuple[Any, ...]:
        """Forward the stream (of StreamedBucket, or references alone, which are then their own copies) and return the
        copies.

        One bucket is loading while the next is taken from the stream.
        """
        copies: list[Any] = []
        loading: dict[int, Any] = {}
        try:
            for bucket in buckets:
                streamed = bucket if isinstance(bucket, StreamedBucket) else StreamedBucket(bucket, bucket, 0)
                self._gather_bucket(loading)
                loading = self._submit("receive_weights", streamed.message)
                self._num_sent += 1
                self._largest = max(self._largest, streamed.num_bytes)
                copies.append(streamed.copy)
            self._gather_bucket(loading)
        except (RayError, WeightSyncError) as cause:
            if not self._is_collective or isinstance(cause, ReceiverLostError):
                raise
            raise self._who_broke_it(loading, cause) from cause
        return tuple(copies)

    def finish(self, version: int) -> None:
        """Raises WeightSyncError when an engine did not get everything, or engines got different bytes."""
        reports: dict[int, LoadReport] = self._gather(self._submit("finish_weights", version))
        for engine, report in reports.items():
            first = min(reports)
            if report != reports[first]:
                raise WeightSyncError(
                    f"engines hold different weights: engine {first} {reports[first]}, engine {engine} {report}"
                )

    def bytes_alive(self, num_workers: int) -> int:
        """The most bytes of buckets that can have been alive at once. One bucket is being made, one sent; in a
        collective every worker has memory for one more, else one waits in the object store and one is loaded from
        there."""
        return self._largest * (2 + (num_workers if self._is_collective else 2))

    def _submit(self, method: str, *args: Any) -> dict[int, Any]:
        return {
            slot.index: getattr(slot.actor, method).remote(*args) for slot in self._slots if slot.index not in self.lost
        }

    def _gather_bucket(self, loading: dict[int, Any]) -> None:
        for engine in self._gather(loading):
            self._confirmed[engine] += 1

    def _gather(self, references: dict[int, Any]) -> dict[int, Any]:
        results = self._collect(references, self._timeout_s)
        gone = {engine: result for engine, result in results.items() if _is_gone(result)}
        if gone and self._is_collective:
            raise ReceiverLostError(self._progress(gone))
        for engine, result in results.items():
            if isinstance(result, RayTaskError):
                raise WeightSyncError(f"engine {engine}: {explain(result)}") from result
        self.lost |= gone
        return {engine: result for engine, result in results.items() if engine not in gone}

    def _collect(self, references: dict[int, Any], timeout_s: float) -> dict[int, Any]:
        """Results or failures by engine, all within one time; in a collective, once one has failed, the others get a
        moment."""
        deadline = time.monotonic() + timeout_s
        left = {reference: engine for engine, reference in references.items()}
        results: dict[int, Any] = {}
        while left:
            done, _ = ray.wait(list(left), timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                break
            results |= {left.pop(reference): get_or_failure(reference, timeout_s) for reference in done}
            if self._is_collective and any(isinstance(result, Exception) for result in results.values()):
                deadline = min(deadline, time.monotonic() + _GRACE_S)
        late = GetTimeoutError(f"no answer within {timeout_s:g} s")
        return results | dict.fromkeys(left.values(), late)

    def _who_broke_it(self, loading: dict[int, Any], cause: Exception) -> WeightSyncError:
        """A collective stopped in the policy or in an engine; those engines that have not confirmed their last bucket
        may be why."""
        results = self._collect(loading, _GRACE_S)
        for engine, result in results.items():
            self._confirmed[engine] += not isinstance(result, Exception) and self._confirmed[engine] < self._num_sent
        gone = {engine: result for engine, result in results.items() if _is_gone(result)}
        if gone:
            return ReceiverLostError(f"{self._progress(gone)}; {explain(cause)}")
        confirmed = ", ".join(f"engine {engine} has confirmed {num}" for engine, num in self._confirmed.items())
        return WeightSyncError(f"{explain(cause)}; {confirmed}")

    def _progress(self, gone: dict[int, Exception]) -> str:
        """Who is gone or late, and how far everybody is."""
        said = []
        for engine, how in gone.items():
            state = "is late" if isinstance(how, GetTimeoutError) else "is gone"
            said.append(
                f"engine {engine} {state}: it has confirmed {self._confirmed[engine]} of {self._num_sent} buckets sent"
            )
        others = [f"engine {engine}: {num}" for engine, num in self._confirmed.items() if engine not in gone]
        return "; ".join(said) + (f" ({', '.join(others)})" if others else "")


def _is_gone(result: Any) -> bool:
    """Dead or silent, and not merely an error of a call."""
    return isinstance(result, Exception) and not isinstance(result, RayTaskError)
