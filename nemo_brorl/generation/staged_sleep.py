"""All engines of the pool asleep and awake again, in stages, and what they hold meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nemo_brorl.config.generation_schema import GenerationConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.engine_handle import EngineSlot, get_all

_GIB = 2**30


class StagedSleep:
    """awake ──sleep──► asleep ──wake_weights──► weights awake ──wake_cache──► awake; nothing happens under
    generation.sleep=off.

    An engine that holds more than `generation.max_residual_gib` when it sleeps has leaked: `wake_weights`, when the
    policy has made room again, starts another in its place, which counts as no fault.
    """

    def __init__(self, slots: Sequence[EngineSlot], config: GenerationConfig) -> None:
        self._slots = slots
        self._config = config
        self._stage = "awake"
        self._needs_weights = False  # sampling before the next publication would use weights that are gone
        self._first: dict[str, int] = {}  # by engine: what it held the first time
        self._due: list[tuple[EngineSlot, object, bool]] = []  # to be replaced, why, and whether it is a fault
        self._num_restarts = 0

    def sleep(self) -> dict[str, float]:
        """Raises GenerationError unless awake, or when an engine cannot be brought back. Metrics of what the engines
        still hold, in GiB."""
        if self._config.sleep == "off":
            return {}
        self._enter("asleep", after="awake")
        for slot in self._slots:
            slot.wait_or_replace()  # one that is still loading must not fall asleep over it
        held: dict[str, int] = {}
        results = get_all([slot.actor.sleep.remote() for slot in self._slots], self._config.timeout_s)
        for slot, result in zip(self._slots, results, strict=True):
            if isinstance(result, Exception):
                self._due.append((slot, result, True))
            else:
                held[slot.name] = result
                self._judge(slot, result)
        self._needs_weights = self._config.sleep == "discard"
        self._first = {name: self._first.get(name, num) for name, num in held.items()}
        if not held:
            return {"sleep/num_restarts": float(self._num_restarts)}
        return {
            "sleep/residual_gib_max": max(held.values()) / _GIB,
            "sleep/residual_gib_mean": statistics.mean(held.values()) / _GIB,
            "sleep/residual_growth_gib_max": max(num - self._first[name] for name, num in held.items()) / _GIB,
            "sleep/num_restarts": float(self._num_restarts),
        }

    def wake_weights(self) -> bool:
        """Whether an engine has no weights now, or older ones. Raises GenerationError unless asleep, or when an engine
        can be replaced no more."""
        if self._config.sleep == "off":
            return self._lacks_weights()
        self._enter("weights awake", after="asleep")
        for slot, cause, is_fault in self._due:
            slot.replace(cause, is_fault=is_fault)
        self._due = []
        self._wake("weights")
        self._needs_weights |= self._lacks_weights()
        return self._needs_weights

    def wake_cache(self) -> None:
        """Raises GenerationError unless weights are awake and, where they were dropped, have been published again."""
        if self._config.sleep == "off":
            return
        if self._needs_weights:
            raise GenerationError(
                f"engines have no weights after generation.sleep={self._config.sleep}: publish between wake_weights "
                f"and wake_cache"
            )
        self._enter("awake", after="weights awake")
        self._wake("kv_cache")

    def note_loaded(self) -> None:
        """Weights were published."""
        self._needs_weights = False

    def check_awake(self, what: str) -> None:
        """Raise GenerationError when engines sleep."""
        if self._stage != "awake":
            raise GenerationError(
                f"{what} was called while engines sleep ({self._stage}); wake_weights and wake_cache come first"
            )

    def check_has_room_for_weights(self) -> None:
        """Raise GenerationError when engines sleep so deeply that nothing can be loaded."""
        if self._stage == "asleep":
            raise GenerationError("load_weights was called while engines sleep; wake_weights comes first")

    def _enter(self, stage: str, after: str) -> None:
        if self._stage != after:
            raise GenerationError(f"engines are {self._stage} and can only be made {stage} when they are {after}")
        self._stage = stage

    def _judge(self, slot: EngineSlot, num_bytes: int) -> None:
        limit = self._config.max_residual_gib
        if limit is not None and num_bytes > limit * _GIB:
            cause = f"it holds {num_bytes / _GIB:.2f} GiB while it sleeps, generation.max_residual_gib={limit:g}"
            self._due.append((slot, cause, False))
            self._num_restarts += 1

    def _wake(self, tag: str) -> None:
        """An engine that does not wake is lost."""
        slots = [slot for slot in self._slots if slot.starting is None]
        results = get_all([slot.actor.wake.remote(tag) for slot in slots], self._config.timeout_s)
        for slot, result in zip(slots, results, strict=True):
            if isinstance(result, Exception):
                slot.replace(result)

    def _lacks_weights(self) -> bool:
        return any(slot.lacks_weights for slot in self._slots)
