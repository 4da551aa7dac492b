"""Choose the sizes that the user did not set: micro-batches, engines, caches, data-parallel ranks.

They depend on model, data and machine. A run, its memory check and `brorl plan` all use them. Every setting declared by
`auto(...)` starts at its preferred value. Sizes that do not fit into the free memory shrink step by step, in the order
that costs the least speed. Numbers that the user set stay unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from nemo_brorl.config.generation import BLOCK_TOKENS
from nemo_brorl.config.gpu_contexts import bucket_gib, engine_context_gib, policy_context_gib
from nemo_brorl.config.lengths import longest_response, max_model_len
from nemo_brorl.config.memory import needed_gib
from nemo_brorl.config.parallel_layout import ParallelLayout, layout_of
from nemo_brorl.config.rank_memory import NUMBER_BYTES, activation_bytes, backward_bytes, policy_bytes
from nemo_brorl.config.rank_parameters import rank_parameters
from nemo_brorl.config.run_sizes import CACHE_GIB, MICRO_BATCH_TOKENS, SEQUENCES, START_S, RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB, Machine
from nemo_brorl.core.model_shape import ModelShape

SHARE_TAKEN = 0.85  # share of the free memory that may be used; above it `check_memory` warns
MOST_RANKS = 8  # most policy ranks, and most engines, on CPU, because all share the memory's bandwidth
WIDE = 512  # hidden size from which two threads share a rank's matrix products, without exchanging gradients
SATURATED_TOKENS = 2048  # micro-batch tokens from which a CPU core's matrix products get no faster
# responses that an engine on CPU decodes together; with more, caches outweigh weights in memory traffic
CACHED_RESPONSES = 128
FEW_RESPONSES = 32  # number of responses below which a core decodes more slowly
MEAN_SHARE = 0.5  # mean share of the longest response that a response in progress holds in the cache
MEAN_PROMPT_SHARE = 1 / 8  # mean share of the longest prompt; all responses of a chunk share one copy
GPU_MICRO_BATCH_TOKENS = 32768
GPU_BESIDE_GIB = 4.0  # contexts, communicators, log-probs' tiles, a sleeping engine (the planner's README)
GPU_ROUND_TOKENS = 1024
GPU_SHARES = (0.2, 0.85)  # smallest and largest share of a GPU for an engine that shares it with the policy
GPU_SHARE_ALONE = 0.9
# Engines, policy and parity check each read the weights, while all nodes of the run read the same disk.
START_S_PER_GIB = 30.0

RANKS, ENGINES = "policy.data_parallel_size", "generation.num_engines"
MICRO_BATCH, CACHE = "policy.tokens_per_micro_batch", "generation.kv_cache_gib"
THREADS = "policy.num_threads"
CPU_SETTINGS = (RANKS, ENGINES, MICRO_BATCH, CACHE)


@dataclass(frozen=True)
class Size:
    """A size that was chosen for a setting, with the reason."""

    setting: str
    value: float
    reason: str

    def __str__(self) -> str:
        return f"{self.setting}={self.value:g} ({self.reason})"


def resolve_sizes(
    config: BroRLConfig,
    shape: ModelShape,
    machine: Machine,
    with_policy: bool = True,
) -> tuple[BroRLConfig, tuple[Size, ...]]:
    """Return the settings with a number for every size left to `auto`, and the chosen sizes with their reasons.

    Sizes are numbers such as ranks, engines, micro-batch tokens and cache memory. `with_policy=False` chooses them for
    engines and verifiers alone, as in an evaluation.
    """
    chosen = _Chosen(config)
    prompt, response = config.data.max_prompt_tokens, longest_response(config)
    room = f"prompts of at most {prompt:,} tokens, responses of {response:,}"
    chosen.fill_in("generation.max_model_len", max_model_len(config), room)
    if config.trainer.num_gpus:
        _fit_gpu(chosen, shape, machine, with_policy)
    else:
        _fit_cpu(chosen, shape, machine, with_policy)
    precision = f"policy in {config.policy.precision}, engines in {config.generation.precision}"
    chosen.fill_in("parity.max_mean_abs_diff", RunSizes.from_config(config).parity_bound, precision)
    weights = NUMBER_BYTES[config.policy.precision] * rank_parameters(shape, ParallelLayout(), 0).total / GIB
    start_s = START_S + round(START_S_PER_GIB * weights)
    chosen.fill_in("trainer.start_timeout_s", start_s, f"{weights:.1f} GiB of weights")
    return chosen.config, tuple(chosen.sizes.values())


class _Chosen:
    """A run's settings while their open sizes (those that the user did not set) are filled in."""

    def __init__(self, config: BroRLConfig) -> None:
        self.given = config
        self.config = config
        self.sizes: dict[str, Size] = {}  # chosen sizes by setting, in the order of choice

    def is_free(self, setting: str) -> bool:
        """Return whether the user left a setting to be chosen automatically."""
        section, name = setting.split(".")
        return getattr(getattr(self.given, section), name) is None

    def fill_in(self, setting: str, value: float, reason: str) -> None:
        """Give a setting the chosen number, if the user left it to `auto`, and record the reason for the number."""
        if not self.is_free(setting):
            return
        section, name = setting.split(".")
        changed: Any = replace(getattr(self.config, section), **{name: value})
        self.config = replace(self.config, **{section: changed})
        self.sizes[setting] = Size(setting, value, reason)


@dataclass(frozen=True)
class _CpuSizes:
    """Sizes of a run on CPU that determine how much memory it needs."""

    ranks: int
    engines: int
    micro_batch: int  # tokens
    cache: float  # GiB

    def write(self, chosen: _Chosen, wanted: _CpuSizes, machine: Machine, shape: ModelShape) -> None:
        """Fill the sizes chosen for a CPU run into the settings that the user left to `auto`, each with a reason."""
        cores = f"{machine.cores} cores"
        rank_cores = f"{cores}, {_cores_of_rank(shape)} a rank"
        enough = f"{CACHED_RESPONSES} responses of half length, or more"
        reasons = (rank_cores, cores, "no core gains from more", enough)
        values, wishes = astuple(self), astuple(wanted)
        for setting, value, wish, reason in zip(CPU_SETTINGS, values, wishes, reasons, strict=True):
            short = f"{machine.free_gib or 0:.1f} GiB are free; with more {wish:g}"
            chosen.fill_in(setting, value, reason if value == wish else short)
        ranks = RunSizes.from_config(chosen.config).num_ranks
        chosen.fill_in(THREADS, max(1, machine.cores // ranks), f"{cores}, {ranks} ranks")
        cache = RunSizes.from_config(chosen.config).kv_cache_gib
        fitting = int(cache / _cache_gib(chosen.config, shape, 1))
        batch = chosen.config.generation.max_num_batched_tokens or SEQUENCES
        sequences = max(1, min(SEQUENCES, fitting, batch))
        held = f"what {cache:.2g} GiB of cache hold, at most {SEQUENCES}"
        chosen.fill_in("generation.max_num_seqs", sequences, held)


def _fit_cpu(chosen: _Chosen, shape: ModelShape, machine: Machine, with_policy: bool) -> None:
    wanted = _wanted_on_cpu(chosen.config, shape, machine)
    before = chosen.config
    for sizes in _from_most_to_least(chosen, wanted, shape):
        chosen.config = before
        sizes.write(chosen, wanted, machine, shape)
        if machine.free_gib is None or needed_gib(chosen.config, shape, with_policy) <= SHARE_TAKEN * machine.free_gib:
            return


def _wanted_on_cpu(config: BroRLConfig, shape: ModelShape, machine: Machine) -> _CpuSizes:
    """Return the ranks, engines, micro-batch tokens and KV cache that a CPU run would use with unlimited memory."""
    cores = max(1, min(MOST_RANKS, machine.cores))
    smallest = min(config.rollouts.stage_samples()) // config.algorithm.num_mini_batches
    processes = max(1, min(MOST_RANKS, machine.cores // _cores_of_rank(shape)))
    ranks = min(processes // config.policy.model_parallel_size, smallest)
    fewest = _fewest_ranks(config)
    return _CpuSizes(
        ranks=max(fewest, ranks // fewest * fewest),
        engines=max(cores, config.trainer.num_nodes),
        micro_batch=max(_longest_row(config), MICRO_BATCH_TOKENS),
        cache=max(CACHE_GIB, _rounded(_cache_gib(config, shape, CACHED_RESPONSES))),
    )


def _cores_of_rank(shape: ModelShape) -> int:
    """Return the number of cores for one policy rank on CPU."""
    return 2 if shape.hidden_size >= WIDE else 1


def _from_most_to_least(chosen: _Chosen, wanted: _CpuSizes, shape: ModelShape) -> Iterator[_CpuSizes]:
    """Yield combinations of ranks, engines, micro-batch and KV cache to try on CPU, from the most memory to the least.

    Micro-batches and caches shrink until a core would get slower, and then the number of processes falls by one.
    Numbers that the user set stay unchanged.
    """
    config = chosen.given
    row = _longest_row(config)
    one = _rounded(_sequence_gib(config, shape, 1.0, 1.0))
    of_few = _rounded(_cache_gib(config, shape, FEW_RESPONSES))
    few = min(wanted.cache, max(one, of_few))
    micro_batches: Sequence[float] = [wanted.micro_batch]
    if chosen.is_free(MICRO_BATCH):
        micro_batches = _halves(wanted.micro_batch, row)
    caches: Sequence[float] = [wanted.cache]
    if chosen.is_free(CACHE):
        caches = _halves(wanted.cache, few)
    fewest = replace(wanted, ranks=_fewest_ranks(config), engines=config.trainer.num_nodes)
    for ranks, engines in _processes(chosen, wanted, fewest):
        for micro_batch in micro_batches:
            if micro_batch >= min(SATURATED_TOKENS, wanted.micro_batch):
                yield _CpuSizes(ranks, engines, math.ceil(micro_batch), wanted.cache)
        for cache in caches:
            yield _CpuSizes(ranks, engines, max(row, SATURATED_TOKENS), cache)
        for micro_batch in micro_batches:
            yield _CpuSizes(ranks, engines, math.ceil(micro_batch), few)
    yield replace(fewest, micro_batch=row, cache=one)


def _processes(chosen: _Chosen, most: _CpuSizes, fewest: _CpuSizes) -> Iterator[tuple[int, int]]:
    """Yield pairs of numbers of policy ranks and engines, from the most memory to the least.

    The number of ranks falls first, because ranks are larger, and then the number of engines.
    """
    if chosen.is_free(RANKS):
        for ranks in range(most.ranks, fewest.ranks, -fewest.ranks):
            yield ranks, most.engines
    for engines in range(most.engines, fewest.engines, -1):
        yield fewest.ranks, engines
    yield fewest.ranks, fewest.engines


def _fewest_ranks(config: BroRLConfig) -> int:
    """Return the fewest data-parallel replicas that a layer's experts and the nodes need.

    Larger numbers of replicas must be multiples of it.
    """
    return max(config.policy.expert_model_parallel_size, config.trainer.num_nodes)


def _halves(most: float, least: float) -> list[float]:
    """Return sizes of micro-batches or KV caches to try: `most`, half of it, a quarter and so on, down to `least`."""
    values = []
    while most > least:
        values.append(most)
        most /= 2
    return [*values, least]


def _rounded(gib: float) -> float:
    """Return a size in GiB, rounded up to a multiple of 1/64."""
    return math.ceil(64 * gib) / 64


def _longest_row(config: BroRLConfig) -> int:
    """Return the number of tokens of the longest prompt and response that are on one context-parallel rank."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    return math.ceil(longest / config.policy.context_parallel_size)


def _cache_gib(config: BroRLConfig, shape: ModelShape, num: int) -> float:
    """Return the GiB of KV cache for `num` responses in progress, each at its mean share of the longest response.

    Responses to one prompt that are generated together share one copy of the prompt's keys and values.
    """
    return num * _sequence_gib(config, shape, MEAN_SHARE, MEAN_PROMPT_SHARE / config.rollouts.chunk_size)


def _sequence_gib(config: BroRLConfig, shape: ModelShape, response_share: float, prompt_share: float) -> float:
    """Return the GiB of keys and values of a response and its prompt, in whole cache blocks.

    `response_share` and `prompt_share` are their lengths as fractions of the longest response and prompt.
    """
    response = response_share * longest_response(config)
    prompt = prompt_share * config.data.max_prompt_tokens
    block = BLOCK_TOKENS
    tokens = block * math.ceil((response + prompt) / block)
    return tokens * _cache_bytes(config, shape) / GIB


def _cache_bytes(config: BroRLConfig, shape: ModelShape) -> float:
    """Return the bytes of keys and values for one token."""
    number = NUMBER_BYTES[config.generation.precision]
    return 2.0 * number * shape.num_layers * shape.num_key_value_heads * shape.head_size


def _fit_gpu(chosen: _Chosen, shape: ModelShape, machine: Machine, with_policy: bool) -> None:
    """Choose the sizes of a run on GPUs that the user left to `auto`.

    Engines and policy ranks take as many GPUs as they may have. The engines' share of GPU memory depends on what the
    policy leaves, and micro-batches depend on what the engines leave.
    """
    config = chosen.config
    gpu = f"GPUs of {machine.gpu_gib:.0f} GiB"
    chosen.fill_in(
        "policy.data_parallel_size", RunSizes.from_config(config).data_parallel, "all GPUs that the policy may have"
    )
    chosen.fill_in(
        "generation.num_engines", RunSizes.from_config(chosen.config).num_engines, "all GPUs that generation may have"
    )
    policy_gib = _policy_state_gib(chosen.config, shape) if with_policy else 0.0
    share, beside = GPU_SHARE_ALONE, "the policy is elsewhere"
    if with_policy and RunSizes.from_config(config).shares_gpus:
        left = 1 - (policy_gib + max(GPU_BESIDE_GIB, _beside_gib(chosen.config, shape))) / machine.gpu_gib
        share = min(GPU_SHARES[1], max(GPU_SHARES[0], math.floor(20 * left) / 20))
        beside = f"{policy_gib:.0f} GiB of policy beside it, {gpu}"
    chosen.fill_in("generation.gpu_memory_utilization", share, beside)
    sequences = min(SEQUENCES, config.generation.max_num_batched_tokens or SEQUENCES)
    chosen.fill_in("generation.max_num_seqs", sequences, "vLLM admits what its cache holds")
    engine_gib = 0.0
    if RunSizes.from_config(config).shares_gpus and config.generation.sleep == "off":
        engine_gib = RunSizes.from_config(chosen.config).gpu_share * machine.gpu_gib
    free = machine.gpu_gib - policy_gib - engine_gib - GPU_BESIDE_GIB
    tokens = _fitting_tokens(chosen.config, shape, SHARE_TAKEN * free)
    reason = f"{max(0.0, free):.0f} GiB for activations, {gpu}"
    chosen.fill_in("policy.tokens_per_micro_batch", max(_longest_row(config), tokens), reason)


def _policy_state_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """Return the GiB of weights, gradients and optimizer share on the fullest policy rank."""
    layout = layout_of(config)
    fullest = 0.0
    for stage in {0, layout.pipeline - 1}:
        held = policy_bytes(config, shape, layout, stage)
        fullest = max(fullest, held.weights + held.fp8_copies + held.gradients + held.optimizer)
    return fullest / GIB


def _beside_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """Return the GiB of GPU contexts and weight buckets, which a GPU holds besides a loaded policy and engine."""
    return policy_context_gib(layout_of(config)) + engine_context_gib(config) + bucket_gib(config, shape)


def _fitting_tokens(config: BroRLConfig, shape: ModelShape, gib: float) -> int:
    """Return the number of tokens of the largest micro-batch whose activations and backward pass fit into `gib`.

    The number is a multiple of 1,024, at most 32,768.
    """
    layout = layout_of(config)
    for tokens in range(GPU_MICRO_BATCH_TOKENS, 0, -GPU_ROUND_TOKENS):
        needed = 0.0
        for stage in {0, layout.pipeline - 1}:
            kept = activation_bytes(config, shape, layout, stage, tokens)
            needed = max(needed, kept + backward_bytes(config, shape, layout, stage, tokens))
        if needed <= gib * GIB:
            return tokens
    return 0
