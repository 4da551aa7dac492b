"""Settings of the Megatron policy and its optimizer (`schema.py` puts the sections together)."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    # null, hybrid (forward e4m3, backward e5m2), e4m3; Transformer Engine on Hopper, emulated on CPU
    fp8: str | None = None
    fp8_recipe: str = "tensorwise"  # delayed, tensorwise, blockwise
    fp8_params: bool = False  # keep the weights of FP8 layers in FP8 between steps (GPU)
    fp8_amax_history: int = 1024  # micro-batches in the delayed recipe's history of largest values
    fp8_bf16_first_layers: int = 0  # layers at the start that stay in bf16
    fp8_bf16_last_layers: int = 0  # layers at the end that stay in bf16
    tokens_per_micro_batch: int = 8192  # on each context-parallel rank
    # tokens whose logits are computed together, some columns of the vocabulary at a time
    log_prob_chunk_tokens: int = 1024
    shared_prompt: bool = True  # compute a prompt once for the responses of its group in a micro-batch
    attention: str = "auto"  # auto, sdpa, flex (GPU)
    recompute: str | None = None  # null, selective, full
    offload: str = "none"  # none, optimizer, all: what moves to host memory while colocated engines generate (GPU)
    num_threads: int = 1  # per rank, on CPU
    moe: MoeConfig = field(default_factory=MoeConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
