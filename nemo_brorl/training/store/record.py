"""The record of a step for the rollout store: every group with its outcome."""

from __future__ import annotations

from nemo_brorl.algorithm.teaching import BY_REWARDS, Teaching
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.types import FilledBatch, ScoredGroup, StepRecord, StoredGroup, TrainBatch, UpdatePlan

TRAINED = "trained"


def step_record(
    step: int,
    plan: UpdatePlan,
    filled: FilledBatch,
    batch: TrainBatch,
    config: DynamicSamplingConfig,
    teaching: Teaching = BY_REWARDS,
) -> StepRecord:
    """Return the rollout store's record of a training step: every group of rollouts with its outcome.

    These are the groups that the step trained on, those whose sampling was completed in the step but that are not in
    its batch, and those whose sampling was abandoned. Each group is there once.
    """
    sampled = {group.prompt.uid for group in filled.sampled}
    trained = {group.prompt.uid for group in batch.groups}
    stored: list[StoredGroup] = []
    for index, scored in enumerate(batch.groups):
        trained_group = StoredGroup(
            scored=scored,
            origin=_origin(scored, sampled),
            fate=TRAINED,
            shaped=batch.shaped[index],
            advantages=batch.advantages[index],
            trained=batch.rollouts[index],
        )
        stored.append(trained_group)
    for scored in filled.sampled:
        if scored.prompt.uid not in trained:
            stored.append(StoredGroup(scored, "sampled", _fate(scored, config, teaching)))
    for withdrawn in filled.withdrawn:
        stored.append(StoredGroup(withdrawn.group, "sampled", withdrawn.reason))
    return StepRecord(
        step=step,
        version=plan.version,
        learning_rate=plan.learning_rate,
        loss_scale=plan.loss_scale,
        groups=tuple(stored),
    )


def _origin(scored: ScoredGroup, sampled: set[str]) -> str:
    if scored.train_indices is not None:
        return "completed"
    return "sampled" if scored.prompt.uid in sampled else "carried"


def _fate(scored: ScoredGroup, config: DynamicSamplingConfig, teaching: Teaching) -> str:
    """Return the outcome of a group whose sampling was completed in a step, but on which the step does not train."""
    decision = judge(scored, config, teaching)
    if not decision.keep:
        return decision.reason
    return "carried" if config.max_staleness > 0 else "surplus"
