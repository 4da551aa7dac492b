"""Every setting, its type and its default (nowhere else). Unknown keys and wrong types are refused by OmegaConf.

The defaults are those of `conf/brorl_cpu.yaml`: the whole stack on a two-core machine. Cross-field rules are in
`rules.py`. This package imports neither torch nor NeMo, so that `--help` and a wrong setting answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nemo_brorl.config.data_schema import (
    ColumnsConfig,
    DataConfig,
    DomainConfig,
    SourceConfig,
    TaskConfig,
    TaskStageConfig,
)
from nemo_brorl.config.evaluation_schema import BenchmarkConfig, EvaluationConfig
from nemo_brorl.config.generation_schema import GenerationConfig
from nemo_brorl.config.policy_schema import MoeConfig, OptimConfig, PolicyConfig
from nemo_brorl.config.reward_schema import CosineLengthConfig, RewardsConfig, ShapingConfig
from nemo_brorl.config.rollout_schema import (
    DynamicSamplingConfig,
    PlacementConfig,
    PlateauConfig,
    PosteriorConfig,
    RolloutsConfig,
    ScheduleConfig,
    StageConfig,
    WavesConfig,
)

__all__ = [
    "AlgorithmConfig",
    "BenchmarkConfig",
    "BroRLConfig",
    "ColumnsConfig",
    "ConvertConfig",
    "CosineLengthConfig",
    "DataConfig",
    "DomainConfig",
    "DynamicSamplingConfig",
    "EvaluationConfig",
    "ExpManagerConfig",
    "GenerationConfig",
    "ImportanceCorrectionConfig",
    "KLConfig",
    "MoeConfig",
    "OptimConfig",
    "ParityConfig",
    "PlacementConfig",
    "PlateauConfig",
    "PolicyConfig",
    "PosteriorConfig",
    "ReferenceResetConfig",
    "RewardsConfig",
    "RolloutsConfig",
    "ScheduleConfig",
    "SftConfig",
    "ShapingConfig",
    "SourceConfig",
    "StageConfig",
    "TaskConfig",
    "TaskStageConfig",
    "TrainerConfig",
    "WavesConfig",
]


@dataclass
class TrainerConfig:
    """The run as a whole."""

    max_steps: int = 20
    num_nodes: int = 1
    gpus_per_node: int = 0  # 0: everything on CPU (Megatron over Gloo, vLLM's CPU build)
    seed: int = 1
    val_interval: int = 5  # steps between validations; 0: only before and after training
    save_interval: int = 5  # steps between checkpoints
    async_save: bool = True  # files are written while training goes on
    keep_checkpoints: int = 2
    time_limit: str | None = None  # "HH:MM:SS"; save and stop before it
    stall_warning_s: float = 120.0  # without any progress for so long, warn and say who is late
    stall_timeout_s: float | None = None  # end the run after so long without progress; null: never
    max_skipped_updates: int = 10  # non-finite mini-batches in the whole run before it stops


@dataclass
class ExpManagerConfig:
    """Handed to NeMo's exp_manager, plus `explicit_log_dir`: the run folder."""

    explicit_log_dir: str = "runs/brorl_cpu"
    resume_if_exists: bool = True  # the same command continues the run
    create_tensorboard_logger: bool = True
    create_wandb_logger: bool = False
    wandb_logger_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class KLConfig:
    """KL to the reference policy."""

    coefficient: float = 1e-4
    estimator: str = "k2"  # k1, k2, k3
    placement: str = "loss"  # loss: a term with its own gradient; reward: taken off a response's advantage
    log_ratio_clamp: float = 10.0


@dataclass
class ReferenceResetConfig:
    """When the current weights become the reference (ProRL, arXiv 2505.24864, section 3.3)."""

    interval: int = 0  # steps; 0: never
    kl_above: float | None = None  # mean KL to the reference in a step, nats per token; null: never
    patience: int = 0  # validations in a row without a new best pass@1; 0: never
    clear_optimizer: bool = False  # ProRL v1 cleared Adam's moments, v2 keeps them


@dataclass
class ImportanceCorrectionConfig:
    """Weights for the difference between vLLM's and Megatron's probabilities w = p_Megatron / p_vLLM of a token."""

    enabled: bool = True
    # tis: min(w, cap); icepop: w within [low, high], else 0; sequence_mask: tis, and 0 for responses outside
    kind: str = "tis"
    cap: float = 2.0
    low: float = 0.5
    high: float = 5.0


@dataclass
class AlgorithmConfig:
    """How rewards become an update."""

    advantage: str = "reinforce_plus_plus_baseline"  # also reinforce_plus_plus, grpo, dr_grpo, rloo, maxrl, pass_at_k
    pass_at_k: int = 8  # k of the advantage pass_at_k
    train_rollouts: int | None = None  # of a group, those with the largest variance of rewards (PODS); null: all N
    rare_success_exponent: float = 0.0  # weight groups by (1 - share of correct rollouts) ** this; 0: off
    loss: str = "ppo_clip"  # ppo_clip, gspo, cispo
    aggregation: str = "token_mean"  # token_mean, sequence_mean, constant (sum over rollouts.max_response_tokens)
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0  # 0: off
    entropy_coefficient: float = 0.0  # of the entropy bonus
    num_mini_batches: int = 4
    kl: KLConfig = field(default_factory=KLConfig)
    reference_reset: ReferenceResetConfig = field(default_factory=ReferenceResetConfig)
    importance_correction: ImportanceCorrectionConfig = field(default_factory=ImportanceCorrectionConfig)


@dataclass
class ParityConfig:
    """The gate at the start: Hugging Face, Megatron and vLLM log-probs of the same tokens."""

    enabled: bool = True
    num_prompts: int = 4
    responses_per_prompt: int = 4
    # of these responses, where rollouts.max_response_tokens is more: Hugging Face takes them one by one
    max_response_tokens: int = 64
    max_mean_abs_diff: float = 1e-3  # nats; bf16 needs about 0.05
    max_step_mismatch: float = 0.05  # mean |Megatron - vLLM| per step above which a warning is logged
    max_fp8_mismatch: float = 0.02  # mean |FP8 - bf16| log-prob per step above which a warning is logged


@dataclass
class ConvertConfig:
    """From a training checkpoint to a Hugging Face folder."""

    checkpoint: str | None = None  # a step_K folder; null: the newest complete one of the run folder
    output: str | None = None  # null: hf_step_K in the run folder


@dataclass
class SftConfig:
    """The warm-up of a small model on generated demonstrations, for machines that cannot download one."""

    output: str = "runs/base_cpu"
    hidden_size: int = 256
    num_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    intermediate_size: int = 512
    vocab_size: int = 512
    max_position_embeddings: int = 512
    # of demonstrations that write the answer in tags, as verifiers want it; the rest write it bare
    tagged_fraction: float = 1.0
    batch_size: int = 32  # demonstrations per optimizer step
    lr: float = 2e-3
    max_steps: int = 1000  # the learning rate falls to a tenth by then
    precision: str = "auto"  # fp32, bf16; auto: bf16 where the processor has instructions for it
    probe_interval: int = 100  # optimizer steps between measurements of pass@1
    target_pass_at_1: float = 0.25  # stop as soon as the base reaches it ...
    min_pass_at_1: float = 0.2  # ... and refuse a base outside these bounds
    max_pass_at_1: float = 0.5
    time_limit_s: float = 200.0


@dataclass
class BroRLConfig:
    """A whole run."""

    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    exp_manager: ExpManagerConfig = field(default_factory=ExpManagerConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    dynamic_sampling: DynamicSamplingConfig = field(default_factory=DynamicSamplingConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    parity: ParityConfig = field(default_factory=ParityConfig)
    convert: ConvertConfig = field(default_factory=ConvertConfig)
    sft: SftConfig = field(default_factory=SftConfig)
