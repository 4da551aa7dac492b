"""Declare settings of generation: vLLM's engines, and weight sync to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_brorl.config.declare import auto, setting

# Tokens of a KV-cache block. vLLM's CPU attention takes multiples of 32, its GPU kernels of 16. The prefix cache hits
# only for a prompt of more than one block.
BLOCK_TOKENS = 32

# Head sizes for which vLLM's CPU attention has kernels: `CPUAttentionBackend.get_supported_head_sizes`. The list is
# copied because settings are checked on machines without vLLM, and an engine needs 45 s to refuse another size.
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)

# Arguments of vLLM's EngineArgs that settings decide, by the name of the setting.
SETTING_OF_ARGUMENT = {
    "model": "policy.model",
    "dtype": "generation.precision",
    "max_model_len": "generation.max_model_len",
    "max_num_seqs": "generation.max_num_seqs",
    "max_num_batched_tokens": "generation.max_num_batched_tokens",
    "enforce_eager": "generation.enforce_eager",
    "tensor_parallel_size": "generation.tensor_parallel_size",
    "gpu_memory_utilization": "generation.gpu_memory_utilization",
    "enable_sleep_mode": "generation.sleep",
    "distributed_executor_backend": "generation.placement",
    "pipeline_parallel_size": "generation.tensor_parallel_size",
    "data_parallel_size": "generation.num_engines",
    "seed": "trainer.seed",
}
_FIXED_ARGUMENTS = ("block_size", "enable_prefix_caching", "logprobs_mode", "worker_extension_cls", "disable_log_stats")


@dataclass
class GenerationConfig:
    """Settings of the vLLM engines."""

    num_engines: int | None = auto(
        "number of engines; auto: one per tensor_parallel_size GPUs; on CPU one per core, as memory allows",
        at_least=1,
        may_change=True,
    )
    tensor_parallel_size: int = setting(1, "GPUs per engine", at_least=1)
    max_model_len: int | None = auto(
        "most tokens of a prompt and its response together; auto: the longest that the settings of "
        "prompts and responses allow",
        at_least=2,
    )
    max_num_seqs: int | None = auto(
        "most responses that an engine decodes together; auto: as many as the cache holds, at most 512", at_least=1
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "most tokens of prompts and responses in one step of an engine; null: 8192 on GPUs, 2048 on CPU",
        at_least=1,
    )
    gpu_memory_utilization: float | None = auto(
        "share of a GPU's memory for an engine; auto: what the policy leaves", above=0, at_most=1
    )
    kv_cache_gib: float | None = auto(
        "GiB of KV cache per engine, on CPU; auto: room for 128 responses of half length, as memory allows", above=0
    )
    precision: str = setting("fp32", "number format of weights and activations", choices=("fp32", "bf16"))
    enforce_eager: bool = setting(True, "do not use CUDA graphs")
    lean_scheduler: str = setting(
        "auto",
        "use the lean scheduler (docs/explanation/architecture.md); auto: on a CPU, where it was measured",
        choices=("auto", "on", "off"),
        may_change=True,
    )
    placement: str = setting(
        "colocated",
        "devices of the engines. colocated: those of the policy, in turns; disaggregated: their own",
        choices=("colocated", "disaggregated"),
    )
    sleep: str = setting(
        "off",
        "memory that colocated engines release while the policy trains. cache: the KV cache; offload: "
        "also the weights, to the host; discard: also the weights, which are sent again",
        choices=("off", "cache", "offload", "discard"),
    )
    weight_transport: str = setting(
        "auto",
        "transport of weight syncs. collective: NCCL, or Gloo on CPU; auto: object_store on CPU, cuda_ipc "
        "if colocated, else collective",
        choices=("auto", "object_store", "collective", "cuda_ipc"),
    )
    weight_bucket_mib: float = setting(64.0, "MiB of the buckets in which weights are sent, a few at a time", above=0)
    weight_timeout_s: float = setting(60.0, "most seconds to join a transport, or to send one bucket", above=0)
    engine_args: dict[str, Any] = setting(
        {}, "further arguments of vLLM's EngineArgs, for example kv_cache_dtype=fp8 (docs/howto/one_gpu.md)"
    )
    timeout_s: float = setting(
        600.0, "seconds without progress, or of a restart, after which an engine is replaced", above=0, may_change=True
    )
    max_restarts: int = setting(
        3,
        "restarts of an engine without a finished chunk, or losses of one chunk, after which the run ends",
        at_least=0,
        may_change=True,
    )

    def violations(self) -> Iterator[str]:
        for name in self.engine_args:
            if name in SETTING_OF_ARGUMENT:
                yield f"generation.engine_args.{name} is a setting of its own: set {SETTING_OF_ARGUMENT[name]}"
            elif name in _FIXED_ARGUMENTS:
                yield f"generation.engine_args.{name} cannot be chosen, engines rely on their own: leave it out"
        if self.lean_scheduler == "on" and "scheduler_cls" in self.engine_args:
            yield (
                "generation.lean_scheduler=on and generation.engine_args.scheduler_cls exclude each other: set "
                "generation.lean_scheduler=auto, or leave scheduler_cls out"
            )
        batch, sequences = self.max_num_batched_tokens, self.max_num_seqs
        if batch is not None and sequences is not None and batch < sequences:
            yield (
                f"generation.max_num_batched_tokens={batch} is less than one token for each of "
                f"generation.max_num_seqs={sequences} responses: set {sequences} or more"
            )

    def largest_graph(self, max_num_seqs: int) -> int:
        """Return how many sequences the largest CUDA graph of an engine decodes; 0: engines run without graphs."""
        if self.enforce_eager:
            return 0
        compilation = dict(self.engine_args.get("compilation_config") or {})
        return int(compilation.get("max_cudagraph_capture_size", max_num_seqs))

    @property
    def is_quantised(self) -> bool:
        """True if `engine_args` make engines compute, or store keys and values, in fewer bits than the weights have."""
        cache = str(self.engine_args.get("kv_cache_dtype", "auto"))
        return self.engine_args.get("quantization") is not None or cache.startswith("fp8")
