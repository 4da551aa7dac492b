"""Every setting, its type and its default (nowhere else). Unknown keys and wrong types are refused by OmegaConf.

The defaults are those of `conf/brorl_cpu.yaml`: the whole stack on a two-core machine. Cross-field rules are in `rules.py`.
This package imports neither torch nor NeMo, so that `--help` and a wrong setting answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


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
class OptimConfig:
    """Adam as Megatron's distributed optimizer runs it."""

    lr: float = 3e-4  # at the batch of this config; schedules scale it
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_grad: float = 1.0  # global gradient norm; 0 turns clipping off
    warmup_steps: int = 0


@dataclass
class MoeConfig:
    """Mixture-of-experts models only."""

    aux_loss_coefficient: float = 0.0  # load-balancing loss added to the policy loss
    freeze_router: bool = False  # the router's weights are not trained


@dataclass
class PolicyConfig:
    """The Megatron policy."""

    model: str = "runs/base_cpu"  # Hugging Face name or folder
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    data_parallel_size: int | None = None  # null: all GPUs; 1 on CPU
    sequence_parallel: bool = False
    precision: str = "fp32"  # fp32, bf16
    fp8: str | None = None  # null, hybrid (forward e4m3, backward e5m2), e4m3; Transformer Engine on Hopper, emulated on CPU
    fp8_recipe: str = "tensorwise"  # delayed, tensorwise, blockwise
    fp8_params: bool = False  # keep the weights of FP8 layers in FP8 between steps (GPU)
    fp8_amax_history: int = 1024  # steps of the delayed recipe's history of largest values
    fp8_bf16_first_layers: int = 0  # layers at the start that stay in bf16
    fp8_bf16_last_layers: int = 0  # layers at the end that stay in bf16
    tokens_per_micro_batch: int = 8192
    log_prob_chunk_tokens: int = 1024  # rows of logits that exist in fp32 at once
    shared_prompt: bool = True  # compute a prompt once for the responses of its group in a micro-batch
    attention: str = "auto"  # auto, sdpa, flex (GPU)
    recompute: str | None = None  # null, selective, full
    offload: str = "none"  # none, optimizer, all: what moves to host memory while colocated engines generate (GPU)
    num_threads: int = 1  # per rank, on CPU
    moe: MoeConfig = field(default_factory=MoeConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)


@dataclass
class GenerationConfig:
    """vLLM engines."""

    num_engines: int | None = None  # null: one per tensor_parallel_size GPUs; 2 on CPU
    tensor_parallel_size: int = 1
    max_model_len: int = 256
    max_num_seqs: int = 512
    gpu_memory_utilization: float = 0.6
    kv_cache_gib: float = 0.25  # per engine, on CPU
    precision: str = "fp32"  # fp32, bf16
    block_size: int = 32  # tokens; a prompt needs more than one block for the prefix cache to hit
    enforce_eager: bool = True
    placement: str = "colocated"  # colocated: engines and policy take turns; disaggregated: separate devices
    timeout_s: float = 600.0  # a chunk that takes longer is an error
    max_restarts: int = 3  # of a dead engine, per run


@dataclass
class StageConfig:
    """One stage of a schedule of N."""

    num_per_prompt: int = MISSING
    num_steps: int | None = None  # of kind staged; null: to the end


@dataclass
class PlateauConfig:
    """When validation counts as stalled: no rise over `window` validations, `patience` times in a row."""

    window: int = 6
    patience: int = 3
    confidence: float = 0.95  # that the slope is above min_gain, to count as rising
    min_gain: float = 0.0  # pass@1 per validation


@dataclass
class ScheduleConfig:
    """N over a run."""

    kind: str = "constant"  # constant: rollouts.num_per_prompt; staged: after each stage's steps; on_plateau: when validation stalls
    stages: list[StageConfig] = field(default_factory=list)
    sample_budget: int | None = None  # rollouts of a step at most: prompts per step shrink as N grows; null: prompts stay
    learning_rate_scaling: str = "sqrt"  # sqrt, linear, constant: with the rollouts of a step, relative to the first stage
    plateau: PlateauConfig = field(default_factory=PlateauConfig)


@dataclass
class RolloutsConfig:
    """How many, and how they are drawn."""

    num_per_prompt: int = 512  # N, the scaling axis
    prompts_per_step: int = 16
    chunk_size: int = 64  # rollouts of a prompt that one engine samples in one request
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int = 32
    save_samples: int = 4  # rollouts per step written as text to the run folder; 0: none
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass
class DynamicSamplingConfig:
    """Keep informative groups only; refill until the batch is full."""

    enabled: bool = True
    max_rounds: int = 10
    carry_over: bool = True  # surplus informative groups serve the next step
    max_staleness: int = 1  # updates a carried group may lag behind


@dataclass
class KLConfig:
    """KL to the reference policy."""

    coefficient: float = 1e-4
    estimator: str = "k2"  # k1, k2, k3
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
    """Truncated importance sampling between vLLM's and Megatron's log-probs."""

    enabled: bool = True
    cap: float = 2.0


@dataclass
class AlgorithmConfig:
    """How rewards become an update."""

    advantage: str = "reinforce_plus_plus_baseline"  # also reinforce_plus_plus, grpo, dr_grpo, rloo, maxrl, pass_at_k
    pass_at_k: int = 8  # k of the advantage pass_at_k
    rare_success_exponent: float = 0.0  # weight groups by (1 - share of correct rollouts) ** this; 0: off
    loss: str = "ppo_clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 10.0  # 0: off
    entropy_coefficient: float = 0.0  # of the entropy bonus
    num_mini_batches: int = 4
    kl: KLConfig = field(default_factory=KLConfig)
    reference_reset: ReferenceResetConfig = field(default_factory=ReferenceResetConfig)
    importance_correction: ImportanceCorrectionConfig = field(default_factory=ImportanceCorrectionConfig)


@dataclass
class TaskConfig:
    """One Reasoning Gym task in the mixture."""

    name: str = MISSING
    weight: float = 1.0
    config: dict[str, Any] = field(default_factory=dict)  # the task's own settings


@dataclass
class DataConfig:
    """Where prompts come from."""

    source: str = "reasoning_gym"  # reasoning_gym, jsonl
    tasks: list[TaskConfig] = field(default_factory=list)
    path: str | None = None  # jsonl: rows with prompt, answer, and optionally task, verifier, metadata
    system_prompt: str | None = None
    max_prompt_tokens: int = 160
    held_out_fraction: float = 0.1  # of all questions, chosen by a hash of the question; never trained on


@dataclass
class CosineLengthConfig:
    """A reward that bends with length, separately for right and wrong answers (arXiv 2502.03373)."""

    enabled: bool = False
    correct_short: float = 1.0  # of a right answer of no tokens ...
    correct_long: float = 0.5  # ... and of one at the limit
    wrong_short: float = -0.5
    wrong_long: float = 0.0
    on_steps: int = 100  # acts for so many steps (ProRLv2) ...
    off_steps: int = 500  # ... and then not for so many; 0: always acts


@dataclass
class ShapingConfig:
    """What changes rewards after dynamic sampling has judged the raw ones; advantages see the result."""

    truncated_factor: float = 1.0  # rewards of truncated responses are multiplied by it; ProRLv2 and BroRL: 0 to 0.1
    overlong_buffer: int = 0  # tokens before the limit over which DAPO's penalty grows; 0: off
    overlong_penalty: float = 1.0  # at the limit
    cosine: CosineLengthConfig = field(default_factory=CosineLengthConfig)


@dataclass
class RewardsConfig:
    """Verification."""

    num_workers: int = 1
    timeout_s: float = 5.0  # per response
    shaping: ShapingConfig = field(default_factory=ShapingConfig)


@dataclass
class EvaluationConfig:
    """Validation and evaluation on held-out prompts."""

    num_prompts: int = 256
    samples_per_prompt: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_response_tokens: int | None = None  # null: as in training


@dataclass
class ParityConfig:
    """The gate at the start: Hugging Face, Megatron and vLLM log-probs of the same tokens."""

    enabled: bool = True
    num_prompts: int = 4
    responses_per_prompt: int = 4
    max_mean_abs_diff: float = 1e-3  # nats; bf16 needs about 0.05
    max_step_mismatch: float = 0.05  # mean |Megatron - vLLM| per step above which a warning is logged
    max_fp8_mismatch: float = 0.05  # mean |FP8 - bf16| log-prob per step above which a warning is logged


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
    tagged_fraction: float = 1.0  # of demonstrations that write the answer in tags, as verifiers want it; the rest write it bare
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
    sft: SftConfig = field(default_factory=SftConfig)
