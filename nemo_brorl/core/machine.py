"""Read what this machine has: cores, free memory, memory of a GPU. Nothing is imported for it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
GPU_GIB = 79.6  # where no GPU can be asked: the smallest that recipes are written for


@dataclass(frozen=True)
class Machine:
    """What a run has: cores and free memory of one machine without GPUs, or the memory of a GPU."""

    cores: int
    free_gib: float | None  # None: unknown, nothing shrinks
    gpu_gib: float = GPU_GIB


def this_machine() -> Machine:
    """Return what the machine that this process runs on has."""
    return Machine(len(os.sched_getaffinity(0)), available_gib(), gpu_gib() or GPU_GIB)


def available_gib(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Memory that new processes can use: what the kernel calls available, within the container's limit. None:
    unknown."""
    machine = _kernel_available(meminfo)
    limit = _container_left(cgroup)
    known = [size for size in (machine, limit) if size is not None]
    return min(known) / GIB if known else None


def gpu_gib() -> float | None:
    """Memory of this machine's first GPU as the driver reports it; None: there is none."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return float(done.stdout.splitlines()[0]) / 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _kernel_available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _container_left(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used
