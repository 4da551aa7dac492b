"""Layout of a step's update by the settings, for the loop and for whoever learns from a stored step again."""

from __future__ import annotations

from nemo_brorl.algorithm.packing import Sharing, plan_update
from nemo_brorl.config.derived import micro_batch_tokens
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import TrainBatch, UpdatePlan

SEED_STRIDE = 1_000_003  # between the seeds of two runs' steps


def plan_step(
    batch: TrainBatch,
    config: BroRLConfig,
    step: int,
    version: int,
    learning_rate: float,
    data_parallel_size: int,
) -> UpdatePlan:
    """Plan of step `step`, counted from 1, that makes weights `version`. The same step has the same plan."""
    return plan_update(
        batch,
        num_mini_batches=config.algorithm.num_mini_batches,
        data_parallel_size=data_parallel_size,
        token_budget=micro_batch_tokens(config) * config.policy.context_parallel_size,
        sharing=Sharing(config.policy.shared_prompt, config.policy.least_shared_tokens),
        version=version,
        learning_rate=learning_rate,
        objective=config.algorithm.loss,
        seed=config.trainer.seed * SEED_STRIDE + step - 1,
    )
