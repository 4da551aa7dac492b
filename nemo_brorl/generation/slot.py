"""One engine's place in the pool: the actor behind it changes when it dies, its number and its counters go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from nemo_brorl.errors import BroRLError, GenerationError
from nemo_brorl.generation.engine import ChunkFailure, EngineReady
from nemo_brorl.logs import get_logger
from nemo_brorl.types import EngineStats, TensorInfo

ENGINE_FAILURES = (RayActorError, RayTaskError, GetTimeoutError)

_COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "generated_tokens", "generated_samples")

logger = get_logger(__name__)


@dataclass(frozen=True)
class PublishedWeights:
    """The last complete update, kept by reference for engines that are started after it."""

    manifest: tuple[TensorInfo, ...]
    buckets: tuple[Any, ...]  # ray.ObjectRef of WeightBucket
    version: int


class EngineSlot:
    """Starts, replaces and stops one engine.

    starting ──`starting` resolves──► ready ──`replace`──► starting …; the slot gives up with GenerationError after
    `max_restarts` replacements. While starting, `starting` is the reference to wait for; the new actor has loaded the
    weights it was given when it resolves.
    """

    def __init__(self, index: int, start_actor: Callable[[], Any], max_restarts: int, timeout_s: float) -> None:
        self.index = index
        self._start_actor = start_actor
        self._max_restarts = max_restarts
        self._timeout_s = timeout_s
        self._num_restarts = 0
        self._given_up: str | None = None  # why, once there are no restarts left
        self._counted: EngineStats | None = None  # last snapshot, of all actors so far
        self._carried: EngineStats | None = None  # of the actors before this one
        self.actor: Any = start_actor()
        self.starting: Any = self.actor.ready.remote()  # None when ready

    def wait(self) -> EngineReady:
        """Block until the engine is ready. Raises GenerationError when it does not start."""
        reference = self.starting if self.starting is not None else self.actor.ready.remote()
        try:
            ready: EngineReady = ray.get(reference, timeout=self._timeout_s)
        except ENGINE_FAILURES as cause:
            raise GenerationError(f"engine {self.index} did not start: {explain(cause)}") from cause
        if self.starting is not None:
            self.starting = None
            logger.info("engine %d is ready: import %.1f s, load %.1f s", self.index, ready.import_s, ready.load_s)
        return ready

    def replace(self, cause: object, published: PublishedWeights | None) -> None:
        """Kill the actor and start another with the published weights (None: those of the model folder), without waiting.

        Raises GenerationError when the slot was replaced `max_restarts` times already.
        """
        ray.kill(self.actor, no_restart=True)
        if self._given_up is None and self._num_restarts >= self._max_restarts:
            self._given_up = (
                f"engine {self.index} failed {self._num_restarts + 1} times, generation.max_restarts={self._max_restarts}; "
                f"last: {explain(cause)}"
            )
        if self._given_up is not None:
            raise GenerationError(self._given_up)
        self._num_restarts += 1
        logger.warning("engine %d is replaced (%d of %d): %s", self.index, self._num_restarts, self._max_restarts, explain(cause))
        self._carried = self._counted
        self.actor = self._start_actor()
        if published is None:
            self.starting = self.actor.ready.remote()
        else:
            self.starting = self.actor.restore.remote(published.manifest, published.version, *published.buckets)

    def count(self, snapshot: EngineStats) -> EngineStats:
        """The slot's counters: those of its actor plus what earlier actors were last seen with."""
        if self._carried is not None:
            totals = {name: getattr(snapshot, name) + getattr(self._carried, name) for name in _COUNTERS}
            snapshot = dataclasses.replace(snapshot, **totals)
        self._counted = snapshot
        return snapshot

    def close(self) -> None:
        """Stop the engine."""
        ray.kill(self.actor, no_restart=True)


def explain(cause: object) -> str:
    """One line about why an engine failed, without the remote traceback."""
    if isinstance(cause, RayTaskError):
        inner = cause.cause
        return str(inner) if isinstance(inner, BroRLError) else f"{type(inner).__name__}: {inner}"
    if isinstance(cause, ChunkFailure):
        return cause.reason
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[-1] if lines else type(cause).__name__


def get_or_failure(reference: Any, timeout_s: float) -> Any:
    """The result, or the exception (one of ENGINE_FAILURES) in its place, for the caller to decide."""
    try:
        return ray.get(reference, timeout=timeout_s)
    except ENGINE_FAILURES as cause:
        return cause
