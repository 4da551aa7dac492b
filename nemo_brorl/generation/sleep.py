"""Sleep of all engines of a pool while the policy trains on their devices, and waking them in stages."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from nemo_brorl.cluster.actor_transport import ActorTransport
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.engine_handle import EngineHandle

_GIB = 2**30


class StagedSleep:
    """The sleep state of a pool of engines.

    awake ──sleep──► asleep ──wake_weights──► weights awake ──wake_cache──► awake. Under generation.sleep=off nothing
    happens.

    An engine that fails to fall asleep is replaced by `wake_weights`, when the policy has freed its memory again.
    """

    def __init__(
        self,
        handles: Sequence[EngineHandle],
        config: GenerationConfig,
        transport: ActorTransport,
    ) -> None:
        self._handles = handles
        self._config = config
        self._transport = transport
        self._stage = "awake"
        self._slept: dict[str, float] = {}  # metrics of the last sleep
        # True while sampling would use weights that were dropped, until the next weight sync.
        self._needs_weights = False
        self._first_held: dict[str, int] = {}  # engine name → bytes that it held in its first sleep
        self._to_replace: list[tuple[EngineHandle, object]] = []  # (engine, cause)

    def sleep(self) -> dict[str, float]:
        """Put all vLLM engines to sleep, and return metrics of the memory that they still hold, in GiB.

        Does nothing to engines that sleep. Raises GenerationError when only their weights are awake, or when an engine
        cannot be replaced.
        """
        if self._config.sleep == "off":
            return {}
        if self._stage == "asleep":
            return self._slept
        self._enter("asleep", after="awake")
        for handle in self._handles:
            # An engine that is still loading must finish first.
            handle.wait_or_replace()
        held: dict[str, int] = {}
        calls = [handle.actor.sleep.remote() for handle in self._handles]
        results = self._transport.results(calls, self._config.timeout_s)
        for handle, result in zip(self._handles, results, strict=True):
            if isinstance(result, Exception):
                self._to_replace.append((handle, result))
            else:
                held[handle.name] = result
        self._needs_weights = self._config.sleep == "discard"
        self._slept = self._metrics(held)
        return self._slept

    def wake_weights(self) -> bool:
        """Allocate the weights of sleeping vLLM engines again.

        Returns True if an engine needs a weight sync before it may sample. Raises GenerationError unless the engines
        are asleep, or when an engine cannot be replaced.
        """
        if self._config.sleep == "off":
            return self._lacks_weights()
        self._enter("weights awake", after="asleep")
        for handle, cause in self._to_replace:
            handle.replace(cause)
        self._to_replace = []
        self._wake("weights")
        if self._lacks_weights():
            self._needs_weights = True
        return self._needs_weights

    def wake_cache(self) -> None:
        """Allocate the KV caches of sleeping vLLM engines again.

        Raises GenerationError unless the engines' weights are awake and, where sleep dropped them, have been published
        again.
        """
        if self._config.sleep == "off":
            return
        if self._needs_weights:
            raise GenerationError(
                f"engines have no weights after generation.sleep={self._config.sleep}: publish between wake_weights "
                "and wake_cache"
            )
        self._enter("awake", after="weights awake")
        self._wake("kv_cache")

    def note_loaded(self) -> None:
        """Record that the vLLM engines received new policy weights."""
        self._needs_weights = False

    def check_awake(self) -> None:
        """Raise GenerationError when the vLLM engines sleep."""
        if self._stage != "awake":
            raise GenerationError(
                f"open_session was called while engines sleep ({self._stage}); wake_weights and wake_cache come first"
            )

    def check_has_room_for_weights(self) -> None:
        """Raise GenerationError when the vLLM engines sleep and their weights are not allocated again."""
        if self._stage == "asleep":
            raise GenerationError("load_weights was called while engines sleep; wake_weights comes first")

    def _enter(self, stage: str, after: str) -> None:
        if self._stage != after:
            raise GenerationError(f"engines are {self._stage} and can only be made {stage} when they are {after}")
        self._stage = stage

    def _metrics(self, held: Mapping[str, int]) -> dict[str, float]:
        """Return metrics of the bytes that sleeping engines hold, and of their growth since the first sleep."""
        metrics: dict[str, float] = {}
        first_held = {}
        growth = []
        for name, num_bytes in held.items():
            first_held[name] = self._first_held.get(name, num_bytes)
            growth.append(num_bytes - first_held[name])
        self._first_held = first_held
        if held:
            metrics["sleep/residual_gib_max"] = max(held.values()) / _GIB
            metrics["sleep/residual_gib_mean"] = statistics.mean(held.values()) / _GIB
            metrics["sleep/residual_growth_gib_max"] = max(growth) / _GIB
        return metrics

    def _wake(self, tag: str) -> None:
        """Allocate the weights or the KV cache of all sleeping engines again.

        An engine that fails to do so is replaced.
        """
        handles = [handle for handle in self._handles if handle.starting is None]
        calls = [handle.actor.wake.remote(tag) for handle in handles]
        results = self._transport.results(calls, self._config.timeout_s)
        for handle, result in zip(handles, results, strict=True):
            if isinstance(result, Exception):
                handle.replace(result)

    def _lacks_weights(self) -> bool:
        return any(handle.lacks_weights for handle in self._handles)
