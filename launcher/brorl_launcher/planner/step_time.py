"""Estimate the time of a step on GPUs, stage by stage, from operations and bytes over assumed shares of the peaks.

README.md of this folder has each assumption. An engine samples in decode steps with a batch that fills and drains. Each
step takes as long as its bytes or its operations.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from functools import lru_cache

from brorl_launcher.planner.hardware import Hardware
from brorl_launcher.planner.memory_plan import EnginePlan, cached_token_bytes, engine_plan
from brorl_launcher.planner.model_cost import active_parameters, forward_flops
from brorl_launcher.planner.workload import Engines, MicroBatches, Workload
from nemo_brorl.config.generation import BLOCK_TOKENS
from nemo_brorl.config.lengths import benchmark_limits
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import NUMBER_BYTES, policy_bytes
from nemo_brorl.config.rank_parameters import attention_size, rank_parameters
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

_MAX_ROLLOUTS = 4096  # rollouts of one engine that are simulated one by one; more are scaled down with their slots

HALF_SPEED_TOKENS = 512  # assumed: tokens of a micro-batch on a rank at half the speed of a large one
VERIFIER_S = 0.01  # assumed seconds of one response on one worker, during generation


@dataclass(frozen=True)
class EngineSpeed:
    """The speed of one engine: a decode step takes max(bytes / bandwidth, operations / peak) + fixed costs.

    The rates are those that are reached, not the peaks.
    """

    weight_bytes: float  # bytes of one GPU that every step reads
    expert_bytes: float  # bytes of all experts on one GPU
    expert_share: float  # share of the experts that one token uses
    token_bytes: float  # keys and values of one token on one GPU
    flops: float  # operations of one GPU for one token, without attention
    context_flops: float  # operations of one GPU for each attended token
    bandwidth: float
    matrix_flops: float
    step_s: float
    rollout_s: float

    def step_seconds(self, batch: float, context: float) -> float:
        """Return the seconds of an engine's decode step with `batch` rollouts that attend to `context` tokens each."""
        touched = 1.0 - (1.0 - self.expert_share) ** batch
        cache_bytes = batch * context * self.token_bytes
        moved = self.weight_bytes + touched * self.expert_bytes + cache_bytes
        operations = batch * (self.flops + context * self.context_flops)
        busy = max(moved / self.bandwidth, operations / self.matrix_flops)
        return busy + self.step_s + batch * self.rollout_s


def engine_speed(config: BroRLConfig, shape: ModelShape, hardware: Hardware) -> EngineSpeed:
    """Return the estimated decoding speed of a vLLM engine.

    It follows from the model's shape, the GPU's data sheet and the assumed shares of the peak rates that are reached.
    """
    tensor = config.generation.tensor_parallel_size
    number = NUMBER_BYTES[config.generation.precision]
    reached = hardware.efficiency
    parameters = rank_parameters(shape, ParallelLayout(tensor=tensor), 0)
    moe = shape.moe
    messages = 2 * shape.num_layers * reached.rank_message_s if tensor > 1 else 0.0
    return EngineSpeed(
        weight_bytes=number * parameters.dense,
        expert_bytes=number * parameters.experts,
        expert_share=moe.experts_per_token / moe.num_experts if moe else 1.0,
        token_bytes=cached_token_bytes(config, shape),
        flops=2.0 * active_parameters(shape) / tensor,
        context_flops=4.0 * shape.num_layers * shape.num_heads * shape.head_size / tensor,
        bandwidth=reached.decode_bandwidth * hardware.bandwidth,
        matrix_flops=reached.prefill * hardware.matrix_flops,
        step_s=reached.engine_step_s + messages,
        rollout_s=reached.lean_rollout_s if config.generation.lean_scheduler == "on" else reached.engine_rollout_s,
    )


@lru_cache(maxsize=512)
def decode_seconds(
    speed: EngineSpeed,
    num: int,
    slots: int,
    work: Workload,
) -> tuple[float, float]:
    """Return the seconds in which one engine decodes `num` rollouts.

    Also returns the share of these seconds after the last rollout has started. The rollouts have typical lengths and
    run in `slots` slots of the engine's batch. The next rollout takes a slot as soon as it is free.
    """
    scale = max(1.0, num / _MAX_ROLLOUTS)
    followed = max(1, round(num / scale))
    places = max(1, round(slots / scale))
    lengths = work.response_quantiles(followed)
    stride = _stride(followed)
    order = [lengths[index * stride % followed] for index in range(followed)]  # fixed shuffle
    ends = order[:places]  # ends of the running rollouts, in decode steps
    last_start = 0
    heapq.heapify(ends)
    for length in order[places:]:
        last_start = heapq.heappop(ends)
        heapq.heappush(ends, last_start + length)
    # Up to `last_start` all slots are taken. Afterwards rollouts end one by one.
    steady = last_start * speed.step_seconds(min(num, slots), work.attended_tokens)
    tail = 0.0
    now = last_start
    running = len(ends)
    for end in sorted(ends):
        context = work.attended_tokens
        if last_start == 0:  # all rollouts started together
            context = work.prompt_tokens + (now + end) / 2
        tail += (end - now) * speed.step_seconds(running * scale, context)
        now = end
        running -= 1
    return steady + tail, tail / (steady + tail)


def _stride(num: int) -> int:
    """Return a step width near the golden section of `num` that is coprime with `num`.

    If a sorted list is read in steps of this width, successive items are far apart in the list.
    """
    stride = max(1, round(0.618 * num))
    while math.gcd(stride, num) > 1:
        stride += 1
    return stride


@dataclass(frozen=True)
class GenerationTime:
    """The time of generation in a step."""

    prefill_s: float
    decode_s: float
    tail_share: float  # share of decode_s after the last rollout has started
    rollouts_per_engine: int
    batch: int  # rollouts sampled together
    decode_step_s: float  # decode step with a full batch


def generation_time(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    engine: EnginePlan,
    num: int,
) -> GenerationTime:
    """Return the estimated time in which `num` vLLM engines generate a step's rollouts.

    An engine without room for a single rollout takes infinitely long.
    """
    speed = engine_speed(config, shape, hardware)
    rollouts = max(1, math.ceil(work.sampled / num / hardware.efficiency.balance))
    batch = min(engine.concurrency, rollouts)
    if batch < 1:
        return GenerationTime(math.inf, math.inf, 0.0, rollouts, 0, math.inf)
    decode, tail = decode_seconds(speed, rollouts, batch, work)
    tokens = prompt_tokens_computed(config, work, num) / num
    flops = forward_flops(shape, work.prompt_tokens / 2) / config.generation.tensor_parallel_size
    prefill = tokens * flops / speed.matrix_flops
    return GenerationTime(prefill, decode, tail, rollouts, batch, speed.step_seconds(batch, work.attended_tokens))


def prompt_tokens_computed(config: BroRLConfig, work: Workload, num_engines: int) -> float:
    """Return the number of prompt tokens that all vLLM engines prefill in a step.

    A prompt is prefilled once on every engine that samples some of its rollouts. Each further rollout computes only the
    tokens that do not fill a cache block (`lab/brorl_lab/theory/batching.py`).
    """
    chunks = math.ceil(work.num_per_prompt / config.rollouts.chunk_size)
    engines = min(num_engines, chunks)
    rest = work.prompt_tokens - mean_cached_tokens(work.prompt_tokens, BLOCK_TOKENS)
    per_group = engines * work.prompt_tokens + (work.num_per_prompt - engines) * rest
    return work.sampled_groups * per_group


def mean_cached_tokens(prompt_tokens: float, block_size: int) -> float:
    """Return how many tokens of a prompt the prefix cache holds in whole blocks, without the prompt's last token.

    This is the mean over prompts from 0.65 to 1.35 times as long as `prompt_tokens`.
    """
    num_lengths = 15
    total = 0.0
    for index in range(num_lengths):
        length = prompt_tokens * (0.65 + 0.05 * index)
        if length > 1:
            total += (length - 1) // block_size * block_size
    return total / num_lengths


@dataclass(frozen=True)
class StageTime:
    """The time of one stage of a step."""

    name: str  # NAME in time/NAME_s of metrics.jsonl
    seconds: float
    note: str


@dataclass(frozen=True)
class StepTime:
    """The time of a step by its stages, and its numbers of tokens."""

    stages: tuple[StageTime, ...]
    tokens: float  # sampled tokens
    trained_tokens: float
    generation: GenerationTime | None = None  # None: a run on CPU

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)


@dataclass(frozen=True)
class _Pass:
    """One forward pass over the rollouts of a step, on one data-parallel replica."""

    forward_s: float  # all micro-batches, without pipeline bubbles
    bubble: float  # factor of pipeline bubbles
    note: str


def step_time(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    layout: ParallelLayout,
    engines: Engines,
    micro: MicroBatches,
    engine: EnginePlan,
) -> StepTime:
    """Return the estimated time of a typical training step, with its share of validations and checkpoints."""
    generation = generation_time(config, shape, hardware, work, engine, engines.num)
    sampling = generation.prefill_s + generation.decode_s
    sampling_note = (
        f"{generation.rollouts_per_engine:,} rollouts an engine, {generation.batch} at a time, a decode step "
        f"{1e3 * generation.decode_step_s:.1f} ms; prefill {generation.prefill_s:.1f} s, tail "
        f"{generation.tail_share:.0%}"
    )
    verifying = work.sampled * VERIFIER_S / config.rewards.num_workers
    whole = _forward(config, shape, hardware, work, layout, micro)
    forward = whole.forward_s * whole.bubble
    num = config.algorithm.num_mini_batches
    # Passes that score. The first mini-batch needs none, and the sampler's log-probs are known.
    scored = 0.0 if config.policy.old_log_probs == "sampler" else (num - 1) / num
    if config.algorithm.kl.coefficient > 0:
        scored += 1.0
    held = policy_bytes(config, shape, layout, 0)
    swap = 4 * held.reference / hardware.host_bandwidth
    passes = 3.0 + _recomputed_share(config, shape, work)
    exchange = _gradient_exchange_s(shape, hardware, layout) * num
    update_note = f"{passes:.3g} forward passes' work; exchange of gradients {exchange:.1f} s"
    state = held.weights + held.optimizer + held.reference
    sync = _sync(config, shape, hardware)
    stages = (
        StageTime("generate", sampling, sampling_note),
        StageTime("reward", max(0.0, verifying - sampling), f"{verifying:,.0f} s of verifying beside generation"),
        StageTime("log_prob", scored * forward + swap, f"{scored:.2f} forward passes, {whole.note}"),
        StageTime("update", passes * forward + exchange, update_note),
        _offload(config, hardware, held.weights, held.optimizer, engine),
        sync,
        _validate(config, shape, hardware, work, engines.num),
        _save(config, hardware, state, sync.seconds),
    )
    tokens = work.sampled * work.response_tokens
    return StepTime(stages, tokens, work.trained * work.response_tokens, generation)


def _forward(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    layout: ParallelLayout,
    micro: MicroBatches,
) -> _Pass:
    """Return the estimated time of one forward pass of the policy over the step's rollouts.

    All ranks run it at the same time. The last stage sets the pace of a pipeline, because it has the output layer on
    top of its layers. A micro-batch of few tokens leaves matrix units idle.
    """
    reached = hardware.efficiency
    tokens = micro.num * micro.tokens * config.algorithm.num_mini_batches
    per_rank = micro.tokens / layout.context
    head = 2.0 * shape.vocab_size * shape.hidden_size * micro.response_tokens / micro.tokens
    layers = forward_flops(shape, work.attended_tokens) - 2.0 * shape.vocab_size * shape.hidden_size
    flops = tokens * (layers / layout.pipeline + head) / (layout.tensor * layout.context)
    share = reached.train if shape.moe is None else reached.train_moe
    full_rate = share * hardware.matrix_flops
    compute = flops / (full_rate * per_rank / (per_rank + HALF_SPEED_TOKENS))
    if config.policy.fp8 is not None and hardware.fp8_flops:
        linear = _linear_share(shape, work)
        bf16_rate = reached.train * hardware.matrix_flops
        fp8_rate = reached.train_fp8 * hardware.fp8_flops
        compute *= linear * bf16_rate / fp8_rate + 1 - linear
    messages = _messages_s(config, shape, hardware, layout, tokens / layout.context)
    bubble = 1 + (layout.pipeline - 1) / (micro.num * layout.chunks)
    note = f"{micro.num} micro-batches of {micro.tokens:,.0f} tokens, bubble {bubble:.2f}"
    return _Pass((compute + messages) / reached.balance, bubble, note)


def _linear_share(shape: ModelShape, work: Workload) -> float:
    """Return the share of a forward pass's time in matrix products inside layers, which FP8 speeds up.

    Attention and the output layer are not among them.
    """
    head = shape.vocab_size * shape.hidden_size
    return 2.0 * (active_parameters(shape) - head) / forward_flops(shape, work.attended_tokens)


def _recomputed_share(config: BroRLConfig, shape: ModelShape, work: Workload) -> float:
    """Return the share of a forward pass that the backward pass repeats for activation recomputation.

    It is none, the products of MLPs, or all.
    """
    if config.policy.recompute is None:
        return 0.0
    if config.policy.recompute == "full":
        return 1.0
    outside = shape.num_layers * attention_size(shape) + shape.vocab_size * shape.hidden_size
    return 2.0 * (active_parameters(shape) - outside) / forward_flops(shape, work.attended_tokens)


def _messages_s(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    layout: ParallelLayout,
    tokens: float,
) -> float:
    """Return the estimated seconds of communication in a forward pass on one rank.

    Tensor parallelism moves a layer's hidden states four times (two all-reduces, or gather and scatter twice). Expert
    parallelism moves each token to its experts and back, pipelines move hidden states to the next stage, context
    parallelism moves keys and values.
    """
    number = NUMBER_BYTES[config.policy.precision]
    layers = shape.num_layers / layout.pipeline
    inside = hardware.efficiency.network * hardware.link_bandwidth
    across = hardware.efficiency.network * hardware.network_bandwidth
    hidden = tokens * shape.hidden_size * number
    seconds = 4 * layers * hidden * (layout.tensor - 1) / layout.tensor / inside
    if shape.moe is not None and layout.expert > 1:
        spread = layout.tensor if layout.sequence_parallel else 1
        link = inside if layout.expert <= hardware.per_node else across
        sent = hidden / spread * shape.moe.experts_per_token * (layout.expert - 1) / layout.expert
        seconds += 2 * layers * sent / link
    if layout.pipeline > 1:
        is_inside = layout.tensor * layout.context * layout.data * layout.pipeline <= hardware.per_node
        link = inside if is_inside else across
        seconds += layout.chunks * hidden / link
    if layout.context > 1:
        link = inside if layout.tensor * layout.context <= hardware.per_node else across
        groups = 2 * shape.num_key_value_heads * shape.head_size / layout.tensor * number
        seconds += layers * tokens * groups * (layout.context - 1) / link
    return seconds


def _gradient_exchange_s(shape: ModelShape, hardware: Hardware, layout: ParallelLayout) -> float:
    """Return the seconds in which data-parallel replicas exchange the gradients and weights of a mini-batch.

    fp32 gradients are scattered and bf16 weights gathered. How much of it the passes hide has not been measured, so all
    of it counts.
    """
    parameters = rank_parameters(shape, layout, 0)
    seconds = 0.0
    for size, replicas in ((parameters.dense, layout.replicas), (parameters.experts, layout.expert_replicas)):
        bandwidth = hardware.network_bandwidth
        if layout.tensor * replicas <= hardware.per_node:
            bandwidth = hardware.link_bandwidth
        sent = 6.0 * size * (replicas - 1) / replicas
        seconds += sent / (hardware.efficiency.network * bandwidth)
    return seconds


def _offload(
    config: BroRLConfig,
    hardware: Hardware,
    weights: float,
    optimizer: float,
    engine: EnginePlan,
) -> StageTime:
    """Return the time to offload the policy's and the engines' memory to the host and to load it back.

    It is the number of bytes over the host's bandwidth.
    """
    policy, sleep = config.policy, config.generation.sleep
    moved = 0.0
    if policy.offload != "none":
        moved += optimizer
    if policy.offload == "all":
        moved += weights
    if sleep == "offload":
        moved += engine.weights_gib * GIB
    seconds = 2 * moved / hardware.host_bandwidth
    return StageTime("offload", seconds, f"policy.offload={policy.offload}, generation.sleep={sleep}")


def _sync(config: BroRLConfig, shape: ModelShape, hardware: Hardware) -> StageTime:
    """Return the estimated time to load the new policy weights into every vLLM engine."""
    size = NUMBER_BYTES[config.policy.precision] * rank_parameters(shape, ParallelLayout(), 0).total
    rate = hardware.efficiency.sync_bytes_per_s
    return StageTime("sync", size / rate, f"{size / GIB:.1f} GiB at {rate / 1e9:g} GB/s into every engine")


def _validate(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    num_engines: int,
) -> StageTime:
    """Return one step's share of the time in which the engines sample the responses of a validation.

    The mean response is as large a share of the longest one as in training.
    """
    interval = config.trainer.val_interval
    if interval == 0:
        return StageTime("validate", 0.0, "only at start and end")
    limits = benchmark_limits(config.evaluation, config.data, config.rollouts, None)
    limit = limits.max_response_tokens
    asked = replace(
        work,
        num_per_prompt=limits.num_samples,
        prompts=config.evaluation.num_prompts,
        keep_rate=1.0,
        response_tokens=work.response_tokens * limit / work.response_limit,
        response_limit=limit,
    )
    engine = engine_plan(config, shape, hardware, asked)
    time = generation_time(config, shape, hardware, asked, engine, num_engines)
    seconds = time.prefill_s + time.decode_s
    responses = f"{asked.trained:,} responses of {asked.response_tokens:,.0f} tokens up to {limit:,}"
    return StageTime("validate", seconds / interval, f"{seconds:,.1f} s every {interval} steps: {responses}")


def _save(config: BroRLConfig, hardware: Hardware, state: float, sync_s: float) -> StageTime:
    """Return one step's share of the time of a checkpoint.

    It is the time of a copy to the host, and without async_save that of the writing, too. Engines that discarded their
    weights meanwhile get them again.
    """
    interval = config.trainer.save_interval
    if interval == 0:
        return StageTime("save", 0.0, "only at the end")
    waited = state / hardware.host_bandwidth
    if config.generation.sleep == "discard":
        waited += sync_s
    writing = state * hardware.per_node / hardware.efficiency.disk_bytes_per_s
    beside = " beside training"
    if not config.trainer.async_save:
        waited += writing
        beside = ""
    note = f"{waited:.1f} s every {interval} steps; {writing:.0f} s of writing{beside}"
    return StageTime("save", waited / interval, note)
