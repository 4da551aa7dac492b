"""Sizes that nobody gave: micro-batches, engines, caches, data-parallel ranks, from model, data and machine.

A run, its refusal and `brorl plan` take them from here. Every setting declared by `auto(...)` is a wish first; what
does not fit into the memory that is free shrinks, step by step, what costs the least speed first. Numbers that were
given stay as they are.
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
from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.config.rank_memory import NUMBER_BYTES, activation_bytes, backward_bytes, policy_bytes
from nemo_brorl.config.run_sizes import CACHE_GIB, MICRO_BATCH_TOKENS, SEQUENCES, RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB, Machine
from nemo_brorl.core.model_shape import ModelShape

SHARE_TAKEN = 0.85  # of what is free; above it `check_memory` warns
MOST_RANKS = 8  # on CPU, policy ranks and engines alike: more share the memory's bandwidth
WIDE = 512  # hidden size from which two threads share a rank's matrix products, and need not exchange gradients
SATURATED_TOKENS = 2048  # of a micro-batch, from which a CPU core's matrix products get no faster
CACHED_RESPONSES = 128  # that an engine on CPU decodes together; more read their caches, not the weights, anew
FEW_RESPONSES = 32  # below which a core's decoding gets slower
MEAN_SHARE = 0.5  # of the longest response, that a response under way holds in the cache
MEAN_PROMPT_SHARE = 1 / 8  # of the longest prompt, once for all responses of a chunk
GPU_MICRO_BATCH_TOKENS = 32768
GPU_BESIDE_GIB = 4.0  # contexts, communicators, log-probs' tiles, a sleeping engine (the planner's README)
GPU_ROUND_TOKENS = 1024
GPU_SHARES = (0.2, 0.85)  # least and most of a GPU that an engine beside the policy gets
GPU_SHARE_ALONE = 0.9

RANKS, ENGINES = "policy.data_parallel_size", "generation.num_engines"
MICRO_BATCH, CACHE = "policy.tokens_per_micro_batch", "generation.kv_cache_gib"
THREADS = "policy.num_threads"
CPU_SETTINGS = (RANKS, ENGINES, MICRO_BATCH, CACHE)


@dataclass(frozen=True)
class Size:
    """A size that was chosen."""

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
    """The settings with a number wherever one was left to be chosen, and what was chosen, with the reason.
    `with_policy=False`: engines and verifiers alone, as an evaluation has them."""
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
    return chosen.config, tuple(chosen.sizes.values())


class _Chosen:
    """Settings while they are filled in."""

    def __init__(self, config: BroRLConfig) -> None:
        self.given = config
        self.config = config
        self.sizes: dict[str, Size] = {}  # by setting, in the order of choice

    def is_free(self, setting: str) -> bool:
        """Whether nobody gave it."""
        section, name = setting.split(".")
        return getattr(getattr(self.given, section), name) is None

    def fill_in(self, setting: str, value: float, reason: str) -> None:
        """Write a number, where none was given."""
        if not self.is_free(setting):
            return
        section, name = setting.split(".")
        changed: Any = replace(getattr(self.config, section), **{name: value})
        self.config = replace(self.config, **{section: changed})
        self.sizes[setting] = Size(setting, value, reason)


@dataclass(frozen=True)
class _CpuSizes:
    """Sizes of a run on CPU that take memory."""

    ranks: int
    engines: int
    micro_batch: int  # tokens
    cache: float  # GiB

    def write(self, chosen: _Chosen, wanted: _CpuSizes, machine: Machine, shape: ModelShape) -> None:
        """Fill in what nobody gave. A size that is less than wanted says what made it so."""
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
    """Sizes where memory is no question."""
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
    """Cores of one policy rank on CPU."""
    return 2 if shape.hidden_size >= WIDE else 1


def _from_most_to_least(chosen: _Chosen, wanted: _CpuSizes, shape: ModelShape) -> Iterator[_CpuSizes]:
    """What to try, one after the other: micro-batches and caches shrink down to where a core gets slower, then there is
    one process less. What was given is not tried otherwise."""
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
    """(ranks, engines) by the memory they take: first fewer ranks, which are larger, then fewer engines."""
    if chosen.is_free(RANKS):
        for ranks in range(most.ranks, fewest.ranks, -fewest.ranks):
            yield ranks, most.engines
    for engines in range(most.engines, fewest.engines, -1):
        yield fewest.ranks, engines
    yield fewest.ranks, fewest.engines


def _fewest_ranks(config: BroRLConfig) -> int:
    """Replicas that the experts of a layer, and nodes, need; more come in multiples of it."""
    return max(config.policy.expert_model_parallel_size, config.trainer.num_nodes)


def _halves(most: float, least: float) -> list[float]:
    """`most`, its half, and so on down to `least`."""
    values = []
    while most > least:
        values.append(most)
        most /= 2
    return [*values, least]


def _rounded(gib: float) -> float:
    """Not less, in 64ths."""
    return math.ceil(64 * gib) / 64


def _longest_row(config: BroRLConfig) -> int:
    """Tokens of the longest prompt and response on a context-parallel rank."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    return math.ceil(longest / config.policy.context_parallel_size)


def _cache_gib(config: BroRLConfig, shape: ModelShape, num: int) -> float:
    """Cache for responses under way, each half as long as it may get, chunks of them over one copy of their prompt."""
    return num * _sequence_gib(config, shape, MEAN_SHARE, MEAN_PROMPT_SHARE / config.rollouts.chunk_size)


def _sequence_gib(config: BroRLConfig, shape: ModelShape, response_share: float, prompt_share: float) -> float:
    """Keys and values of one response and its prompt, of shares of their greatest lengths, in whole blocks."""
    response = response_share * longest_response(config)
    prompt = prompt_share * config.data.max_prompt_tokens
    block = BLOCK_TOKENS
    tokens = block * math.ceil((response + prompt) / block)
    return tokens * _cache_bytes(config, shape) / GIB


def _cache_bytes(config: BroRLConfig, shape: ModelShape) -> float:
    """Keys and values of one token."""
    number = NUMBER_BYTES[config.generation.precision]
    return 2.0 * number * shape.num_layers * shape.num_key_value_heads * shape.head_size


def _fit_gpu(chosen: _Chosen, shape: ModelShape, machine: Machine, with_policy: bool) -> None:
    """GPUs: engines and ranks fill them by count; micro-batches and the engines' share by what the other leaves."""
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
    """Weights, gradients and the share of the optimizer of the fullest rank."""
    layout = layout_of(config)
    fullest = 0.0
    for stage in {0, layout.pipeline - 1}:
        held = policy_bytes(config, shape, layout, stage)
        fullest = max(fullest, held.weights + held.fp8_copies + held.gradients + held.optimizer)
    return fullest / GIB


def _beside_gib(config: BroRLConfig, shape: ModelShape) -> float:
    """What is there beside policy and engine when both are loaded: contexts, buckets of weights."""
    return policy_context_gib(layout_of(config)) + engine_context_gib(config) + bucket_gib(config, shape)


def _fitting_tokens(config: BroRLConfig, shape: ModelShape, gib: float) -> int:
    """Tokens of the largest micro-batch whose activations and backward pass take no more, in `GPU_ROUND_TOKENS`."""
    layout = layout_of(config)
    for tokens in range(GPU_MICRO_BATCH_TOKENS, 0, -GPU_ROUND_TOKENS):
        needed = 0.0
        for stage in {0, layout.pipeline - 1}:
            kept = activation_bytes(config, shape, layout, stage, tokens)
            needed = max(needed, kept + backward_bytes(config, shape, layout, stage, tokens))
        if needed <= gib * GIB:
            return tokens
    return 0
