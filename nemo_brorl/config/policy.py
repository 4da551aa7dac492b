"""Declare settings of the policy: Megatron's ranks and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nemo_brorl.config.declare import auto, path_setting, section, setting


@dataclass
class OptimConfig:
    """Settings of Adam, which Megatron's distributed optimizer runs."""

    lr: float = setting(3e-4, "learning rate at the batch size of this config; schedules scale it", above=0)
    betas: list[float] = setting([0.9, 0.95], "decay rates of Adam's two moments, each in [0, 1)")
    eps: float = setting(1e-8, "Adam's epsilon, added to the root of the second moment", above=0)
    weight_decay: float = setting(0.0, "decoupled weight decay; biases and norms have none", at_least=0)
    clip_grad: float = setting(1.0, "largest global gradient norm; 0: no clipping", at_least=0)
    warmup_steps: int = setting(0, "steps over which the learning rate rises to lr", at_least=0)


@dataclass
class MoeConfig:
    """Settings of mixture-of-experts models only."""

    aux_loss_coefficient: float = setting(0.0, "weight of the load-balancing loss", at_least=0)
    freeze_router: bool = setting(False, "do not train the router's weights")
    router_replay: bool = setting(False, "route the tokens of rollouts to the experts that the engine chose")
    fused_permutation: bool = setting(
        False, "sort tokens by expert with Transformer Engine's kernels (GPU)", may_change=True
    )


@dataclass
class PolicyConfig:
    """Settings of the trained model, run by Megatron."""

    model: str = path_setting("runs/base_cpu", "model to train: a folder, or a Hugging Face name, or NAME@REVISION")
    tensor_model_parallel_size: int = setting(
        1, "ranks that share every layer (tensor parallelism)", at_least=1, may_change=True
    )
    pipeline_model_parallel_size: int = setting(
        1, "stages of layers (pipeline parallelism)", at_least=1, may_change=True
    )
    virtual_pipeline_model_parallel_size: int | None = setting(
        None, "chunks of layers in each pipeline stage (interleaved schedule)", at_least=2
    )
    context_parallel_size: int = setting(1, "ranks that share every packed sequence (context parallelism)", at_least=1)
    expert_model_parallel_size: int = setting(
        1, "ranks that share the experts of a layer (expert parallelism)", at_least=1
    )
    data_parallel_size: int | None = auto(
        "replicas of the policy; auto: all GPUs; on CPU one per core, or one per two cores for a wide "
        "model, as memory allows",
        at_least=1,
        may_change=True,
    )
    sequence_parallel: bool = setting(False, "split activations over tensor-parallel ranks")
    precision: str = setting("fp32", "number format of weights and activations", choices=("fp32", "bf16"))
    fp8: str | None = setting(
        None,
        "matrix products in FP8. hybrid: e4m3 forward, e5m2 backward. By Transformer Engine on Hopper, emulated on CPU",
        choices=(None, "hybrid", "e4m3"),
    )
    fp8_recipe: str = setting(
        "tensorwise",
        "scales of FP8 tensors. tensorwise: one per tensor, from its present largest number; delayed: one per tensor, "
        "from the last fp8_amax_history passes; blockwise: powers of two, one for 1 x 128 numbers of activations and "
        "gradients and for 128 x 128 of weights",
        choices=("delayed", "tensorwise", "blockwise"),
    )
    fp8_params: bool = setting(False, "keep the weights of FP8 layers in FP8 between steps (GPU)")
    fp8_amax_history: int = setting(
        1024, "micro-batches in the history of largest values of the delayed recipe", at_least=1
    )
    fp8_bf16_first_layers: int = setting(0, "layers at the start that stay in bf16", at_least=0)
    fp8_bf16_last_layers: int = setting(0, "layers at the end that stay in bf16", at_least=0)
    tokens_per_micro_batch: int | None = auto(
        "most tokens of a micro-batch on each context-parallel rank; auto: 8192 (GPU: 32768), less where "
        "memory is short",
        at_least=1,
    )
    log_prob_chunk_tokens: int = setting(
        1024, "tokens whose logits are computed together, some columns of the vocabulary at a time", at_least=1
    )
    shared_prompt: bool = setting(True, "compute a prompt once for the responses of its group in a micro-batch")
    min_shared_tokens: int = setting(
        32,
        "shortest prefix, in tokens, that responses share beyond their prompt and that is computed once too; 0: never",
        at_least=0,
    )
    attention: str = setting(
        "auto",
        "attention kernel. flash: bf16 on GPU; flex: GPU; auto: the first that supports the model",
        choices=("auto", "flash", "flex", "sdpa"),
    )
    recompute: str | None = setting(
        None,
        "activation recomputation. full: whole layers; selective: inside MLPs and experts; null: none",
        choices=(None, "selective", "full"),
    )
    offload: str = setting(
        "none",
        "policy state that moves to the host while engines generate (GPU)",
        choices=("none", "optimizer", "all"),
        may_change=True,
    )
    overlap_grad_reduce: bool | None = setting(
        None,
        "reduce gradients over replicas during the backward pass; null: on GPUs, with more than one replica",
        may_change=True,
    )
    overlap_param_gather: bool = setting(
        False, "gather weights over replicas during the next mini-batch's forward pass", may_change=True
    )
    old_log_probs: str = setting(
        "policy",
        "log-probs of which the ratio of the loss is one at first. policy: those before the update, which cost a "
        "forward pass; sampler: those with which the engines sampled",
        choices=("policy", "sampler"),
    )
    num_threads: int | None = auto(
        "threads per rank, on CPU; auto: cores divided by ranks", at_least=1, may_change=True
    )
    moe: MoeConfig = section(MoeConfig)
    optim: OptimConfig = section(OptimConfig)

    @property
    def model_parallel_size(self) -> int:
        """Number of ranks that hold one replica of the policy: TP × PP × CP."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    @property
    def num_bf16_layers(self) -> int:
        """Number of layers that stay in bf16 when `policy.fp8` is on."""
        return self.fp8_bf16_first_layers + self.fp8_bf16_last_layers

    def violations(self) -> Iterator[str]:
        betas = self.optim.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield f"policy.optim.betas={betas} must be two numbers in [0, 1): set policy.optim.betas=[0.9,0.95]"
