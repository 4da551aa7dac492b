"""Hold what has been run of the runs that are planned: by the paper's authors, and by this project on GPUs."""

from __future__ import annotations

from brorl_launcher.planner.plan import Plan

# arXiv 2510.01180: 393.9 hours for the 419 steps of its longest BroRL run, on 64 H100s. The run: layers and hidden size
# of the model, rollouts of a prompt, prompts of a step, longest response, GPUs.
PAPER_STEP_S = 393.9 * 3600 / 419
PAPER_RUN = (28, 1536, 512, 128, 14336, 64)


def paper_step_s(plan: Plan) -> float | None:
    """Return the seconds that BroRL's paper reports for a step, or None if the plan is not of the paper's run."""
    work = plan.work
    size = (plan.shape.num_layers, plan.shape.hidden_size, work.num_per_prompt, work.prompts, work.response_limit)
    return PAPER_STEP_S if (*size, plan.hardware.num_devices) == PAPER_RUN else None


def never_run(plan: Plan) -> list[str]:
    """Return the pieces of a plan that this project has never run on GPUs.

    It has run single ranks and engines on an H100 and an H200, and TP2 x PP2 and TP4 with all ranks on one card
    (docs/measurements.md, "One GPU").
    """
    layout, config = plan.layout, plan.config
    pieces = {
        "more than one GPU": plan.hardware.num_devices > 1,
        "several nodes": plan.hardware.num_nodes > 1,
        "data parallelism": layout.data > 1,
        "context parallelism": layout.context > 1,
        "expert parallelism": layout.expert > 1,
        "virtual pipeline stages": layout.chunks > 1,
        "FP8 over several ranks": config.policy.fp8 is not None and layout.world_size > 1,
        "engines over several GPUs": plan.engines.tensor > 1,
        "policy and engines on separate GPUs": not plan.engines.is_colocated,
        "quantised engines": config.generation.is_quantised,
        "the lean scheduler": config.generation.lean_scheduler == "on",
    }
    return [piece for piece, is_planned in pieces.items() if is_planned]
