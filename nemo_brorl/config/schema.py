"""Configuration of a whole run, put together from its sections. Unknown keys and wrong types are refused by OmegaConf.

The defaults are those of `conf/brorl_cpu.yaml`: the whole stack on a two-core machine. This package imports neither
torch nor NeMo, so that `--help` and a wrong setting answer at once. Every section can be imported from here.
"""

# ruff: noqa: F401
from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.sections.algorithm import (
    AlgorithmConfig,
    CovarianceConfig,
    ImportanceCorrectionConfig,
    KLConfig,
    ReferenceResetConfig,
)
from nemo_brorl.config.sections.data import (
    ColumnsConfig,
    DataConfig,
    DomainConfig,
    SourceConfig,
    TaskConfig,
    TaskStageConfig,
)
from nemo_brorl.config.sections.evaluation import BenchmarkConfig, EvaluationConfig
from nemo_brorl.config.sections.generation import GenerationConfig
from nemo_brorl.config.sections.policy import MoeConfig, OptimConfig, PolicyConfig
from nemo_brorl.config.sections.rewards import (
    CodeConfig,
    CosineLengthConfig,
    EnvironmentsConfig,
    OwnVerifierConfig,
    RewardsConfig,
    RewardStageConfig,
    RewardWatchConfig,
    SecondOpinionConfig,
    ServicesConfig,
    ShapingConfig,
)
from nemo_brorl.config.sections.rollouts import (
    CoverageConfig,
    DynamicSamplingConfig,
    PlacementConfig,
    PlateauConfig,
    PoolConfig,
    PosteriorConfig,
    RolloutsConfig,
    ScheduleConfig,
    StageConfig,
    WavesConfig,
)
from nemo_brorl.config.sections.store import ProfileConfig, StoreConfig, TimelineConfig
from nemo_brorl.config.sections.trainer import (
    ConvertConfig,
    ExpManagerConfig,
    ParityConfig,
    SftConfig,
    TrainerConfig,
)
from nemo_brorl.config.setting import section


@dataclass
class BroRLConfig:
    """A whole run."""

    trainer: TrainerConfig = section(TrainerConfig)
    exp_manager: ExpManagerConfig = section(ExpManagerConfig, may_change=True)
    policy: PolicyConfig = section(PolicyConfig)
    generation: GenerationConfig = section(GenerationConfig)
    rollouts: RolloutsConfig = section(RolloutsConfig)
    dynamic_sampling: DynamicSamplingConfig = section(DynamicSamplingConfig, may_change=True)
    algorithm: AlgorithmConfig = section(AlgorithmConfig)
    data: DataConfig = section(DataConfig)
    rewards: RewardsConfig = section(RewardsConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    parity: ParityConfig = section(ParityConfig, may_change=True)
    store: StoreConfig = section(StoreConfig, may_change=True)
    timeline: TimelineConfig = section(TimelineConfig, may_change=True)
    profile: ProfileConfig = section(ProfileConfig, may_change=True)
    convert: ConvertConfig = section(ConvertConfig)
    sft: SftConfig = section(SftConfig, may_change=True)
