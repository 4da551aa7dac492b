"""One engine asleep: what it gives up while the policy trains on its device, and what it then still holds.

vLLM's CPU build has no sleep mode. There an engine goes through the same calls, which stop its scheduler and drop its
prefix cache, and gives back what its heap can spare; weights and KV cache stay in memory.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.core.process_memory import private_bytes, trim_heap

if TYPE_CHECKING:
    import torch

# vLLM's level 1 copies weights to host memory and drops the KV cache, level 2 drops both.
_LEVELS = {"cache": 1, "offload": 1, "discard": 2}


class SleepMode:
    """awake ──sleep──► asleep ──wake("weights")──► ──wake("kv_cache")──► awake. Waking what is awake does nothing."""

    def __init__(self, engine: Any, mode: str, on_cpu: bool) -> None:
        """Raises GenerationError for a mode that this vLLM does not have."""
        self._engine = engine
        self._level = _LEVELS.get(mode, 0)
        # Weights that stay: vLLM then releases the cache alone, which its CPU build refuses to.
        self._keeps_weights = mode == "cache" and not on_cpu
        self._asleep: set[str] = set()
        if self._keeps_weights and not hasattr(engine, "release_kv_cache_memory"):
            raise GenerationError(
                "generation.sleep=cache releases the KV cache alone, which this vLLM cannot (0.32 can): write "
                "offload or discard"
            )

    def sleep(self) -> int:
        """Give up what the mode says. Bytes that are still held, of the worker that holds most."""
        if self._level == 0:
            raise GenerationError("an engine was told to sleep and generation.sleep=off")
        if self._keeps_weights:
            self._engine.sleep(0)  # level 0 stops the scheduler
            self._engine.release_kv_cache_memory()
            self._asleep = {"kv_cache"}
        else:
            self._engine.sleep(self._level)
            self._asleep = {"weights", "kv_cache"}
        return max(self._engine.model_executor.collective_rpc("resident_bytes"))

    def wake(self, tag: str) -> None:
        """Make room for "weights" or for the "kv_cache" again."""
        if tag in self._asleep:
            self._engine.wake_up([tag])
            self._asleep.discard(tag)


def resident_bytes(device: torch.device) -> int:
    """What this process holds of a device: GPU memory by the driver's own count, or private memory of the process on
    CPU."""
    gc.collect()
    if device.type == "cpu":
        trim_heap()
        return private_bytes()
    return _gpu_bytes(device)


def _gpu_bytes(device: torch.device) -> int:
    """Of this process, context and libraries included; where the driver does not tell, what torch has reserved."""
    import os

    import torch
    from vllm.third_party import pynvml

    torch.cuda.empty_cache()
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        used = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError:
        used = {}
    return used.get(os.getpid()) or torch.cuda.memory_reserved(
        device
    )  # in a container the driver may count other process numbers
