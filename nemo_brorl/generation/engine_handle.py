"""One engine's place in the pool: the actor behind it changes when it dies, its number and its counters go on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from nemo_brorl.core.errors import BroRLError, GenerationError
from nemo_brorl.core.logs import get_logger
from nemo_brorl.generation.chunk_task import ChunkFailure
from nemo_brorl.generation.engine_actor import EngineReady
from nemo_brorl.types import EngineStats, TensorInfo

ENGINE_FAILURES = (RayActorError, RayTaskError, GetTimeoutError, ObjectLostError)

_COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "generated_tokens", "generated_samples")

logger = get_logger(__name__)


@dataclass(frozen=True)
class PublishedWeights:
    """The last complete update, kept by reference for engines that are started after it."""

    manifest: tuple[TensorInfo, ...]
    buckets: tuple[Any, ...] | None  # ray.ObjectRef of WeightBucket; None: no copy is kept
    version: int

    @classmethod
    def of(cls, manifest: Sequence[TensorInfo], copies: Sequence[Any], version: int) -> PublishedWeights:
        """An update as it was streamed; a copy that is None was not kept."""
        return cls(tuple(manifest), None if any(copy is None for copy in copies) else tuple(copies), version)

    @property
    def num_bytes(self) -> int:
        """That the copy takes in the object store."""
        return sum(info.num_bytes for info in self.manifest) if self.buckets is not None else 0


class EngineSlot:
    """Starts, replaces and stops one engine.

    starting ──`starting` resolves, `wait`──► ready ──`replace`──► starting …; the slot gives up with GenerationError
    when it was replaced `max_restarts` times and no chunk of its came in between. While starting, `starting` is the
    reference to wait for; when it resolves, the new actor has loaded `published`. Who holds on to an `actor` may find
    another one here later.
    """

    def __init__(self, index: int, start_actor: Callable[[], Any], max_restarts: int, timeout_s: float) -> None:
        self.index = index
        # what a replacement loads; None: the weights of the model folder
        self.published: PublishedWeights | None = None
        # no copy of the published weights was there for it: it may not sample before the next publication
        self.lacks_weights = False
        self.lost_to = ""  # why the last engine here was replaced
        self.num_started = 1  # actors, this one included
        self.num_resampled = 0  # rollouts that were sampled again because their engine was lost
        self._start_actor = start_actor
        self._max_restarts = max_restarts
        self._timeout_s = timeout_s
        self._num_in_a_row = 0  # replacements since a chunk came
        self._num_restarts = 0
        self._num_garbage = 0
        self._given_up: str | None = None  # why, once there are no restarts left
        self._counted: EngineStats | None = None  # last snapshot, of all actors so far
        self._carried: EngineStats | None = None  # of the actors before this one
        self._heard = time.monotonic()
        self.actor: Any = start_actor()
        self.starting: Any = self.actor.ready.remote()  # None when ready

    @property
    def name(self) -> str:
        """Of the engine that is here now: another one after every replacement."""
        return f"engine {self.index}" + (f" (number {self.num_started})" if self.num_started > 1 else "")

    @property
    def version(self) -> int:
        """Of the weights published last; 0: the model folder's."""
        return 0 if self.published is None else self.published.version

    @property
    def silence_s(self) -> float:
        """Seconds since the engine was last given something to do, or was last heard of."""
        return time.monotonic() - self._heard

    def touch(self) -> None:
        """The engine was heard of, or begins to have something to do: its time starts again."""
        self._heard = time.monotonic()

    def note_chunk(self) -> None:
        """A good chunk came: earlier failures are forgiven."""
        self._num_in_a_row = 0
        self.touch()

    def wait(self) -> EngineReady:
        """Block until the engine is ready. Raises GenerationError when it does not start."""
        reference = self.starting if self.starting is not None else self.actor.ready.remote()
        try:
            ready: EngineReady = ray.get(reference, timeout=self._timeout_s)
        except ENGINE_FAILURES as cause:
            raise GenerationError(f"engine {self.index} did not start: {explain(cause)}") from cause
        self.note_ready(ready)
        return ready

    def note_ready(self, ready: EngineReady) -> None:
        """The engine answered that it can be used."""
        if self.starting is not None:
            self.starting = None
            self.touch()
            logger.info("engine %d is ready: import %.1f s, load %.1f s", self.index, ready.import_s, ready.load_s)

    def wait_or_replace(self) -> EngineReady:
        """Block until an engine is ready, maybe a new one. Raises GenerationError when the slot gives up."""
        while True:
            try:
                return self.wait()
            except GenerationError as cause:
                self.replace(cause)

    def replace(self, cause: object, *, is_fault: bool = True) -> None:
        """Kill the actor and start another with the published weights, without waiting; where no copy of them is kept
        it `lacks_weights` until the next publication.

        Raises GenerationError when the slot was replaced `max_restarts` times for a fault since it last returned a
        chunk.
        """
        ray.kill(self.actor, no_restart=True)
        self._num_garbage += isinstance(cause, ChunkFailure) and cause.is_garbage
        if self._given_up is None and is_fault and self._num_in_a_row >= self._max_restarts:
            self._given_up = (
                f"engine {self.index} failed {self._num_in_a_row + 1} times, "
                f"generation.max_restarts={self._max_restarts}; "
                f"last: {explain(cause)}"
            )
        if self._given_up is not None:
            raise GenerationError(self._given_up)
        self.num_started += 1
        self.lacks_weights = self.published is not None and self.published.buckets is None
        self.lost_to = explain(cause)
        self._num_in_a_row += is_fault
        self._num_restarts += is_fault
        until = "; it samples again after the next publication" if self.lacks_weights else ""
        logger.warning(
            "engine %d is replaced (%d of %d): %s%s",
            self.index,
            self._num_in_a_row,
            self._max_restarts,
            self.lost_to,
            until,
        )
        self._carried = self._counted
        self.actor = self._start_actor()
        self.touch()
        if self.published is None or self.published.buckets is None:
            self.starting = self.actor.ready.remote()
        else:
            self.starting = self.actor.restore.remote(
                self.published.manifest, self.published.version, *self.published.buckets
            )

    def count(self, snapshot: EngineStats) -> EngineStats:
        """The slot's counters: those of its actor plus what earlier actors were last seen with, and its faults."""
        if self._carried is not None:
            totals = {name: getattr(snapshot, name) + getattr(self._carried, name) for name in _COUNTERS}
            snapshot = dataclasses.replace(snapshot, **totals)
        self._counted = snapshot
        return dataclasses.replace(
            snapshot, num_restarts=self._num_restarts, num_garbage=self._num_garbage, num_resampled=self.num_resampled
        )

    def close(self) -> None:
        """Stop the engine."""
        ray.kill(self.actor, no_restart=True)


def check_weights(slots: Sequence[EngineSlot]) -> None:
    """Raise GenerationError when no engine has the published weights: only the policy could bring them, and it waits
    for samples."""
    if all(slot.lacks_weights for slot in slots):
        causes = "; ".join(f"engine {slot.index}: {slot.lost_to}" for slot in slots)
        raise GenerationError(
            f"no engine is left that has the published weights, generation.keep_published=false keeps no copy: "
            f"continue from the last "
            f"checkpoint, or write keep_published=true. Lost to: {causes}"
        )


def explain(cause: object) -> str:
    """One line about why an engine failed, without the remote traceback."""
    if isinstance(cause, RayTaskError):
        inner = cause.cause
        return str(inner) if isinstance(inner, BroRLError) else f"{type(inner).__name__}: {inner}"
    if isinstance(cause, ChunkFailure):
        return cause.reason
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1].split(" Some common causes include", maxsplit=1)[0] if lines else type(cause).__name__


def get_or_failure(reference: Any, timeout_s: float) -> Any:
    """The result, or the exception (one of ENGINE_FAILURES) in its place, for the caller to decide."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except ENGINE_FAILURES as cause:
        return cause


def get_all(references: Sequence[Any], timeout_s: float) -> list[Any]:
    """The results, with exceptions in the places of those that failed; one call when none did."""
    try:
        return list(ray.get(list(references), timeout=timeout_s)) if references else []
    except ENGINE_FAILURES:
        return [get_or_failure(reference, timeout_s) for reference in references]
