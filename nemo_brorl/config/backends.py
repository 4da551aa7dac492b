"""Settings of the two backends: Megatron's policy and its optimizer, vLLM's engines and how weights reach them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config import auto, section, setting

# Arguments of vLLM's EngineArgs that settings decide, or that this package cannot work without.
SETTING_OF_ARGUMENT = {
    "model": "policy.model",
    "dtype": "generation.precision",
    "max_model_len": "generation.max_model_len",
    "max_num_seqs": "generation.max_num_seqs",
    "max_num_batched_tokens": "generation.max_num_batched_tokens",
    "block_size": "generation.block_size",
    "enforce_eager": "generation.enforce_eager",
    "tensor_parallel_size": "generation.tensor_parallel_size",
    "gpu_memory_utilization": "generation.gpu_memory_utilization",
    "enable_sleep_mode": "generation.sleep",
    "distributed_executor_backend": "generation.placement",
    "pipeline_parallel_size": "generation.tensor_parallel_size",
    "data_parallel_size": "generation.num_engines",
    "seed": "trainer.seed",
}
_FIXED_ARGUMENTS = ("enable_prefix_caching", "logprobs_mode", "worker_extension_cls", "disable_log_stats")


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
    least_shared_tokens: int = setting(
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
    def num_bf16_layers(self) -> int:
        """Layers that stay out of FP8."""
        return self.fp8_bf16_first_layers + self.fp8_bf16_last_layers

    def violations(self) -> Iterator[str]:
        betas = self.optim.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield f"policy.optim.betas={betas} must be two numbers in [0, 1): write policy.optim.betas=[0.9,0.95]"


@dataclass
class GenerationConfig:
    """vLLM engines."""

    num_engines: int | None = auto(
        "engines; auto: one per tensor_parallel_size GPUs; on CPU one a core, as memory allows",
        at_least=1,
        may_change=True,
    )
    tensor_parallel_size: int = setting(1, "GPUs of an engine", at_least=1)
    max_model_len: int | None = auto(
        "tokens of a prompt and its response together; auto: the most that prompts and responses may have", at_least=2
    )
    max_num_seqs: int | None = auto(
        "responses that an engine decodes together; auto: as many as the cache holds, at most 512", at_least=1
    )
    max_num_batched_tokens: int | None = setting(
        None, "tokens of prompts and responses in one step of an engine; null: 8192 on GPUs, 2048 on CPU", at_least=1
    )
    gpu_memory_utilization: float | None = auto(
        "share of a GPU's memory for an engine; auto: what the policy leaves of it", above=0, at_most=1
    )
    kv_cache_gib: float | None = auto(
        "GiB per engine, on CPU; auto: 128 responses of half length, as memory allows", above=0
    )
    precision: str = setting("fp32", "number format of weights and activations", choices=("fp32", "bf16"))
    block_size: int = setting(32, "tokens; a prompt needs more than one block for the prefix cache to hit", at_least=1)
    enforce_eager: bool = setting(True, "no CUDA graphs")
    placement: str = setting(
        "colocated",
        "colocated: in turns with the policy; disaggregated: own devices",
        choices=("colocated", "disaggregated"),
    )
    sleep: str = setting(
        "off",
        "what colocated engines give up while the policy trains; offload: weights to host, discard: GPU",
        choices=("off", "cache", "offload", "discard"),
    )
    max_residual_gib: float | None = setting(
        None, "GiB per GPU that a sleeping engine may hold; one above it is restarted; null: never", above=0
    )
    weight_transport: str = setting(
        "auto",
        "collective: NCCL, or Gloo on CPU; auto: object_store on CPU, else by placement",
        choices=("auto", "object_store", "collective", "cuda_ipc"),
    )
    weight_bucket_mib: float = setting(64.0, "MiB of the buckets that weights travel in, a few at a time", above=0)
    weight_timeout_s: float = setting(60.0, "seconds to join a transport, or to move one bucket", above=0)
    keep_published: bool = setting(True, "one copy of the weights stays in the object store, for restarted engines")
    report_every: int = setting(
        32, "rollouts that end before an engine reports progress; it also does with every chunk it finishes", at_least=1
    )
    report_s: float = setting(5.0, "seconds between reports of a busy engine, whatever has ended", above=0)
    engine_args: dict[str, Any] = setting(
        {}, "further arguments of vLLM's EngineArgs, for example kv_cache_dtype=fp8 (docs/gpu.md)"
    )
    timeout_s: float = setting(
        600.0, "seconds without progress, or of starting, after which an engine is replaced", above=0, may_change=True
    )
    max_restarts: int = setting(
        3,
        "restarts of an engine without a chunk, or losses of one chunk, before the run ends",
        at_least=0,
        may_change=True,
    )

    def violations(self) -> Iterator[str]:
        for name in self.engine_args:
            if name in SETTING_OF_ARGUMENT:
                yield f"generation.engine_args.{name} is a setting of its own: write {SETTING_OF_ARGUMENT[name]}"
            elif name in _FIXED_ARGUMENTS:
                yield f"generation.engine_args.{name} cannot be chosen, engines rely on their own: leave it out"
        batch, sequences = self.max_num_batched_tokens, self.max_num_seqs
        if batch is not None and sequences is not None and batch < sequences:
            yield (
                f"generation.max_num_batched_tokens={batch} is less than one token for each of "
                f"generation.max_num_seqs={sequences} responses: write {sequences} or more"
            )

    @property
    def is_quantised(self) -> bool:
        """Whether `engine_args` have engines compute, or keep keys and values, in fewer bits than weights have."""
        cache = str(self.engine_args.get("kv_cache_dtype", "auto"))
        return self.engine_args.get("quantization") is not None or cache.startswith("fp8")
