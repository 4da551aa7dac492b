"""Write a plan as JSON, with everything that is printed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brorl_launcher.planner.evidence import never_run, paper_step_s
from brorl_launcher.planner.plan import Plan
from brorl_launcher.planner.proposals import Proposal


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """Return the memory and time estimate of a run as a JSON object, with everything that `brorl plan` prints."""
    devices = []
    for memory in plan.devices:
        peaks = {moment: memory.peak(moment) for moment in memory.moments}
        terms = {term.name: dict(term.gib) for term in memory.terms}
        devices.append(
            {"role": memory.role, "capacity_gib": memory.capacity_gib, "peak_gib": peaks, "terms_gib": terms}
        )
    node = {term.name: term.gib for term in plan.node.terms}
    node["all"] = plan.node.peak
    node["capacity"] = plan.node.capacity_gib
    return {
        "model": plan.config.policy.model,
        "fits": plan.fits,
        "refusal": plan.refusal,
        "devices": devices,
        "node_gib": node,
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
        "paper_step_s": paper_step_s(plan),
        "never_run_on_gpus": never_run(plan),
    }


def _finite(number: float) -> float | None:
    """Return a number, or None if it is infinite, because JSON has no infinity."""
    return number if math.isfinite(number) else None


def write_json(
    plan: Plan,
    better: Sequence[Proposal],
    helpful: Sequence[Proposal],
    path: Path,
) -> None:
    """Write the memory and time estimate of a run as JSON.

    It includes the overrides of proposed layouts and of changes that make the run fit.
    """
    data = plan_as_json(plan)
    data["proposals"] = [_proposal_json(proposal) for proposal in better]
    data["remedies"] = [_proposal_json(proposal) for proposal in helpful]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _proposal_json(proposal: Proposal) -> dict[str, object]:
    return {"overrides": proposal.overrides, "step_s": proposal.plan.time.seconds}
