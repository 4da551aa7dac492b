"""Read the resources of this machine: cores, free memory, GPU memory. Needs the standard library only."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
GPU_GIB = 79.6  # GiB of the smallest GPU that recipes are written for; used where no GPU can be queried


@dataclass(frozen=True)
class Machine:
    """Resources of a machine for a run: cores and free memory without GPUs, or the memory of a GPU."""

    cores: int
    free_gib: float | None  # None: unknown, so no size is reduced
    gpu_gib: float = GPU_GIB


def this_machine() -> Machine:
    """Return the cores, free memory and GPU memory of the machine that this process runs on."""
    return Machine(len(os.sched_getaffinity(0)), available_gib(), gpu_gib() or GPU_GIB)


def available_gib(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the GiB that new processes can use: the kernel's available memory, within the container's limit.

    None: unknown.
    """
    machine = _kernel_available(meminfo)
    limit = _container_left(cgroup)
    known = [size for size in (machine, limit) if size is not None]
    return min(known) / GIB if known else None


def gpu_gib() -> float | None:
    """Return the GiB of memory of this machine's first GPU, as nvidia-smi reports it; None: there is no GPU."""
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
