"""Send one stream of buckets to every engine of a pool, and find the engines that are lost on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from nemo_brorl.cluster.actor_transport import ActorTransport, explain
from nemo_brorl.core.errors import ReceiverLostError, WeightSyncError
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights.incoming import LoadReport

# Seconds for other engines to answer once one has failed. The first to fail is often not the cause.
_GRACE_S = 2.0


@dataclass(frozen=True)
class PublishedWeights:
    """The last complete weight sync.

    The transport object_store keeps its buckets for engines that start later. Others keep none.
    """

    manifest: tuple[TensorInfo, ...]
    buckets: tuple[Any, ...] | None  # each a ray.ObjectRef of WeightBucket; None: only the policy has the weights
    version: int

    @property
    def num_bytes(self) -> int:
        """Bytes that the kept buckets take in Ray's object store."""
        if self.buckets is None:
            return 0
        return sum(info.num_bytes for info in self.manifest)


class Receiver(Protocol):
    """One engine as a weight sync sees it. When its actor dies, another one takes over."""

    index: int
    actor: Any
    published: PublishedWeights | None  # weights that a replacement loads; None: those of the model folder
    lacks_weights: bool  # True: its actor has not loaded the published weights, which only the policy has

    @property
    def name(self) -> str:
        """Name of the Ray actor that currently runs this inference engine."""

    def wait_or_replace(self) -> object:
        """Block until the inference engine has an actor that answers, possibly a new one.

        Raises GenerationError when the engine has no restarts left.
        """

    def replace(self, cause: object) -> None:
        """Kill the inference engine's actor and start another one with the published weights.

        Raises GenerationError when the engine has no restarts left.
        """

    def touch(self) -> None:
        """Note that the inference engine has just answered, so that it does not count as silent."""


class WeightBroadcast:
    """One weight sync to all engines of a pool: `announce`, then `send`, then `finish`.

    `announce` lets engines compare the manifest with their model, before anything is touched. An engine that refuses or
    fails a call fails the whole sync. An engine that is dead, or silent for `timeout_s`, does not fail it as long as
    each engine gets the bytes on its own. It is listed in `lost`, skipped from then on, and its replacement loads the
    sync as a whole. In a collective (`is_collective`) all engines advance together, and ReceiverLostError names the one
    that is lost.
    """

    def __init__(
        self,
        handles: Sequence[Receiver],
        timeout_s: float,
        transport: ActorTransport,
        is_collective: bool = False,
    ) -> None:
        self._handles = list(handles)
        self._timeout_s = timeout_s
        self._transport = transport
        self._is_collective = is_collective
        self._num_sent = 0
        self._largest = 0  # bytes of the largest bucket
        self._num_confirmed = {handle.index: 0 for handle in handles}  # buckets that each engine has loaded
        self.lost: dict[int, Exception] = {}  # failure of each lost engine
        self.reports: dict[int, LoadReport] = {}  # report of each engine, once the sync is finished

    def join(self, link: WeightLink) -> None:
        """Make all inference engines join a group for weight broadcasts.

        Raises ReceiverLostError naming the engines that do not join in time.
        """
        joining = {}
        for number, handle in enumerate(self._handles):
            call = handle.actor.join_weight_link.remote(link, number)
            joining[handle.index] = call
        # The rendezvous names late members after `timeout_s`. Engines that do not even report that are given up.
        results = self._collect(joining, 2 * link.timeout_s)
        self.lost = _gone(results)
        for result in results.values():
            if isinstance(result, RayTaskError):
                raise ReceiverLostError(explain(result))
        if self.lost:
            names = ", ".join(f"engine {engine}" for engine in self.lost)
            raise ReceiverLostError(f"{names} did not join the weight group within {link.timeout_s:g} s")

    def announce(self, manifest: Sequence[TensorInfo]) -> None:
        """Announce the tensors of a weight sync to the inference engines.

        Raises WeightSyncError when the tensors do not fit the engines' model.
        """
        self._gather(self._submit("begin_weights", tuple(manifest)))

    def send(self, buckets: Iterable[StreamedBucket]) -> tuple[Any, ...]:
        """Forward a stream of weight buckets to the inference engines, and return the messages about them.

        Engines load one bucket while the next one is taken from the stream.
        """
        messages: list[Any] = []
        loading: dict[int, Any] = {}
        try:
            for bucket in buckets:
                self._confirm(loading)
                loading = self._submit("receive_weights", bucket.message)
                self._num_sent += 1
                self._largest = max(self._largest, bucket.num_bytes)
                messages.append(bucket.message)
            self._confirm(loading)
        # Where each engine gets bytes on its own, the error already names the engine.
        except (RayError, WeightSyncError) as cause:
            if not self._is_collective or isinstance(cause, ReceiverLostError):
                raise
            raise self._blame(loading, cause) from cause
        return tuple(messages)

    def finish(self, version: int) -> None:
        """Make the inference engines complete the weight sync.

        Raises WeightSyncError when an engine did not get all tensors, or engines got different bytes.
        """
        calls = self._submit("finish_weights", version)
        self.reports = self._gather(calls)
        for engine, report in self.reports.items():
            first = min(self.reports)
            if report != self.reports[first]:
                raise WeightSyncError(
                    f"engines hold different weights: engine {first} {self.reports[first]}, engine {engine} {report}"
                )

    def bytes_alive(self, num_workers: int) -> int:
        """Return the most bytes of weight buckets that can have existed at once in this weight sync.

        One bucket is being made and one is being sent. In a collective every worker has memory for one more. Otherwise
        one waits in the object store and one is loaded from there.
        """
        num_received = num_workers if self._is_collective else 2
        return self._largest * (2 + num_received)

    def _submit(self, method: str, *args: Any) -> dict[int, Any]:
        """Call a method of every inference engine that is not lost, and return the Ray references by engine."""
        calls = {}
        for handle in self._handles:
            if handle.index not in self.lost:
                actor_method = getattr(handle.actor, method)
                calls[handle.index] = actor_method.remote(*args)
        return calls

    def _confirm(self, loading: dict[int, Any]) -> None:
        """Wait until the inference engines have loaded a weight bucket, and count it for each of them."""
        # In a collective only this count tells which engine is furthest behind.
        for engine in self._gather(loading):
            self._num_confirmed[engine] += 1

    def _gather(self, calls: dict[int, Any]) -> dict[int, Any]:
        """Return the results of calls by engine, and move engines that died or were silent to `lost`.

        Raises WeightSyncError for a failed call, and ReceiverLostError for a lost engine in a collective.
        """
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
        """Return the result or failure of each engine's call, after waiting for all of them up to one time limit.

        In a collective, once one engine has failed, the other engines get only `_GRACE_S` more seconds.
        """
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
            # Engines that hang in the failed broadcast will not answer.
            if has_failed and self._is_collective:
                deadline = min(deadline, self._transport.now() + _GRACE_S)
        for engine in engines.values():
            results[engine] = GetTimeoutError(f"no answer within {timeout_s:g} s")
        return results

    def _blame(self, loading: dict[int, Any], cause: Exception) -> WeightSyncError:
        """Return an error that names the engines that may have broken a collective weight broadcast.

        The broadcast stopped in the policy or in an engine. Engines that have not confirmed their last bucket may be
        the cause.
        """
        # An engine that has confirmed meanwhile is not the cause.
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
        """Return a sentence that says which engines are lost or late in a weight sync, and how far all engines are."""
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
    """Return the failures of inference engines that are dead or silent, without engines that merely failed a call."""
    gone = {}
    for engine, result in results.items():
        if isinstance(result, Exception) and not isinstance(result, RayTaskError):
            gone[engine] = result
    return gone
