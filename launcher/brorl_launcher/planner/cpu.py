"""Plan a run without GPUs: its sizes, and the memory of its processes as the check at its start counts it.

The time of a step on a CPU is measured, not planned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brorl_launcher.planner.known_models import find_shape
from nemo_brorl.config.memory import CpuMemory, cpu_memory, fullest_micro_batch, lack_of_memory
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import Size, resolve_sizes
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.machine import Machine, available_gib
from nemo_brorl.core.model_shape import ModelShape


@dataclass(frozen=True)
class CpuPlan:
    """The plan of a run on CPU: its sizes, the memory that it needs and the free memory."""

    config: BroRLConfig  # settings with all sizes
    sizes: tuple[Size, ...]  # automatically chosen sizes
    memory: CpuMemory
    free_gib: float
    refusal: str  # reason why it does not fit, or ""

    @property
    def fits(self) -> bool:
        return not self.refusal


def machine_with(memory_gib: float | None) -> tuple[int, float]:
    """Return the number of cores of this machine, and its memory in GiB.

    The memory is `memory_gib` if given, else the free memory. Raises ResourceError when the free memory cannot be read.
    """
    free = available_gib() if memory_gib is None else memory_gib
    if free is None:
        raise ResourceError("the free memory of this machine cannot be read: give it with --host-memory GIB")
    return len(os.sched_getaffinity(0)), free


def make_cpu_plan(
    config: BroRLConfig,
    cores: int,
    free_gib: float,
    shape: ModelShape | None = None,
) -> CpuPlan:
    """Estimate the memory of a run on CPU with the same code that the run uses at its start.

    Raises ModelError when the model's shape cannot be found.
    """
    shape = shape or find_shape(config)
    sized, sizes = resolve_sizes(config, shape, Machine(cores, free_gib))
    memory = cpu_memory(sized, shape, fullest_micro_batch(sized))
    found = list(misfits(sized, shape))
    if memory.total > free_gib:
        found.append(lack_of_memory(sized, memory.total, free_gib))
    return CpuPlan(sized, sizes, memory, free_gib, "; ".join(found))


def print_cpu_plan(plan: CpuPlan) -> None:
    """Print the sizes of a run on CPU, and the memory of a policy rank, of an engine and of the machine."""
    console = Console()
    console.line(f"{plan.config.policy.model} on CPU")
    for size in plan.sizes:
        console.line(f"chosen: {size}")
    for title, terms in _tables(plan.memory).items():
        console.line()
        rows = [[name, f"{gib:.2f}"] for name, gib in terms.items() if gib]
        rows.append(["all", f"{sum(terms.values()):.2f}"])
        console.table([title, ""], rows)
    console.line()
    console.line(f"{plan.free_gib:.2f} GiB are free")
    console.line(
        "the time of a step on a CPU is measured, not planned: `brorl try` measures sampling, the start of "
        "`brorl train` also training"
    )


def write_cpu_plan(plan: CpuPlan, path: Path) -> None:
    """Write the estimate for a run on CPU as JSON, with everything that `brorl plan` prints."""
    data = {
        "model": plan.config.policy.model,
        "fits": plan.fits,
        "refusal": plan.refusal,
        "sizes": {size.setting: size.value for size in plan.sizes},
        "memory_gib": _tables(plan.memory),
        "free_gib": plan.free_gib,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _tables(memory: CpuMemory) -> Mapping[str, Mapping[str, float]]:
    """Return the estimated memory of a run on CPU in GiB, in tables for a policy rank, an engine and the machine."""
    node = {
        f"{memory.num_ranks} policy ranks": memory.num_ranks * sum(memory.rank.values()),
        f"{memory.num_engines} engines": memory.num_engines * sum(memory.engine.values()),
        **memory.others,
    }
    return {"GiB of a policy rank": memory.rank, "GiB of an engine": memory.engine, "GiB of the machine": node}
