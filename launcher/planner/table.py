"""A plan as tables, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nemo_brorl.core.console import Console
from nemo_brorl.launcher.planner.plan import Plan
from nemo_brorl.launcher.planner.proposals import Proposal


def print_plan(plan: Plan) -> None:
    """Memory, generation, time, assumptions."""
    console = Console()
    console.line(headline(plan))
    for memory in plan.devices:
        console.line()
        rows = [
            [term.name, *(_gib(term.at(moment)) for moment in memory.moments), term.note]
            for term in memory.terms
            if any(term.gib.values())
        ]
        rows.append(["all", *(_gib(memory.peak(moment)) for moment in memory.moments), f"of {memory.capacity_gib:.1f}"])
        _table(console, [f"GiB of {_article(memory.role)}", *memory.moments, "how"], rows)
    console.line()
    node = [[term.name, _gib(term.gib), term.note] for term in plan.node.terms]
    node.append(["all", _gib(plan.node.peak), f"of {plan.node.capacity_gib:,.0f}"])
    _table(console, ["GiB of the first node", "", "how"], node)
    console.line()
    for text in remarks(plan):
        console.line(text)
    console.line()
    whole = plan.time.seconds
    stages = [
        [stage.name, _seconds(stage.seconds), _share(stage.seconds, whole), stage.note] for stage in plan.time.stages
    ]
    stages.append(["all", _seconds(whole), "", ""])
    _table(console, ["a step", "seconds", "share", "how"], stages)
    console.line()
    console.line(totals(plan))


def _article(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def print_proposals(title: str, proposals: Sequence[Proposal]) -> None:
    """One row a proposal, with the settings to paste."""
    if not proposals:
        return
    console = Console()
    console.line()
    rows = []
    for number, proposal in enumerate(proposals, 1):
        plan = proposal.plan
        peak = max(memory.peak(memory.worst) for memory in plan.devices)
        rows.append([f"{number}  {_layout(plan)}", f"{peak:.1f}", _seconds(plan.time.seconds)])
    console.table([title, "GiB", "step, s"], rows)
    for number, proposal in enumerate(proposals, 1):
        console.line(f"{number}  {proposal.overrides or 'as it is'}")


def _layout(plan: Plan) -> str:
    cut = plan.cut
    degrees = {"TP": cut.tensor, "PP": cut.pipeline, "VPP": cut.virtual, "CP": cut.context, "EP": cut.expert}
    used = " ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    return f"{used + ' ' if used else ''}DP {cut.data}, {plan.engines.num} engines of {plan.engines.tensor}"


def _table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last column is text and starts at the left."""
    width = max(len(row[-1]) for row in (header, *rows))
    console.table([*header[:-1], header[-1].ljust(width)], [[*row[:-1], row[-1].ljust(width)] for row in rows])


def headline(plan: Plan) -> str:
    """What is planned."""
    hardware, work = plan.hardware, plan.work
    return (
        f"{plan.config.policy.model} on {hardware.num_nodes} × {hardware.per_node} {hardware.kind}: policy "
        f"{_layout(plan)}; "
        f"N = {work.num_per_prompt} × {work.prompts} prompts"
    )


def remarks(plan: Plan) -> list[str]:
    """What is cut how finely."""
    micro, engine, node = plan.micro, plan.engine, plan.node
    return [
        f"micro-batches: {micro.num} of {micro.tokens:,.0f} tokens, for each of "
        f"{plan.config.algorithm.num_mini_batches} mini-batches "
        f"and {plan.cut.data} replicas",
        f"engines: {engine.concurrency:,} rollouts at a time, {engine.cache_tokens:,} tokens of cache of "
        f"{engine.token_bytes:,.0f} bytes",
        f"object store {node.object_store_gib:.1f} GiB; disk {node.checkpoint_gib:.1f} GiB a checkpoint, "
        f"{node.disk_gib:.1f} in all",
        f"assumed: prompts of {plan.work.prompt_tokens:,.0f} tokens, responses of {plan.work.response_tokens:,.0f} ± "
        f"{plan.work.response_spread:.0%} up to {plan.work.response_limit:,}, {plan.work.keep_rate:.0%} of groups "
        f"informative",
    ]


def totals(plan: Plan) -> str:
    """Of a step and of the run."""
    time, steps = plan.time, plan.config.trainer.max_steps
    if not math.isfinite(time.seconds):
        return "an engine has no room for a single rollout"
    return (
        f"{time.tokens / time.seconds:,.0f} sampled tokens/s, "
        f"{time.tokens / time.seconds / plan.hardware.num_devices:,.0f} a device; "
        f"{steps} steps: {steps * time.seconds / 3600:,.1f} h, {plan.gpu_hours:,.0f} GPU-hours"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if math.isfinite(seconds) else "never ends"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if math.isfinite(whole) else ""


def _gib(size: float) -> str:
    return f"{size:.2f}" if size else "–"


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything that is printed, by name."""
    return {
        "model": plan.config.policy.model,
        "fits": plan.fits,
        "refusal": plan.refusal,
        "devices": [
            {
                "role": memory.role,
                "capacity_gib": memory.capacity_gib,
                "peak_gib": {moment: memory.peak(moment) for moment in memory.moments},
                "terms_gib": {term.name: dict(term.gib) for term in memory.terms},
            }
            for memory in plan.devices
        ],
        "node_gib": {term.name: term.gib for term in plan.node.terms}
        | {"all": plan.node.peak, "capacity": plan.node.capacity_gib},
        "object_store_gib": plan.node.object_store_gib,
        "checkpoint_gib": plan.node.checkpoint_gib,
        "disk_gib": plan.node.disk_gib,
        "micro_batches": plan.micro.num,
        "engine_concurrency": plan.engine.concurrency,
        "cache_tokens": plan.engine.cache_tokens,
        "stages_s": {stage.name: _finite(stage.seconds) for stage in plan.time.stages},
        "step_s": _finite(plan.time.seconds),
        "tokens_per_s": plan.time.tokens / plan.time.seconds,
        "gpu_hours": _finite(plan.gpu_hours),
    }


def _finite(number: float) -> float | None:
    """JSON has no infinity; null: never ends."""
    return number if math.isfinite(number) else None
