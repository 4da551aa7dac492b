"""The driver's handle on one engine: it outlives the actor, which is replaced when it dies."""

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
    """An engine that has started, with the seconds of its import and of loading the model."""

    engine: int
    process: int
    import_s: float
    load_s: float
    cache_bytes: int = 0  # size of the KV cache in each worker
    scheduler_name: str = ""  # name of the scheduler's class: an engine may have to keep vLLM's own


class EngineHandle:
    """One engine of the pool, whose actor is started, replaced and stopped here.

    States: starting ──`starting` resolves, `wait`──► ready ──`replace`──► starting. `replace` raises GenerationError
    when the engine was replaced `max_restarts` times since it last returned a chunk. `starting` is the reference to
    wait for. When it resolves, the new actor has loaded `published`. `actor` may be another object after a replacement.
    """

    def __init__(
        self,
        index: int,
        start_actor: Callable[[int], Any],
        max_restarts: int,
        timeout_s: float,
        transport: ActorTransport,
        on_progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the first Ray actor of a vLLM engine.

        `start_actor` gets the KV cache size in bytes of the actor that it replaces, or 0 for the first actor.
        `on_progress` is called with every sign of life, such as a report of new tokens.
        """
        self.index = index
        # Weights that a replacement loads. None: those of the model folder.
        self.published: PublishedWeights | None = None
        # True if its actor has not loaded the published weights, which only the policy has: it may not sample.
        self.lacks_weights = False
        self.lost_to = ""  # reason for the last replacement
        self.num_started = 1  # actors started so far, the current one included
        self.num_resampled = 0  # rollouts that were sampled again because their engine was lost
        self._start_actor = start_actor
        self._max_restarts = max_restarts
        self._timeout_s = timeout_s
        self._transport = transport
        self._on_progress = on_progress
        self._num_in_a_row = 0  # replacements since the last chunk
        self._num_restarts = 0
        self._num_garbage = 0
        self._given_up: str | None = None  # error message, once there are no restarts left
        self._counted: EngineStats | None = None  # last totals of all actors so far
        self._carried: EngineStats | None = None  # totals of the earlier actors
        self._heard = transport.now()
        # Cache size of the earlier engine. A replacement cannot measure free memory while others use the device.
        self._cache_bytes = 0
        self.actor: Any = start_actor(0)
        self.starting: Any = self.actor.ready.remote()  # reference to wait for; None when ready

    @property
    def name(self) -> str:
        """Return the engine's name for messages, which changes whenever the engine is replaced."""
        if self.num_started == 1:
            return f"engine {self.index}"
        return f"engine {self.index} (number {self.num_started})"

    @property
    def version(self) -> int:
        """Return the policy version of the weights published last, or 0 for the weights of the model folder."""
        return 0 if self.published is None else self.published.version

    @property
    def silence_s(self) -> float:
        """Return the seconds since the engine last answered, or last got work after idling."""
        return self._transport.now() - self._heard

    def touch(self) -> None:
        """Restart the timer of an engine's silence, because the engine answered or got work."""
        self._heard = self._transport.now()
        self._on_progress()

    def note_chunk(self) -> None:
        """Reset the engine's count of consecutive failures, because the engine returned valid rollouts."""
        self._num_in_a_row = 0
        self.touch()

    def wait(self, timeout_s: float | None = None) -> EngineReady:
        """Block until the vLLM engine is ready to sample.

        Raises GenerationError when it does not start within `timeout_s` (None: generation.timeout_s).
        """
        reference = self.starting
        if reference is None:
            reference = self.actor.ready.remote()
        ready = self._transport.results([reference], timeout_s or self._timeout_s)[0]
        if not isinstance(ready, EngineReady):
            raise GenerationError(f"engine {self.index} did not start: {explain(ready)}")
        self.note_ready(ready)
        return ready

    def note_ready(self, ready: EngineReady) -> None:
        """Record that a vLLM engine has started and can be used."""
        if self.starting is not None:
            self.starting = None
            self._cache_bytes = ready.cache_bytes
            self.touch()
            seconds = f"import {ready.import_s:.1f} s, load {ready.load_s:.1f} s"
            logger.info("engine %d is ready: %s, %s", self.index, seconds, ready.scheduler_name)

    def check_start(self) -> None:
        """Check on a starting engine without blocking, and replace it if it failed or takes too long.

        Raises GenerationError when the engine has no restarts left.
        """
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

    def wait_alive(self, start_timeout_s: float | None = None) -> EngineReady:
        """Block until the engine is ready, and replace it if it was ready before and has died since.

        Raises GenerationError when an engine that is starting takes longer than `start_timeout_s` (None:
        generation.timeout_s) or fails, or when it has no restarts left.
        """
        if self.starting is None:
            return self.wait_or_replace()
        return self.wait(start_timeout_s)

    def wait_or_replace(self) -> EngineReady:
        """Block until the engine is ready, and replace it as often as needed.

        Raises GenerationError when the engine has no restarts left.
        """
        while True:
            try:
                return self.wait()
            except GenerationError as cause:
                self.replace(cause)

    def replace(self, cause: object) -> None:
        """Kill the engine's Ray actor and start a new actor with the published weights, without waiting for it.

        If only the policy has the weights, the new engine `lacks_weights` until it gets them. Raises GenerationError
        when the engine was replaced `max_restarts` times since it last returned rollouts.
        """
        # Also an actor that seems dead, because it may hold the device that its successor needs.
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
            "; it samples again once the policy has sent it the weights" if self.lacks_weights else "",
        )
        # The new actor counts from zero, and metrics are differences of totals.
        self._carried = self._counted
        self._start()

    def count(self, snapshot: EngineStats) -> EngineStats:
        """Return an engine's counters, such as sampled tokens, summed over all Ray actors that it has had.

        Its numbers of faults are included. `snapshot` holds the counters of the current actor.
        """
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
        """Kill the Ray actor of this vLLM engine."""
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
            # Each bucket is an argument of its own, so Ray moves it to the actor's node without the driver.
            self.starting = self.actor.restore.remote(
                published.manifest,
                published.version,
                *published.buckets,
            )


def why_lost(cause: object) -> str:
    """Return one line that says why a vLLM engine was replaced."""
    if isinstance(cause, ChunkFailure):
        return cause.reason
    return explain(cause)


def check_weights(handles: Sequence[EngineHandle]) -> None:
    """Raise GenerationError when no engine has the published policy weights."""
    for handle in handles:
        if not handle.lacks_weights:
            return
    causes = "; ".join(f"engine {handle.index}: {handle.lost_to}" for handle in handles)
    raise GenerationError(
        "all engines with the current weights were lost, and shared devices have no room to send them again. Run "
        f"the same command again to resume from the last checkpoint. Causes: {causes}"
    )
