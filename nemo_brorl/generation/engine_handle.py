"""The driver's handle on one engine: the actor behind it changes when it dies, its number and its counters go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_brorl.cluster.actor_transport import ActorTransport, explain
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.chunk_messages import ChunkFailure
from nemo_brorl.generation.metrics import COUNTS
from nemo_brorl.types import EngineStats
from nemo_brorl.weights.broadcast import PublishedWeights

logger = get_logger(__name__)


@dataclass(frozen=True)
class EngineReady:
    """An engine that can be used, and how long it took."""

    engine: int
    process: int
    import_s: float
    load_s: float
    cache_bytes: int = 0  # of keys and values, in each of its workers


class EngineHandle:
    """Starts, replaces and stops one engine.

    starting ──`starting` resolves, `wait`──► ready ──`replace`──► starting …; the handle gives up with GenerationError
    when its engine was replaced `max_restarts` times and no chunk came in between. While starting, `starting` is the
    reference to wait for; when it resolves, the new actor has loaded `published`. Who holds on to an `actor` may find
    another one here later.
    """

    def __init__(
        self,
        index: int,
        start_actor: Callable[[int], Any],
        max_restarts: int,
        timeout_s: float,
        transport: ActorTransport,
    ) -> None:
        """`start_actor` gets the size of the cache that an engine had here before, 0 for the first one."""
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
        self._transport = transport
        self._num_in_a_row = 0  # replacements since a chunk came
        self._num_restarts = 0
        self._num_garbage = 0
        self._given_up: str | None = None  # why, once there are no restarts left
        self._counted: EngineStats | None = None  # last snapshot, of all actors so far
        self._carried: EngineStats | None = None  # of the actors before this one
        self._heard = transport.now()
        # Of the engine before: one that takes its place beside others cannot measure what is free.
        self._cache_bytes = 0
        self.actor: Any = start_actor(0)
        self.starting: Any = self.actor.ready.remote()  # None when ready

    @property
    def name(self) -> str:
        """Name of the engine that is here now: another one after every replacement."""
        if self.num_started == 1:
            return f"engine {self.index}"
        return f"engine {self.index} (number {self.num_started})"

    @property
    def version(self) -> int:
        """Version of the weights published last; 0: the model folder's."""
        return 0 if self.published is None else self.published.version

    @property
    def silence_s(self) -> float:
        """Seconds since the engine was last given something to do, or was last heard of."""
        return self._transport.now() - self._heard

    def touch(self) -> None:
        """Note that the engine was heard of, or begins to have something to do: its time starts again."""
        self._heard = self._transport.now()

    def note_chunk(self) -> None:
        """Note that a good chunk came: earlier failures are forgiven."""
        self._num_in_a_row = 0
        self.touch()

    def wait(self) -> EngineReady:
        """Block until the engine is ready. Raises GenerationError when it does not start."""
        reference = self.starting
        if reference is None:
            reference = self.actor.ready.remote()
        ready = self._transport.results([reference], self._timeout_s)[0]
        if not isinstance(ready, EngineReady):
            raise GenerationError(f"engine {self.index} did not start: {explain(ready)}")
        self.note_ready(ready)
        return ready

    def note_ready(self, ready: EngineReady) -> None:
        """Note that the engine answered that it can be used."""
        if self.starting is not None:
            self.starting = None
            self._cache_bytes = ready.cache_bytes
            self.touch()
            logger.info("engine %d is ready: import %.1f s, load %.1f s", self.index, ready.import_s, ready.load_s)

    def check_start(self) -> None:
        """Note that a starting engine is ready, or replace one that failed or takes too long. Does not wait. Raises
        GenerationError when there are no restarts left."""
        if self.starting is None:
            return
        if self._transport.wait([self.starting]):
            result = self._transport.results([self.starting], self._timeout_s)[0]
            if isinstance(result, EngineReady):
                self.note_ready(result)
            else:
                self.replace(result)
        elif self.silence_s >= self._timeout_s:
            self.replace(TimeoutError(f"no answer within generation.timeout_s={self._timeout_s:g}"))

    def wait_alive(self) -> EngineReady:
        """Block until an engine is ready; one that was and has died since, unseen by any session, is replaced.

        Raises GenerationError when an engine that is starting does not start, or when there are no restarts left.
        """
        if self.starting is None:
            return self.wait_or_replace()
        return self.wait()

    def wait_or_replace(self) -> EngineReady:
        """Block until an engine is ready, maybe a new one. Raises GenerationError when there are no restarts left."""
        while True:
            try:
                return self.wait()
            except GenerationError as cause:
                self.replace(cause)

    def replace(self, cause: object) -> None:
        """Kill the actor and start another with the published weights, without waiting; where no copy of them is kept
        it `lacks_weights` until the next publication.

        Raises GenerationError when the engine was replaced `max_restarts` times since it last returned a chunk.
        """
        # Also one that seems dead: it may hold the device that its successor needs.
        self._transport.kill(self.actor)
        self.lost_to = why_lost(cause)
        if isinstance(cause, ChunkFailure) and cause.is_garbage:
            self._num_garbage += 1
        self._count_fault()
        if self._given_up is not None:
            raise GenerationError(self._given_up)
        self.num_started += 1
        self.lacks_weights = self.published is not None and self.published.buckets is None
        logger.warning(
            "engine %d is replaced (%d of %d): %s%s",
            self.index,
            self._num_in_a_row,
            self._max_restarts,
            self.lost_to,
            "; it samples again after the next publication" if self.lacks_weights else "",
        )
        # What the new actor counts begins at zero, and metrics are differences.
        self._carried = self._counted
        self._start()

    def count(self, snapshot: EngineStats) -> EngineStats:
        """Return the counters of all engines that were here: those of the actor plus what earlier actors were last seen
        with, and its faults."""
        if self._carried is not None:
            totals = {}
            for name in COUNTS:
                carried = getattr(self._carried, name)
                totals[name] = carried + getattr(snapshot, name)
            snapshot = dataclasses.replace(snapshot, **totals)
        self._counted = snapshot
        return dataclasses.replace(
            snapshot,
            num_restarts=self._num_restarts,
            num_garbage=self._num_garbage,
            num_resampled=self.num_resampled,
        )

    def close(self) -> None:
        """Stop the engine."""
        self._transport.kill(self.actor)

    def _count_fault(self) -> None:
        if self._given_up is None and self._num_in_a_row >= self._max_restarts:
            self._given_up = (
                f"engine {self.index} failed {self._num_in_a_row + 1} times, "
                f"generation.max_restarts={self._max_restarts}; last: {self.lost_to}"
            )
        if self._given_up is None:
            self._num_in_a_row += 1
            self._num_restarts += 1

    def _start(self) -> None:
        self.actor = self._start_actor(self._cache_bytes)
        self.touch()
        published = self.published
        if published is None or published.buckets is None:
            self.starting = self.actor.ready.remote()
        else:
            # Buckets as arguments of their own: Ray brings them along, and none is on the driver.
            self.starting = self.actor.restore.remote(
                published.manifest,
                published.version,
                *published.buckets,
            )


def why_lost(cause: object) -> str:
    """Say in one line why an engine is used no more."""
    if isinstance(cause, ChunkFailure):
        return cause.reason
    return explain(cause)


def check_weights(handles: Sequence[EngineHandle]) -> None:
    """Raise GenerationError when no engine has the published weights: only the policy could bring them, and it waits
    for samples."""
    for handle in handles:
        if not handle.lacks_weights:
            return
    causes = "; ".join(f"engine {handle.index}: {handle.lost_to}" for handle in handles)
    raise GenerationError(
        "no engine is left that has the published weights, generation.keep_published=false keeps no copy: continue "
        f"from the last checkpoint, or write keep_published=true. Lost to: {causes}"
    )
