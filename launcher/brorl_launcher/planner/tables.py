"""Print the tables of a plan and of proposals on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from brorl_launcher.planner.evidence import never_run, paper_step_s
from brorl_launcher.planner.memory_plan import DeviceMemory
from brorl_launcher.planner.plan import Plan
from brorl_launcher.planner.proposals import Proposal
from brorl_launcher.planner.step_time import StepTime
from nemo_brorl.core.console import Console


def print_plan(plan: Plan) -> None:
    """Print the planner's estimate for a training run: memory, generation, time and assumptions."""
    console = Console()
    console.line(headline(plan))
    for size in plan.sizes:
        console.line(f"chosen: {size}")
    for memory in plan.devices:
        console.line()
        print_device(console, memory)
    console.line()
    rows = [[term.name, _gib(term.gib), term.note] for term in plan.node.terms]
    rows.append(["all", _gib(plan.node.peak), f"of {plan.node.capacity_gib:,.0f}"])
    console.table(["GiB of the first node", "", "how"], rows, text_columns=(0, 2))
    console.line()
    for text in remarks(plan):
        console.line(text)
    console.line()
    print_stages(console, plan.time)
    console.line()
    console.line(totals(plan))
    for text in evidence(plan):
        console.line(text)


def print_device(console: Console, memory: DeviceMemory) -> None:
    """Print the estimated memory of a GPU by its uses, at the moments of a step when it is fullest."""
    article = "an" if memory.role[0] in "aeiou" else "a"
    header = [f"GiB of {article} {memory.role}", *memory.moments, "how"]
    rows = []
    for term in memory.terms:
        if any(term.gib.values()):
            sizes = [_gib(term.gib_at(moment)) for moment in memory.moments]
            rows.append([term.name, *sizes, term.note])
    peaks = [_gib(memory.peak(moment)) for moment in memory.moments]
    rows.append(["all", *peaks, f"of {memory.capacity_gib:.1f}"])
    console.table(header, rows, text_columns=(0, len(header) - 1))


def print_stages(console: Console, time: StepTime) -> None:
    """Print the estimated seconds of a training step, stage by stage."""
    rows = []
    for stage in time.stages:
        share = ""
        if math.isfinite(time.seconds):
            share = f"{stage.seconds / time.seconds:.0%}"
        rows.append([stage.name, _seconds(stage.seconds), share, stage.note])
    rows.append(["all", _seconds(time.seconds), "", ""])
    console.table(["a step", "seconds", "share", "how"], rows, text_columns=(0, 3))


def print_proposals(title: str, proposals: Sequence[Proposal]) -> None:
    """Print one row for each proposed layout, then its settings in a form to paste."""
    if not proposals:
        return
    console = Console()
    console.line()
    rows = []
    for number, proposal in enumerate(proposals, 1):
        plan = proposal.plan
        peak = max(memory.peak(memory.worst_moment) for memory in plan.devices)
        rows.append([f"{number}  {_layout(plan)}", f"{peak:.1f}", _seconds(plan.time.seconds)])
    console.table([title, "GiB", "step, s"], rows)
    for number, proposal in enumerate(proposals, 1):
        console.line(f"{number}  {proposal.overrides or 'as it is'}")


def _layout(plan: Plan) -> str:
    layout = plan.layout
    degrees = {
        "TP": layout.tensor,
        "PP": layout.pipeline,
        "VPP": layout.chunks,
        "CP": layout.context,
        "EP": layout.expert,
    }
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
    words.append(f"DP {layout.data}")
    return f"{' '.join(words)}, {plan.engines.num} engines of {plan.engines.tensor}"


def headline(plan: Plan) -> str:
    """Return the first line of a printed estimate: model, devices, parallel layout and batch."""
    hardware, work = plan.hardware, plan.work
    devices = f"{hardware.num_nodes} × {hardware.per_node} {hardware.kind}"
    size = f"N = {work.num_per_prompt} × {work.prompts} prompts"
    return f"{plan.config.policy.model} on {devices}: policy {_layout(plan)}; {size}"


def remarks(plan: Plan) -> list[str]:
    """Return the printed lines on micro-batches, engines, the object store and the assumptions of an estimate."""
    micro, engine, node = plan.micro, plan.engine, plan.node
    return [
        f"micro-batches: {micro.num} of {micro.tokens:,.0f} tokens, for each of "
        f"{plan.config.algorithm.num_mini_batches} mini-batches and {plan.layout.data} replicas",
        f"engines: {engine.concurrency:,} rollouts at a time, {engine.cache_tokens:,} tokens of cache of "
        f"{engine.token_bytes:,.0f} bytes",
        f"object store {node.object_store_gib:.1f} GiB; disk {node.checkpoint_gib:.1f} GiB a checkpoint, "
        f"{node.disk_gib:.1f} in all",
        f"assumed: prompts of {plan.work.prompt_tokens:,.0f} tokens, responses of {plan.work.response_tokens:,.0f} ± "
        f"{plan.work.response_spread:.0%} up to {plan.work.response_limit:,}, {plan.work.keep_rate:.0%} of groups "
        "informative",
    ]


def totals(plan: Plan) -> str:
    """Return the printed line with token rates and hours of a step and of the run."""
    seconds = plan.time.seconds
    if not math.isfinite(seconds):
        return "an engine has no room for a single rollout"
    rate = plan.time.tokens / seconds
    steps = plan.config.trainer.max_steps
    return (
        f"{rate:,.0f} sampled tokens/s, {rate / plan.hardware.num_devices:,.0f} a device; "
        f"{steps} steps: {steps * seconds / 3600:,.1f} h, {plan.gpu_hours:,.0f} GPU-hours"
    )


def evidence(plan: Plan) -> list[str]:
    """Return the printed lines on the paper's step time, and on what of the plan has never run on GPUs."""
    lines = []
    paper_s = paper_step_s(plan)
    if paper_s is not None:
        lines.append(f"the paper's step took {paper_s:,.0f} s (arXiv 2510.01180), on another cluster and engine")
    pieces = never_run(plan)
    if pieces:
        lines.append(f"this project has never run on GPUs: {', '.join(pieces)}")
    return lines


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if math.isfinite(seconds) else "never ends"


def _gib(size: float) -> str:
    return f"{size:.2f}" if size else "–"
