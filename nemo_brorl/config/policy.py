"""Declare settings of the policy: Megatron's ranks and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nemo_brorl.config.declare import auto, section, setting


@dataclass
class OptimConfig:
    """Adam as Megatron's distributed optimizer runs it."""

    lr: float = setting(3e-4, "learning rate at the batch of this config; schedules scale it", above=0)
    betas: list[float] = setting([0.9, 0.95], "decay of the two moments, each in [0, 1)")
    eps: float = setting(1e-8, "added to the root of the second moment", above=0)
    weight_decay: float = setting(0.0, "decoupled from the gradient; none on biases and norms", at_least=0)
    clip_grad: float = setting(1.0, "global gradient norm; 0 turns clipping off", at_least=0)
    warmup_steps: int = setting(0, "steps over which the learning rate rises to lr", at_least=0)


@dataclass
class MoeConfig:
    """Mixture-of-experts models only."""

    aux_loss_coefficient: float = setting(0.0, "load-balancing loss added to the policy loss", at_least=0)
    freeze_router: bool = setting(False, "the router's weights are not trained")
    router_replay: bool = setting(False, "tokens of rollouts go to the experts that their engine sent them to")
    fused_permutation: bool = setting(
        False, "tokens are sorted by expert in Transformer Engine's kernels (GPU)", may_change=True
    )


@dataclass
class PolicyConfig:
    """The Megatron policy."""

    model: str = setting("runs/base_cpu", "Hugging Face name or folder")
    tensor_model_parallel_size: int = setting(1, "ranks that share every layer", at_least=1, may_change=True)
    pipeline_model_parallel_size: int = setting(1, "stages of layers", at_least=1, may_change=True)
    virtual_pipeline_model_parallel_size: int | None = setting(None, "chunks of layers in each stage", at_least=2)
    context_parallel_size: int = setting(1, "ranks that share every row", at_least=1)
    expert_model_parallel_size: int = setting(1, "ranks that share the experts of a layer", at_least=1)
    data_parallel_size: int | None = auto(
        "replicas of the policy; auto: all GPUs; on CPU one a core, of a wide model one for two, as memory allows",
        at_least=1,
        may_change=True,
    )
    sequence_parallel: bool = setting(False, "activations are split over tensor-parallel ranks")
    precision: str = setting("fp32", "number format of weights and activations", choices=("fp32", "bf16"))
    fp8: str | None = setting(
        None,
        "matrix products in FP8: hybrid is e4m3 forward, e5m2 backward; Transformer Engine on Hopper, emulated on CPU",
        choices=(None, "hybrid", "e4m3"),
    )
    fp8_recipe: str = setting("tensorwise", "how FP8 scales are chosen", choices=("delayed", "tensorwise", "blockwise"))
    fp8_params: bool = setting(False, "keep the weights of FP8 layers in FP8 between steps (GPU)")
    fp8_amax_history: int = setting(1024, "micro-batches in the delayed recipe's history of largest values", at_least=1)
    fp8_bf16_first_layers: int = setting(0, "layers at the start that stay in bf16", at_least=0)
    fp8_bf16_last_layers: int = setting(0, "layers at the end that stay in bf16", at_least=0)
    tokens_per_micro_batch: int | None = auto(
        "tokens on each context-parallel rank; auto: 8192 (GPU: 32768), less where memory is short", at_least=1
    )
    log_prob_chunk_tokens: int = setting(
        1024, "tokens whose logits are computed together, some columns of the vocabulary at a time", at_least=1
    )
    shared_prompt: bool = setting(True, "compute a prompt once for the responses of its group in a micro-batch")
    min_shared_tokens: int = setting(
        32, "what these responses share beyond it is computed once too if it has so many tokens; 0: never", at_least=0
    )
    attention: str = setting(
        "auto",
        "attention kernel; flash: bf16 on GPU; flex: GPU; auto: the first that takes the model",
        choices=("auto", "flash", "flex", "sdpa"),
    )
    recompute: str | None = setting(
        None,
        "activations computed anew in the backward pass; selective: those inside MLPs and experts",
        choices=(None, "selective", "full"),
    )
    offload: str = setting(
        "none",
        "what moves to the host while engines generate (GPU)",
        choices=("none", "optimizer", "all"),
        may_change=True,
    )
    overlap_grad_reduce: bool | None = setting(
        None,
        "replicas reduce gradients while the backward pass goes on; null: on GPUs, with more than one replica",
        may_change=True,
    )
    overlap_param_gather: bool = setting(
        False, "they gather weights while the next mini-batch's forward pass goes on", may_change=True
    )
    num_threads: int | None = auto("threads per rank, on CPU; auto: cores over ranks", at_least=1, may_change=True)
    moe: MoeConfig = section(MoeConfig)
    optim: OptimConfig = section(OptimConfig)

    @property
    def model_parallel_size(self) -> int:
        """Count the ranks that hold one replica: TP × PP × CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def num_bf16_layers(self) -> int:
        """Layers that stay out of FP8."""
        return self.fp8_bf16_first_layers + self.fp8_bf16_last_layers

    def violations(self) -> Iterator[str]:
        betas = self.optim.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield f"policy.optim.betas={betas} must be two numbers in [0, 1): write policy.optim.betas=[0.9,0.95]"
