"""What the policy and its ranks are told of a configuration: the sections they work by, and sizes of the whole."""

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
    """The same for every rank. Graders, data and their secrets are none of its business."""

    policy: PolicyConfig
    algorithm: AlgorithmConfig
    rollouts: RolloutsConfig
    generation: GenerationConfig
    profile: ProfileConfig
    sizes: RunSizes
    layout: ParallelLayout
    seed: int
    profile_folder: Path

    @classmethod
    def from_config(cls, config: BroRLConfig) -> RankSettings:
        """Return the settings of a run's ranks."""
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
        )
