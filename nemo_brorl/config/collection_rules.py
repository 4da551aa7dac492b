"""Cross-field rules about deadlines, partial rollouts and sampling ahead (`rules.py` says how rules work)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nemo_brorl.config.schema import BroRLConfig


def deadlines_are_needed(config: BroRLConfig) -> Iterator[str]:
    rollouts = config.rollouts
    if rollouts.deadline_s is None and rollouts.step_deadline_s is None and rollouts.min_fraction < 1:
        yield (
            f"rollouts.min_fraction={rollouts.min_fraction} never acts: without a deadline no rollout is cut; write "
            f"rollouts.deadline_s or "
            "rollouts.step_deadline_s in seconds, or rollouts.min_fraction=1"
        )


def older_rollouts_are_allowed(config: BroRLConfig) -> Iterator[str]:
    """Whatever lets a rollout be learnt from after an update it has not seen."""
    asked = {
        "rollouts.overlap=true": config.rollouts.overlap,
        "rollouts.unfinished=resume": config.rollouts.unfinished == "resume",
        "dynamic_sampling.in_flight=resume": config.dynamic_sampling.in_flight == "resume",
    }
    for name, is_asked in asked.items():
        if is_asked and config.dynamic_sampling.max_staleness == 0:
            yield (
                f"{name} learns from rollouts that are an update old and dynamic_sampling.max_staleness=0 throws "
                f"them away: write "
                "dynamic_sampling.max_staleness=1"
            )
        if is_asked and not config.algorithm.importance_correction.enabled:
            yield (
                f"{name} learns from rollouts of older weights, which needs "
                f"algorithm.importance_correction.enabled=true: write that, or "
                f"take {name.split('=')[0]} back"
            )


def roles_do_not_take_turns_while_they_overlap(config: BroRLConfig) -> Iterator[str]:
    if not config.rollouts.overlap:
        return
    on_gpus = config.trainer.gpus_per_node > 0
    if on_gpus and config.generation.placement == "colocated":
        yield (
            "rollouts.overlap=true samples while the policy learns, on devices of their own: write "
            "generation.placement=disaggregated"
        )
    for name, value, off in (
        ("policy.offload", config.policy.offload, "none"),
        ("generation.sleep", config.generation.sleep, "off"),
    ):
        if value != off:
            yield (
                f"{name}={value} lets roles take turns and rollouts.overlap=true runs both at once: write {name}={off}"
            )


COLLECTION_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    deadlines_are_needed,
    older_rollouts_are_allowed,
    roles_do_not_take_turns_while_they_overlap,
)
