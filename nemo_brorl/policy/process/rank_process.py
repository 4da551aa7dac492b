"""Describe the process of a policy rank from its settings alone: environment variables, and a profiler around it.

It does not import torch, so the driver can use it before any rank starts.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from nemo_brorl.config.rank_settings import RankSettings

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def rank_environment(settings: RankSettings, model_folder: Path) -> dict[str, str]:
    """Return the environment variables of a policy rank's process."""
    variables = {
        "OMP_NUM_THREADS": str(settings.policy.num_threads or 1),
        "PYTHONDONTWRITEBYTECODE": "",  # empty, because imports without byte code take several times as long
        # Megatron needs it under tensor parallelism. Engines must not have it.
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
    }
    if settings.sizes.weight_transport == "cuda_ipc":
        for name in _ALLOCATOR:
            if name in os.environ:
                variables[name] = _without_expandable_segments(os.environ[name])
    if settings.sizes.gpus_per_node == 0:
        # Several malloc arenas keep holes: 0.2 GiB of 1.7. On busy cores active waits take four times the CPU seconds.
        variables |= {"MALLOC_ARENA_MAX": "1", "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
        if settings.sizes.num_nodes == 1:
            variables["GLOO_SOCKET_IFNAME"] = "lo"
    if model_folder.exists():
        variables["HF_HUB_OFFLINE"] = "1"
    return variables


def _without_expandable_segments(settings: str) -> str:
    """Return settings of torch's allocator without `expandable_segments`.

    Memory in such segments is shared with other processes by a system call that containers forbid (pytorch issue
    165685).
    """
    kept = []
    for setting in settings.split(","):
        if not setting.strip().startswith("expandable_segments"):
            kept.append(setting)
    return ",".join(kept)


def rank_process(settings: RankSettings, model_folder: Path, rank: int) -> dict[str, Any]:
    """Return Ray's runtime environment for a rank's process. Creates the folder that nsys writes to."""
    environment = rank_environment(settings, model_folder)
    process: dict[str, Any] = {"env_vars": environment}
    options = nsight_options(settings, rank)
    if options is not None:
        process["nsight"] = options
        settings.profile_folder.mkdir(parents=True, exist_ok=True)
        # Under nsys Ray starts the first "python" of the PATH, so ours must come first.
        environment["PATH"] = f"{Path(sys.executable).parent}:${{PATH}}"
    return process


def nsight_options(settings: RankSettings, rank: int) -> dict[str, str] | None:
    """Return the options of nsys for Ray's runtime environment, or None if the rank does not run under nsys."""
    profile = settings.profile
    if profile.kind != "nsys" or rank not in profile.ranks:
        return None
    report = str(settings.profile_folder / f"nsys_rank_{rank}_%p")
    return {
        "t": "cuda,nvtx,cublas,cudnn",
        "capture-range": "cudaProfilerApi",
        "capture-range-end": "repeat",
        "o": re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", report),  # escaped, because Ray starts nsys through a shell
    }
