"""Plan a run on GPUs: the memory of devices and of a node, the seconds of a step, and why it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brorl_launcher.planner.hardware import Hardware, configured_hardware
from brorl_launcher.planner.known_models import find_shape
from brorl_launcher.planner.memory_plan import DeviceMemory, EnginePlan, engine_plan, gpu_memory
from brorl_launcher.planner.node_memory import NodeMemory, node_memory
from brorl_launcher.planner.step_time import StepTime, step_time
from brorl_launcher.planner.workload import (
    ASSUMED,
    Engines,
    Lengths,
    MicroBatches,
    Workload,
    engines_of,
    micro_batches,
    workload_of,
)
from nemo_brorl.config.lengths import max_model_len
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.parallel_layout import ParallelLayout, layout_of
from nemo_brorl.config.rank_memory import policy_bytes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import Size, resolve_sizes
from nemo_brorl.core.machine import Machine
from nemo_brorl.core.model_shape import ModelShape

__all__ = ["Hardware", "Lengths", "Plan", "configured_hardware", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """The plan of a run on GPUs: its workload, layout, memory and step time."""

    config: BroRLConfig
    shape: ModelShape
    hardware: Hardware
    work: Workload
    layout: ParallelLayout
    engines: Engines
    micro: MicroBatches
    engine: EnginePlan
    devices: tuple[DeviceMemory, ...]
    node: NodeMemory
    time: StepTime
    refusal: str  # reason why it does not fit, or ""
    sizes: tuple[Size, ...] = ()  # sizes that were chosen where `config` has none

    @property
    def fits(self) -> bool:
        return not self.refusal

    @property
    def gpu_hours(self) -> float:
        """Return the estimated GPU-hours of all training steps of the run."""
        return self.time.seconds * self.config.trainer.max_steps * self.hardware.num_devices / 3600

    def summary(self) -> str:
        """Return the estimate for a run as one line, for a user who is about to submit the run."""
        if not self.fits:
            return f"does not fit: {self.refusal}"
        peaks = []
        for memory in self.devices:
            peaks.append(f"{memory.role} {memory.peak(memory.worst_moment):.1f} of {memory.capacity_gib:.1f} GiB")
        return (
            f"fits: {', '.join(peaks)} at worst; node {self.node.peak:.0f} of {self.node.capacity_gib:.0f} GiB; a step "
            f"about {self.time.seconds:,.0f} s, {self.config.trainer.max_steps} steps "
            f"{self.gpu_hours:,.0f} GPU-hours (estimated, see docs/planner.md)"
        )


def make_plan(
    config: BroRLConfig,
    hardware: Hardware,
    lengths: Lengths = ASSUMED,
    shape: ModelShape | None = None,
) -> Plan:
    """Estimate memory and time of a run on GPUs whose settings have passed the rules of the configuration.

    Unset sizes are chosen as the run chooses them on such hardware. Raises ModelError when the model's shape cannot be
    found.
    """
    shape = shape or find_shape(config)
    sized, sizes = resolve_sizes(config, shape, Machine(hardware.per_node, None, hardware.memory_gib))
    work = workload_of(sized, lengths)
    layout = layout_of(sized)
    micro = micro_batches(sized, work, layout)
    engines = engines_of(sized)
    engine = engine_plan(sized, shape, hardware, work)
    devices = gpu_memory(sized, shape, hardware, layout, engines, micro, engine)
    node = node_memory(sized, shape, hardware, policy_bytes(sized, shape, layout, 0), layout, engines, work)
    time = step_time(sized, shape, hardware, work, layout, engines, micro, engine)
    refusal = refusal_of(sized, shape, devices, node, engine)
    return Plan(config, shape, hardware, work, layout, engines, micro, engine, devices, node, time, refusal, sizes)


def refusal_of(
    config: BroRLConfig,
    shape: ModelShape,
    devices: Sequence[DeviceMemory],
    node: NodeMemory,
    engine: EnginePlan,
) -> str:
    """Return a text that says what of a run does not fit, such as the memory of a GPU with its largest use.

    The text is empty when everything fits.
    """
    found = list(misfits(config, shape))
    for memory in devices:
        if not memory.fits:
            moment = memory.worst_moment
            largest = memory.largest(moment)
            found.append(
                f"a {memory.role} has {memory.capacity_gib:.1f} GiB and needs {memory.peak(moment):.1f} at the "
                f"moment '{moment}', most of it {largest.name} ({largest.gib_at(moment):.1f} GiB, {largest.note})"
            )
    if engine.cache_tokens < max_model_len(config):
        found.append(
            f"an engine's cache holds {engine.cache_tokens:,} tokens, less than one sequence of "
            f"generation.max_model_len={max_model_len(config)}: its share of {engine.share_gib:.1f} GiB has "
            f"{engine.weights_gib:.1f} GiB of weights and {engine.working_gib:.1f} GiB of activations"
        )
    if not node.fits:
        found.append(
            f"a node has {node.capacity_gib:,.0f} GiB of memory and needs {node.peak:,.0f}, most of it "
            f"{node.largest.name} ({node.largest.gib:,.0f} GiB)"
        )
    return "; ".join(found)
