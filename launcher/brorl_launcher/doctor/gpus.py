"""Check the GPUs of a node: number, free memory, other processes on them, and whether the driver serves torch's CUDA.

nvidia-smi and torch run in processes that may hang. As a program (`probe.py`) this module reports what torch sees.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB

SMI_S = 30.0  # deadline of nvidia-smi
TORCH_S = 300.0  # deadline of torch
GPU_FIELDS = (
    "index",
    "name",
    "memory.total",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_event_reasons.hw_slowdown",
)
GPU_USERS = ("pid", "process_name", "used_gpu_memory")

_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")
ADVICE_BUSY = "end them, or ask for the nodes with --exclusive"


def check_gpus(config: BroRLConfig) -> Iterator[Check]:
    """Check this node's GPUs: health, number, free memory and driver."""
    wanted = config.trainer.gpus_per_node
    overview = _run_smi([])
    if isinstance(overview, str):
        rows = _run_smi(_query("gpu", GPU_FIELDS))
        users = _run_smi(_query("compute-apps", GPU_USERS))
        yield from judge_smi(rows or "", users or "")
    seen = run_probe("gpus", "torch", {}, TORCH_S)
    if seen.data is None:
        advice = "does python -c 'import torch; torch.cuda.init()' work here?"
        yield Check("gpus", FAIL, f"torch did not say what it sees: {seen.reason}", advice)
        return
    yield judge_count(wanted, seen.data)
    devices = seen.data["devices"]
    if devices:
        sizes = RunSizes.from_config(config)
        yield judge_memory(sizes.gpu_share, devices)
        yield judge_graphs(config.generation.largest_graph(sizes.max_num_seqs), sizes.max_num_seqs)
    if overview is None:
        found = "nvidia-smi is not here or does not answer: driver, errors and other processes were not looked at"
        yield Check("gpu driver", WARN, found)
    else:
        yield judge_driver(overview, seen.data)


def judge_count(wanted: int, seen: Mapping[str, Any]) -> Check:
    """Check that the GPUs of this node, as torch sees them, are enough and of one kind."""
    devices: Sequence[Mapping[str, Any]] = seen["devices"]
    every_name = [device["name"] for device in devices]
    names = list(dict.fromkeys(every_name))  # distinct names in order
    kinds = " and ".join(names) or "no GPU"
    found = f"{len(devices)} × {kinds}, torch for CUDA {seen['cuda']}, NCCL {seen['nccl']}"
    if len(devices) < wanted:
        advice = (
            f"trainer.gpus_per_node={wanted}: set the number there is, or ask Slurm for them "
            f"(--gpus-per-node), see CUDA_VISIBLE_DEVICES"
        )
        if seen["error"]:
            found += f"; {seen['error']}"
        return Check("gpus", FAIL, found, advice)
    if len(names) > 1:
        return Check("gpus", WARN, found, "the slowest kind sets the pace of all")
    if len(devices) > wanted:
        advice = f"trainer.gpus_per_node={wanted} leaves {len(devices) - wanted} idle"
        return Check("gpus", WARN, found, advice)
    return Check("gpus", OK, found)


def judge_memory(share: float, devices: Sequence[Mapping[str, Any]]) -> Check:
    """Check that each GPU has as much free memory as the share that vLLM engines take."""
    poorest = min(devices, key=lambda device: device["free"] / device["total"])
    if poorest["free"] < share * poorest["total"]:
        found = f"GPU {poorest['index']} has {poorest['free'] / GIB:.1f} of {poorest['total'] / GIB:.1f} GiB free"
        advice = f"generation.gpu_memory_utilization={share:g} does not fit: {ADVICE_BUSY}, or lower it"
        return Check("gpu memory", FAIL, found, advice)
    least = min(device["free"] / GIB for device in devices)
    return Check("gpu memory", OK, f"{least:.1f} GiB and more free on each")


def judge_graphs(largest_graph: int, max_num_seqs: int) -> Check:
    """Check that a vLLM engine decodes its largest batch with a CUDA graph."""
    if largest_graph >= max_num_seqs:
        return Check("cuda graphs", OK, f"for batches of up to {largest_graph} sequences, as many as an engine decodes")
    if not largest_graph:
        found = "engines run without them, which costs milliseconds a step"
        return Check("cuda graphs", WARN, found, "set generation.enforce_eager=false")
    found = f"batches of {largest_graph + 1} to {max_num_seqs} sequences run without one"
    advice = f"set max_cudagraph_capture_size={max_num_seqs} in generation.engine_args.compilation_config"
    return Check("cuda graphs", WARN, found, advice)


def judge_smi(rows: str, users: str) -> Iterator[Check]:
    """Yield checks of GPU memory errors and of other processes on the GPUs.

    `rows` and `users` are nvidia-smi's tables without header and units.
    """
    faulty, slow, healthy = [], [], []
    for cells in _cells(rows, len(GPU_FIELDS)):
        gpu = dict(zip(GPU_FIELDS, cells, strict=True))
        if gpu["ecc.errors.uncorrected.volatile.total"] not in ("0", "[N/A]", "N/A"):
            faulty.append(gpu["index"])
        elif gpu["clocks_event_reasons.hw_slowdown"] == "Active":
            slow.append(gpu["index"])
        else:
            healthy.append(gpu["index"])
    if faulty:
        found = f"uncorrected memory errors on GPU {', '.join(faulty)}"
        yield Check("gpu health", FAIL, found, "reset or replace it; drain the node until then")
    elif slow:
        found = f"the hardware slows down GPU {', '.join(slow)}"
        yield Check("gpu health", WARN, found, "heat or power: nvidia-smi -q -d PERFORMANCE")
    elif healthy:
        yield Check("gpu health", OK, "no uncorrected errors, not slowed down")
    others = []
    for pid, name, used in _cells(users, len(GPU_USERS)):
        others.append(f"{name} (pid {pid}, {used} MiB)")
    if others:
        yield Check("gpu users", WARN, f"{len(others)} other processes: {', '.join(others[:4])}", ADVICE_BUSY)


def judge_driver(overview: str, seen: Mapping[str, Any]) -> Check:
    """Check that the NVIDIA driver supports the CUDA version that torch was built for.

    By CUDA's rule a driver serves every release of its own major version and of older ones. NVIDIA's compat package
    lets it serve newer ones, too, which nvidia-smi does not show.
    """
    match = _CUDA.search(overview)
    cuda = str(seen["cuda"] or "")
    if match is None or not cuda:
        return Check("gpu driver", WARN, "its CUDA version is not known")
    found = f"serves CUDA {match[1]}.{match[2]}, torch was built for {cuda}"
    major, _, _ = cuda.partition(".")
    if int(match[1]) < int(major) and seen["devices"] and not seen["error"]:
        advice = "the all-reduces tell whether it serves NCCL, too"
        return Check(
            "gpu driver", WARN, f"{found}; torch opens the GPUs, so a compat package of NVIDIA's is here", advice
        )
    if int(match[1]) < int(major):
        advice = f"install a newer driver, NVIDIA's package cuda-compat-{major}-x, or a torch for this CUDA"
        return Check("gpu driver", FAIL, found, advice)
    return Check("gpu driver", OK, found)


def _query(what: str, fields: Sequence[str]) -> list[str]:
    return [f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]


def _run_smi(arguments: Sequence[str]) -> str | None:
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cells(text: str, num: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == num:
            yield cells


def see_with_torch(_: dict[str, Any]) -> dict[str, Any]:
    """Return what torch sees of this node's GPUs.

    `cuda` and `nccl` are versions, `devices` have index, name, and total and free bytes, `error` tells why torch could
    not look.
    """
    import torch

    devices: list[dict[str, Any]] = []
    seen: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "nccl": None,
        "devices": devices,
        "error": "",
    }
    try:
        torch.cuda.init()
        numbers = torch.cuda.nccl.version()
        seen["nccl"] = ".".join(map(str, numbers))
        for index in range(torch.cuda.device_count()):
            name = torch.cuda.get_device_name(index)
            free, total = torch.cuda.mem_get_info(index)
            devices.append({"index": index, "name": name, "free": free, "total": total})
    except (RuntimeError, AssertionError) as error:
        seen["error"] = str(error).splitlines()[0]
    return seen


if __name__ == "__main__":
    answer_probe({"torch": see_with_torch})
