"""Advantages: one number per rollout from the rewards of its group and of the batch. One algorithm a file."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_brorl.algorithm.advantages.base import Advantage, GroupRewards
from nemo_brorl.algorithm.advantages.grpo import dr_grpo, grpo
from nemo_brorl.algorithm.advantages.maxrl import maxrl
from nemo_brorl.algorithm.advantages.pass_at_k import pass_at_k
from nemo_brorl.algorithm.advantages.per_wave import advantages_by_wave
from nemo_brorl.algorithm.advantages.rare_success import weigh_rare_successes
from nemo_brorl.algorithm.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from nemo_brorl.algorithm.advantages.rloo import rloo
from nemo_brorl.config.schema import AlgorithmConfig
from nemo_brorl.types import Float32

__all__ = ["ADVANTAGES", "advantages_by_wave", "advantages_of"]

ADVANTAGES: dict[str, Advantage] = {
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
}


def advantages_of(groups: Sequence[GroupRewards], config: AlgorithmConfig) -> list[Float32]:
    """One [N] array per group: the chosen algorithm, then the weight of rare successes."""
    advantages = ADVANTAGES[config.advantage](groups, config)
    if config.rare_success_exponent > 0:
        advantages = weigh_rare_successes(advantages, groups, config.rare_success_exponent)
    return advantages
