"""Compute the sizes of a run once: numbers of ranks and engines, their devices and limits."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.config.lengths import max_model_len
from nemo_brorl.config.schema import BroRLConfig

GPU_BATCH_TOKENS = 8192  # generation.max_num_batched_tokens: null with GPUs
CPU_ENGINES = 2  # default of generation.num_engines, before `sizes.py` has read the machine's resources
MICRO_BATCH_TOKENS = 8192  # default of policy.tokens_per_micro_batch, before `sizes.py`
CACHE_GIB = 0.25  # default of generation.kv_cache_gib, before `sizes.py`
GPU_SHARE = 0.6  # default of generation.gpu_memory_utilization, before `sizes.py`
SEQUENCES = 512  # default of generation.max_num_seqs, before `sizes.py`
CPUS_PER_GPU = 2  # Ray's CPU slots of a bundle for each of its GPUs; an engine reserves one, a policy rank a tenth
START_S = 1800.0  # default of trainer.start_timeout_s, before `sizes.py` has read the size of the weights
FP32_PARITY, BF16_PARITY = 1e-3, 0.05  # nats; by the coarser precision of policy and engines


@dataclass(frozen=True)
class RunSizes:
    """Sizes of a run that follow from its settings, with a value for every `null`."""

    num_nodes: int
    gpus_per_node: int  # 0: everything on CPU
    is_colocated: bool  # True: policy and engines take turns on the same devices
    model_parallel: int  # ranks that hold one replica of the policy: TP × PP × CP
    data_parallel: int  # replicas of the policy
    num_engines: int
    gpus_per_engine: int
    overlaps_gradients: bool  # True: replicas reduce gradients during the backward pass
    gives_memory_back: bool  # True: ranks return cached memory before engines need the devices
    micro_batch_tokens: int  # largest micro-batch on each context-parallel rank
    row_tokens: int  # largest micro-batch on all context-parallel ranks together
    max_model_len: int  # tokens of a prompt and its response together that an engine has room for
    max_num_seqs: int  # most responses that an engine decodes together
    engine_batch_tokens: int | None  # most tokens that an engine computes in one step; None: vLLM's own number, 2,048
    kv_cache_gib: float  # size of an engine's KV cache, on CPU
    gpu_share: float  # share of a GPU's memory that an engine gets
    weight_transport: str  # object_store, collective or cuda_ipc
    parity_bound: float  # largest mean difference of log-probs between two stacks, in nats
    start_timeout_s: float  # most seconds until everything is ready

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the whole run; 0: everything runs on CPU."""
        return self.num_nodes * self.gpus_per_node

    @property
    def shares_gpus(self) -> bool:
        """True if policy ranks and engines are on the same GPUs."""
        return self.num_gpus > 0 and self.is_colocated

    @property
    def num_ranks(self) -> int:
        """Number of the policy's ranks, each a Ray actor."""
        return self.data_parallel * self.model_parallel

    @classmethod
    def from_config(cls, config: BroRLConfig) -> RunSizes:
        """Return numbers such as GPUs, ranks and engines of the run that a configuration describes."""
        policy, generation, replicas = config.policy, config.generation, _data_parallel(config)
        sequences = generation.max_num_seqs or SEQUENCES
        micro_batch_tokens = policy.tokens_per_micro_batch or MICRO_BATCH_TOKENS
        return cls(
            num_nodes=config.trainer.num_nodes,
            gpus_per_node=config.trainer.gpus_per_node,
            is_colocated=generation.placement == "colocated",
            model_parallel=policy.model_parallel_size,
            data_parallel=replicas,
            num_engines=_num_engines(config, replicas * policy.model_parallel_size),
            gpus_per_engine=generation.tensor_parallel_size,
            overlaps_gradients=_overlaps_gradients(config, replicas),
            gives_memory_back=_gives_memory_back(config),
            micro_batch_tokens=micro_batch_tokens,
            row_tokens=micro_batch_tokens * policy.context_parallel_size,
            max_model_len=max_model_len(config),
            max_num_seqs=sequences,
            engine_batch_tokens=_engine_batch_tokens(config, sequences),
            kv_cache_gib=generation.kv_cache_gib or CACHE_GIB,
            gpu_share=generation.gpu_memory_utilization or GPU_SHARE,
            weight_transport=_weight_transport(config),
            parity_bound=_parity_bound(config),
            start_timeout_s=config.trainer.start_timeout_s or START_S,
        )


def _data_parallel(config: BroRLConfig) -> int:
    """Return the number of the policy's data-parallel replicas.

    It is `policy.data_parallel_size`, or else as many as the policy's GPUs hold, or 1 on CPU.

    Colocated, the policy has all GPUs. Disaggregated, it has those that `generation.num_engines` leaves.
    """
    if config.policy.data_parallel_size is not None:
        return config.policy.data_parallel_size
    gpus = config.trainer.num_gpus
    if config.generation.placement == "disaggregated":
        gpus -= (config.generation.num_engines or 0) * config.generation.tensor_parallel_size
    return max(1, gpus // config.policy.model_parallel_size)


def _num_engines(config: BroRLConfig, num_ranks: int) -> int:
    """Return the number of engines: `generation.num_engines`, or as many as the free GPUs hold, or 2 on CPU."""
    if config.generation.num_engines is not None:
        return config.generation.num_engines
    gpus = config.trainer.num_gpus
    if gpus == 0:
        return CPU_ENGINES
    if config.generation.placement == "disaggregated":
        gpus -= num_ranks
    return max(1, gpus // config.generation.tensor_parallel_size)


def _overlaps_gradients(config: BroRLConfig, data_parallel: int) -> bool:
    """Return `policy.overlap_grad_reduce`, or if it is null whether there are several replicas on GPUs."""
    if config.policy.overlap_grad_reduce is not None:
        return config.policy.overlap_grad_reduce
    return config.trainer.num_gpus > 0 and data_parallel * config.policy.context_parallel_size > 1


def _gives_memory_back(config: BroRLConfig) -> bool:
    """Return whether ranks return cached memory: always on CPU, and on GPUs if engines sleep there.

    torch keeps freed memory for its own process, and vLLM allocates its memory when it wakes.
    """
    if config.trainer.num_gpus == 0:
        return True
    return config.generation.placement == "colocated" and config.generation.sleep != "off"


def _engine_batch_tokens(config: BroRLConfig, max_num_seqs: int) -> int | None:
    if config.generation.max_num_batched_tokens is not None or config.trainer.num_gpus == 0:
        return config.generation.max_num_batched_tokens
    return max(GPU_BATCH_TOKENS, max_num_seqs)


def _weight_transport(config: BroRLConfig) -> str:
    """Return `generation.weight_transport`, with `auto` resolved.

    It is GPU memory where policy and engines share GPUs, broadcast between GPUs otherwise, and shared memory on CPU.
    """
    chosen = config.generation.weight_transport
    if chosen != "auto":
        return chosen
    if config.trainer.num_gpus == 0:
        return "object_store"
    return "cuda_ipc" if config.generation.placement == "colocated" else "collective"


def _parity_bound(config: BroRLConfig) -> float:
    if config.parity.max_mean_abs_diff is not None:
        return config.parity.max_mean_abs_diff
    return BF16_PARITY if "bf16" in (config.policy.precision, config.generation.precision) else FP32_PARITY
