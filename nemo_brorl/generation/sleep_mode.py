"""Sleep of one engine: the memory that it frees while the policy trains on its device.

vLLM's CPU build has no sleep mode. There an engine goes through the same calls, which stop its scheduler, drop its
prefix cache and return unused heap memory. Weights and KV cache stay in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation import vllm_adapter

if TYPE_CHECKING:
    from vllm import LLMEngine

# vLLM's level 1 copies weights to host memory and drops the KV cache, level 2 drops both.
_LEVELS = {"cache": 1, "offload": 1, "discard": 2}
# Limit of steps until an engine without requests is idle. It needs one for each running batch, and one to report ends.
_MAX_DRAIN_STEPS = 16


class SleepMode:
    """The sleep state of one engine.

    awake ──sleep──► asleep ──wake("weights")──► ──wake("kv_cache")──► awake. Waking what is awake does nothing.
    """

    def __init__(
        self,
        engine: LLMEngine,
        mode: str,
        on_cpu: bool,
    ) -> None:
        """Set up the vLLM sleep mode that `generation.sleep` names.

        Raises GenerationError if the installed vLLM does not have this mode.
        """
        self._engine = engine
        self._level = _LEVELS.get(mode, 0)
        # True if vLLM releases the cache alone. Its CPU build cannot.
        self._keeps_weights = mode == "cache" and not on_cpu
        self._asleep: set[str] = set()
        if self._keeps_weights and not hasattr(engine, "release_kv_cache_memory"):
            raise GenerationError(
                "generation.sleep=cache releases the KV cache alone, which this vLLM cannot (0.32 can). Set offload "
                "or discard."
            )

    def sleep(self) -> int:
        """Free the engine's memory that its sleep mode covers.

        Returns the bytes still held by the worker that holds most.
        """
        self._drain()
        if self._level == 0:
            raise GenerationError("an engine was told to sleep and generation.sleep=off")
        if self._keeps_weights:
            # Level 0 stops the scheduler and frees nothing. vLLM requires it before a release.
            self._engine.sleep(0)
            self._engine.release_kv_cache_memory()
            self._asleep = {"kv_cache"}
        else:
            self._engine.sleep(self._level)
            self._asleep = {"weights", "kv_cache"}
        return max(self._engine.collective_rpc("resident_bytes"))

    def _drain(self) -> None:
        """Step the engine until nothing of aborted or ended requests is left, so that vLLM can free their memory.

        vLLM tells its workers only in the next step which requests have ended, and with async scheduling one batch is
        always running.
        """
        for _ in range(_MAX_DRAIN_STEPS):
            if vllm_adapter.is_drained(self._engine):
                return
            self._engine.step()
        raise GenerationError(f"an engine was told to sleep and is not idle after {_MAX_DRAIN_STEPS} steps")

    def wake(self, tag: str) -> None:
        """Allocate the memory of a sleeping engine again, for the "weights" or for the "kv_cache"."""
        if tag in self._asleep:
            self._engine.wake_up([tag])
            self._asleep.discard(tag)
