"""Numbers that follow from several settings: one place, so that rules, wiring and launcher agree."""

from __future__ import annotations

import math
from typing import NamedTuple

from nemo_brorl.config.evaluation import BenchmarkConfig
from nemo_brorl.config.schema import BroRLConfig

GPU_BATCH_TOKENS = 8192  # generation.max_num_batched_tokens: null with GPUs
CPU_ENGINES = 2  # generation.num_engines, before `sizes.py` has looked at the machine
MICRO_BATCH_TOKENS = 8192  # likewise policy.tokens_per_micro_batch
CACHE_GIB = 0.25  # generation.kv_cache_gib
GPU_SHARE = 0.6  # generation.gpu_memory_utilization
SEQUENCES = 512  # generation.max_num_seqs
FP32_PARITY, BF16_PARITY = 1e-3, 0.05  # nats; by the coarser precision of policy and engines
HELD_OUT = "held_out"  # what the held-out prompts of `data` are called among benchmarks


def num_gpus(config: BroRLConfig) -> int:
    """GPUs of the whole run; 0 means that everything runs on CPU."""
    return config.trainer.num_nodes * config.trainer.gpus_per_node


def model_parallel_size(config: BroRLConfig) -> int:
    """Ranks that hold one replica of the policy: TP × PP × CP."""
    policy = config.policy
    return policy.tensor_model_parallel_size * policy.pipeline_model_parallel_size * policy.context_parallel_size


def data_parallel_size(config: BroRLConfig) -> int:
    """Replicas of the policy; `policy.data_parallel_size: null` means all GPUs that it may have, or 1 on CPU.

    Colocated it may have all, disaggregated those that `generation.num_engines` leaves.
    """
    if config.policy.data_parallel_size is not None:
        return config.policy.data_parallel_size
    gpus = num_gpus(config)
    if config.generation.placement == "disaggregated":
        gpus -= (config.generation.num_engines or 0) * config.generation.tensor_parallel_size
    return max(1, gpus // model_parallel_size(config))


def overlaps_gradients(config: BroRLConfig) -> bool:
    """Whether replicas reduce gradients while the backward pass goes on; `policy.overlap_grad_reduce: null` means on
    GPUs, where there is more than one replica."""
    if config.policy.overlap_grad_reduce is not None:
        return config.policy.overlap_grad_reduce
    num_replicas = data_parallel_size(config) * config.policy.context_parallel_size
    return num_gpus(config) > 0 and num_replicas > 1


def num_policy_ranks(config: BroRLConfig) -> int:
    """Policy actors."""
    return data_parallel_size(config) * model_parallel_size(config)


def num_engines(config: BroRLConfig) -> int:
    """vLLM engines; `generation.num_engines: null` fills the GPUs that are left to generation, or means 2 on CPU."""
    if config.generation.num_engines is not None:
        return config.generation.num_engines
    gpus = num_gpus(config)
    if gpus == 0:
        return CPU_ENGINES
    if config.generation.placement == "disaggregated":
        gpus -= num_policy_ranks(config)
    return max(1, gpus // config.generation.tensor_parallel_size)


def micro_batch_tokens(config: BroRLConfig) -> int:
    """Tokens of a micro-batch on each context-parallel rank, at most."""
    return config.policy.tokens_per_micro_batch or MICRO_BATCH_TOKENS


def fullest_micro_batch(config: BroRLConfig) -> int:
    """Tokens of the fullest micro-batch that a context-parallel rank can get: what it may hold, or the rank's whole
    share of a mini-batch, with every prompt and response as long as they may be, where that is less."""
    longest = config.rollouts.max_response_tokens
    prompt = config.data.max_prompt_tokens
    most = 1
    for num, prompts in stage_sizes(config):
        trained = prompts * min(num, config.algorithm.train_rollouts or num)
        share = math.ceil(trained / config.algorithm.num_mini_batches / data_parallel_size(config))
        copies = min(share, prompts + 1) if config.policy.shared_prompt else share
        most = max(most, share * longest + copies * prompt)
    return min(micro_batch_tokens(config), math.ceil(most / config.policy.context_parallel_size))


def kv_cache_gib(config: BroRLConfig) -> float:
    """GiB of an engine's cache, on CPU."""
    return config.generation.kv_cache_gib or CACHE_GIB


def gpu_share(config: BroRLConfig) -> float:
    """Share of a GPU's memory that an engine has."""
    return config.generation.gpu_memory_utilization or GPU_SHARE


def max_num_seqs(config: BroRLConfig) -> int:
    """Responses that an engine decodes together, at most."""
    return config.generation.max_num_seqs or SEQUENCES


def max_model_len(config: BroRLConfig) -> int:
    """Tokens of a prompt and its response together that an engine has room for."""
    if config.generation.max_model_len is not None:
        return config.generation.max_model_len
    room = config.data.max_prompt_tokens + longest_response(config)
    for _, benchmark in config.evaluation.selected():
        limits = benchmark_limits(config, benchmark)
        room = max(room, limits.max_prompt_tokens + limits.max_response_tokens)
    return room


def parity_bound(config: BroRLConfig) -> float:
    """Nats by which log-probs of two stacks may differ in the mean."""
    given = config.parity.max_mean_abs_diff
    if given is not None:
        return given
    return BF16_PARITY if "bf16" in (config.policy.precision, config.generation.precision) else FP32_PARITY


def shares_gpus(config: BroRLConfig) -> bool:
    """Whether policy ranks and engines are on the same GPUs."""
    return num_gpus(config) > 0 and config.generation.placement == "colocated"


def engine_batch_tokens(config: BroRLConfig) -> int | None:
    """Tokens that an engine computes in one step; None: vLLM's own number, 2,048, where no GPU asks for more."""
    if config.generation.max_num_batched_tokens is not None or num_gpus(config) == 0:
        return config.generation.max_num_batched_tokens
    return max(GPU_BATCH_TOKENS, max_num_seqs(config))


def policy_gives_memory_back(config: BroRLConfig) -> bool:
    """Whether the policy's ranks hand memory that they keep for later back at the end of a turn: on CPU always, on GPUs
    where engines sleep in it. torch keeps what is freed for its own process, and vLLM maps what it needs when it wakes.
    """
    if num_gpus(config) == 0:
        return True
    return shares_gpus(config) and config.generation.sleep != "off"


def weight_transport(config: BroRLConfig) -> str:
    """How weights reach the engines; auto: through memory of the GPU they share, by broadcast between GPUs, else shared
    memory."""
    chosen = config.generation.weight_transport
    if chosen != "auto":
        return chosen
    if num_gpus(config) == 0:
        return "object_store"
    return "cuda_ipc" if config.generation.placement == "colocated" else "collective"


def stage_sizes(config: BroRLConfig) -> list[tuple[int, int]]:
    """(N, prompts per step) of every stage of `rollouts.schedule`. Under a sample budget, prompts shrink as N grows."""
    rollouts, schedule = config.rollouts, config.rollouts.schedule
    numbers = [stage.num_per_prompt for stage in schedule.stages]
    if schedule.kind == "constant":
        numbers = [rollouts.num_per_prompt]
    elif schedule.kind == "on_plateau":
        numbers.insert(0, rollouts.num_per_prompt)
    sizes = []
    for num in numbers:
        prompts = rollouts.prompts_per_step
        if schedule.sample_budget is not None:
            prompts = max(1, min(prompts, schedule.sample_budget // num))
        sizes.append((num, prompts))
    return sizes


def stage_samples(config: BroRLConfig) -> list[int]:
    """Rollouts in one update, N × prompts, of every stage."""
    return [num * prompts for num, prompts in stage_sizes(config)]


class BenchmarkLimits(NamedTuple):
    """What a benchmark asks of the engines, defaults filled in."""

    num_samples: int  # responses of each prompt
    max_prompt_tokens: int
    max_response_tokens: int


def benchmark_limits(config: BroRLConfig, benchmark: BenchmarkConfig | None) -> BenchmarkLimits:
    """Limits of a benchmark, or of the held-out prompts (None)."""
    shared, own = config.evaluation, benchmark or BenchmarkConfig(name=HELD_OUT)
    return BenchmarkLimits(
        own.samples_per_prompt or shared.samples_per_prompt,
        own.max_prompt_tokens or config.data.max_prompt_tokens,
        own.max_response_tokens or shared.max_response_tokens or config.rollouts.max_response_tokens,
    )


def longest_response(config: BroRLConfig) -> int:
    """Tokens of the longest response that training or evaluation asks for."""
    return max(config.rollouts.max_response_tokens, config.evaluation.max_response_tokens or 0)


def time_limit_s(config: BroRLConfig) -> float | None:
    """Seconds of `trainer.time_limit`; None: no limit. The section has checked the format."""
    if config.trainer.time_limit is None:
        return None
    hours, minutes, seconds = (int(part) for part in config.trainer.time_limit.split(":"))
    return 3600.0 * hours + 60.0 * minutes + seconds
