"""Engines of a pool as receivers of published weights. An update is the same stream of buckets into every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.core.timeline import WEIGHTS, Exchange, Timeline, Work
from nemo_brorl.generation.engine_handle import EngineHandle, PublishedWeights
from nemo_brorl.cluster.actor_transport import EngineTransport, explain
from nemo_brorl.weights.incoming import LoadReport
from nemo_brorl.types import KeptCopy, StreamedBucket, TensorInfo, WeightLink

_GRACE_S = 2.0  # for other engines to answer once one has failed: the first to fail is often not the one to blame


class WeightBroadcast:
    """Life: `announce` (engines compare the manifest with their model, nothing is touched) → `send` → `finish`.

    An engine that refuses or fails a call makes the whole update fail. An engine that is gone, or silent for
    `timeout_s`, does not, where each engine gets the bytes on its own: it is listed in `lost`, left out from then on,
    and its replacement loads the update as a whole. In a collective (`is_collective`) all move together or not at all:
    ReceiverLostError names the engine.
    """

    def __init__(
        self,
        handles: Sequence[EngineHandle],
        timeout_s: float,
        transport: EngineTransport,
        is_collective: bool = False,
    ) -> None:
        self._handles = list(handles)
        self._timeout_s = timeout_s
        self._transport = transport
        self._is_collective = is_collective
        self._num_sent = 0
        self._largest = 0  # bytes of a bucket
        self._num_confirmed = {handle.index: 0 for handle in handles}  # buckets, by engine
        self.lost: dict[int, Exception] = {}  # by engine: how it was found dead
        self.reports: dict[int, LoadReport] = {}  # by engine, once it is finished

    def join(self, link: WeightLink) -> None:
        """Bring all engines into a broadcast group. Raises ReceiverLostError that names those that do not come."""
        joining = {}
        for number, handle in enumerate(self._handles):
            call = handle.actor.join_weight_link.remote(link, number)
            joining[handle.index] = call
        # The group itself says after `timeout_s` who is late; engines that cannot even say so are given up.
        results = self._collect(joining, 2 * link.timeout_s)
        self.lost = _gone(results)
        for result in results.values():
            if isinstance(result, RayTaskError):
                raise ReceiverLostError(explain(result))
        if self.lost:
            names = ", ".join(f"engine {engine}" for engine in self.lost)
            raise ReceiverLostError(f"{names} did not join the weight group within {link.timeout_s:g} s")

    def announce(self, manifest: Sequence[TensorInfo]) -> None:
        """Raises WeightSyncError when the manifest does not fit the engines' model."""
        self._gather(self._submit("begin_weights", tuple(manifest)))

    def send(self, buckets: Iterable[Any]) -> tuple[Any, ...]:
        """Forward the stream (of StreamedBucket, or references alone, which are then their own copies) and return the
        copies, those that follow their bucket as KeptCopy included.

        One bucket is loading while the next is taken from the stream.
        """
        copies: list[Any] = []
        loading: dict[int, Any] = {}
        try:
            for bucket in buckets:
                if isinstance(bucket, KeptCopy):
                    copies[-1] = bucket.reference
                    continue
                streamed = bucket
                if not isinstance(bucket, StreamedBucket):
                    streamed = StreamedBucket(message=bucket, copy=bucket, num_bytes=0)
                self._confirm(loading)
                loading = self._submit("receive_weights", streamed.message)
                self._num_sent += 1
                self._largest = max(self._largest, streamed.num_bytes)
                copies.append(streamed.copy)
            self._confirm(loading)
        except (RayError, WeightSyncError) as cause:
            if not self._is_collective or isinstance(cause, ReceiverLostError):
                raise
            raise self._blame(loading, cause) from cause
        return tuple(copies)

    def finish(self, version: int) -> None:
        """Raises WeightSyncError when an engine did not get everything, or engines got different bytes."""
        calls = self._submit("finish_weights", version)
        self.reports = self._gather(calls)
        for engine, report in self.reports.items():
            first = min(self.reports)
            if report != self.reports[first]:
                raise WeightSyncError(
                    f"engines hold different weights: engine {first} {self.reports[first]}, engine {engine} {report}"
                )

    def bytes_alive(self, num_workers: int) -> int:
        """The most bytes of buckets that can have been alive at once. One bucket is being made, one sent; in a
        collective every worker has memory for one more, else one waits in the object store and one is loaded from
        there."""
        num_received = num_workers if self._is_collective else 2
        return self._largest * (2 + num_received)

    def _submit(self, method: str, *args: Any) -> dict[int, Any]:
        """References by engine, of a call to each that is not lost."""
        calls = {}
        for handle in self._handles:
            if handle.index not in self.lost:
                actor_method = getattr(handle.actor, method)
                calls[handle.index] = actor_method.remote(*args)
        return calls

    def _confirm(self, loading: dict[int, Any]) -> None:
        """Wait until the engines have loaded a bucket."""
        for engine in self._gather(loading):
            self._num_confirmed[engine] += 1

    def _gather(self, calls: dict[int, Any]) -> dict[int, Any]:
        """Results by engine, of those that are not lost."""
        results = self._collect(calls, self._timeout_s)
        gone = _gone(results)
        if gone and self._is_collective:
            raise ReceiverLostError(self._progress(gone))
        for engine, result in results.items():
            if isinstance(result, RayTaskError):
                raise WeightSyncError(f"engine {engine}: {explain(result)}") from result
        self.lost |= gone
        for engine in gone:
            del results[engine]
        return results

    def _collect(self, calls: dict[int, Any], timeout_s: float) -> dict[int, Any]:
        """Results or failures by engine, all within one time; in a collective, once one has failed, the others get a
        moment."""
        deadline = self._transport.now() + timeout_s
        engines = {}  # those that have not answered, by reference
        for engine, reference in calls.items():
            engines[reference] = engine
        results: dict[int, Any] = {}
        while engines:
            left_s = deadline - self._transport.now()
            resolved = self._transport.wait(list(engines), max(0.0, left_s))
            if not resolved:
                break
            answers = self._transport.results(resolved, timeout_s)
            has_failed = False
            for reference, result in zip(resolved, answers, strict=True):
                engine = engines.pop(reference)
                results[engine] = result
                if isinstance(result, Exception):
                    has_failed = True
            if has_failed and self._is_collective:
                deadline = min(deadline, self._transport.now() + _GRACE_S)
        for engine in engines.values():
            results[engine] = GetTimeoutError(f"no answer within {timeout_s:g} s")
        return results

    def _blame(self, loading: dict[int, Any], cause: Exception) -> WeightSyncError:
        """Error that names who broke a collective, which stopped in the policy or in an engine: those engines that have
        not confirmed their last bucket may be why."""
        results = self._collect(loading, _GRACE_S)
        for engine, result in results.items():
            is_new = self._num_confirmed[engine] < self._num_sent
            if is_new and not isinstance(result, Exception):
                self._num_confirmed[engine] += 1
        gone = _gone(results)
        if gone:
            return ReceiverLostError(f"{self._progress(gone)}; {explain(cause)}")
        confirmed = []
        for engine, num_confirmed in self._num_confirmed.items():
            confirmed.append(f"engine {engine} has confirmed {num_confirmed}")
        return WeightSyncError(f"{explain(cause)}; {', '.join(confirmed)}")

    def _progress(self, gone: dict[int, Exception]) -> str:
        """Engines that are gone or late, and how far all are, in words."""
        said = []
        others = []
        for engine, num_confirmed in self._num_confirmed.items():
            if engine in gone:
                state = "is late" if isinstance(gone[engine], GetTimeoutError) else "is gone"
                said.append(
                    f"engine {engine} {state}: it has confirmed {num_confirmed} of {self._num_sent} buckets sent"
                )
            else:
                others.append(f"engine {engine}: {num_confirmed}")
        progress = "; ".join(said)
        return f"{progress} ({', '.join(others)})" if others else progress


def _gone(results: dict[int, Any]) -> dict[int, Exception]:
    """Engines that are dead or silent, and not merely failed a call."""
    gone = {}
    for engine, result in results.items():
        if isinstance(result, Exception) and not isinstance(result, RayTaskError):
            gone[engine] = result
    return gone


class WeightReceivers:
    """Publication after publication: `join` when there is a link to join, then `load`. Engines that fail are replaced.

    The copy that is kept for engines started later (`generation.keep_published`) takes the size of the weights in the
    object store, and during a publication twice that: the old one goes when the new one is whole in all engines. Ray
    moves what does not fit to files. Without it a few buckets are alive at once and no more.
    """

    def __init__(
        self,
        handles: Sequence[EngineHandle],
        timeout_s: float,
        num_workers: int,
        is_collective: bool,
        transport: EngineTransport,
        timeline: Timeline | None = None,
    ) -> None:
        self._handles = handles
        self._timeout_s = timeout_s
        self._num_workers = num_workers  # of all engines together
        self._is_collective = is_collective
        self._transport = transport
        self._timeline = timeline or Timeline(is_on=False)

    def names(self) -> tuple[str, ...]:
        """Names of the engines, all alive; one that was replaced has another."""
        self._wait_ready()
        return tuple(handle.name for handle in self._handles)

    def join(self, link: WeightLink) -> None:
        """Bring all engines into a broadcast. Raises ReceiverLostError that names those that do not come in time, after
        they have been given up and replaced."""
        names = self.names()
        if names != link.receivers:
            raise ReceiverLostError(
                f"the weight group was opened for {', '.join(link.receivers)}; now there are {', '.join(names)}"
            )
        broadcast = self._new_broadcast()
        try:
            broadcast.join(link)
        finally:
            for engine, cause in broadcast.lost.items():
                self._handles[engine].replace(cause)

    def load(
        self,
        manifest: Sequence[TensorInfo],
        buckets: Iterable[Any],
        version: int,
    ) -> int:
        """Load a stream of StreamedBucket (or of references to WeightBucket) into every engine; prefix caches are
        dropped.

        The next bucket is taken from the stream while the engines load the one before. Returns the most bytes that were
        alive beside the models. Raises WeightSyncError naming the engine: before an engine is touched when the manifest
        does not fit, else after all engines were given up, to be replaced with the weights published before.
        """
        self._wait_ready()
        broadcast = self._new_broadcast()
        announced_at = self._timeline.now()
        broadcast.announce(manifest)
        is_whole = False
        try:
            copies = broadcast.send(buckets)
            broadcast.finish(version)
            is_whole = True
        finally:
            if not is_whole:
                for handle in self._handles:
                    handle.replace(f"weights of version {version} arrived in part")
        self._note_loading(broadcast, announced_at)
        published = PublishedWeights.of(manifest, copies, version)
        return self._note_published(published, broadcast)

    def _note_loading(self, broadcast: WeightBroadcast, announced_at: float) -> None:
        """Spans of the engines."""
        known_at = self._timeline.now()
        for engine, report in broadcast.reports.items():
            period = report.period
            if period is not None:
                work = Work("load weights", period.began_at, period.ended_at, WEIGHTS)
                exchange = Exchange(announced_at, period.received_at, period.ended_at, known_at)
                self._timeline.note(f"engine {engine}", [work], exchange)

    def _note_published(self, published: PublishedWeights, broadcast: WeightBroadcast) -> int:
        before = self._handles[0].published
        num_bytes = published.num_bytes + broadcast.bytes_alive(self._num_workers)
        if before is not None:
            num_bytes += before.num_bytes
        for handle in self._handles:
            handle.published = published
            handle.lacks_weights = False
            handle.touch()  # loading was no silence
        for engine, cause in broadcast.lost.items():
            self._handles[engine].replace(cause)
        return num_bytes

    def _wait_ready(self) -> None:
        for handle in self._handles:
            handle.wait_or_replace()

    def _new_broadcast(self) -> WeightBroadcast:
        return WeightBroadcast(self._handles, self._timeout_s, self._transport, self._is_collective)
