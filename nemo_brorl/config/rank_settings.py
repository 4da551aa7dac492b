"""Select the part of a configuration that the policy and its ranks get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.config.parallel_layout import ParallelLayout, layout_of
from nemo_brorl.config.policy import PolicyConfig
from nemo_brorl.config.records import ProfileConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig


@dataclass(frozen=True)
class RankSettings:
    """Settings of the policy, equal for every rank. They contain no settings of graders or data, nor their secrets."""

    policy: PolicyConfig
    algorithm: AlgorithmConfig
    rollouts: RolloutsConfig
    generation: GenerationConfig
    profile: ProfileConfig
    sizes: RunSizes
    layout: ParallelLayout
    seed: int
    profile_folder: Path
    references: list[Path | None]  # folders with the references' weights; None: those that the policy starts from

    @classmethod
    def from_config(cls, config: BroRLConfig) -> RankSettings:
        """Return the settings of a run's policy ranks."""
        return cls(
            policy=config.policy,
            algorithm=config.algorithm,
            rollouts=config.rollouts,
            generation=config.generation,
            profile=config.profile,
            sizes=RunSizes.from_config(config),
            layout=layout_of(config),
            seed=config.trainer.seed,
            profile_folder=Path(config.exp_manager.explicit_log_dir).absolute() / "profiles",
            references=[None if name is None else Path(name) for name in config.algorithm.kl.references],
        )
