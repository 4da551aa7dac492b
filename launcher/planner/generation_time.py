"""Time that one engine samples: steps of a batch that fills and drains, each as long as its bytes or its operations
take."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import lru_cache

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.launcher.planner.hardware import Hardware
from nemo_brorl.launcher.planner.memory_plan import EnginePlan
from nemo_brorl.launcher.planner.model_cost import Cut as EngineCut
from nemo_brorl.launcher.planner.model_cost import active_parameters, forward_flops, key_value_bytes, rank_parameters
from nemo_brorl.launcher.planner.policy_memory import NUMBER_BYTES
from nemo_brorl.launcher.planner.workload import Workload

_MAX_ROLLOUTS = 4096  # of one engine that are followed one by one; more are scaled down with their slots


@dataclass(frozen=True)
class EngineSpeed:
    """A decode step of one engine takes max(bytes / bandwidth, operations / peak) + fixed costs. Rates are what is
    reached."""

    weight_bytes: float  # of one GPU that a step reads, whatever its batch
    expert_bytes: float  # the same of experts, were all of them used
    expert_share: float  # of the experts that one token uses
    token_bytes: float  # of one GPU: keys and values of one token
    flops: float  # of one GPU, for one token, without attention
    context_flops: float  # of one GPU, for one token that attends to one more
    bandwidth: float
    matrix_flops: float
    step_s: float
    rollout_s: float

    def step(self, batch: float, context: float) -> float:
        """Seconds of a step with `batch` rollouts that attend to `context` tokens each."""
        touched = 1.0 - (1.0 - self.expert_share) ** batch
        cache_bytes = batch * context * self.token_bytes
        moved = self.weight_bytes + touched * self.expert_bytes + cache_bytes
        operations = batch * (self.flops + context * self.context_flops)
        busy = max(moved / self.bandwidth, operations / self.matrix_flops)
        return busy + self.step_s + batch * self.rollout_s


def engine_speed(config: BroRLConfig, shape: ModelShape, hardware: Hardware) -> EngineSpeed:
    """Speed of an engine from the shape, the data sheet and the assumed shares of the peaks."""
    tensor = config.generation.tensor_parallel_size
    number = NUMBER_BYTES[config.generation.precision]
    reached = hardware.efficiency
    parameters = rank_parameters(shape, EngineCut(tensor=tensor), 0)
    moe = shape.moe
    messages = 2 * shape.num_layers * reached.rank_message_s if tensor > 1 else 0.0
    return EngineSpeed(
        weight_bytes=number * parameters.dense,
        expert_bytes=number * parameters.experts,
        expert_share=moe.experts_per_token / moe.num_experts if moe else 1.0,
        token_bytes=key_value_bytes(shape, number) / min(tensor, shape.num_key_value_heads),
        flops=2.0 * active_parameters(shape) / tensor,
        context_flops=4.0 * shape.num_layers * shape.num_heads * shape.head_size / tensor,
        bandwidth=reached.decode_bandwidth * hardware.bandwidth,
        matrix_flops=reached.prefill * hardware.matrix_flops,
        step_s=reached.engine_step_s + messages,
        rollout_s=reached.engine_rollout_s,
    )


@lru_cache(maxsize=512)
def decode_seconds(
    speed: EngineSpeed,
    num: int,
    slots: int,
    work: Workload,
) -> tuple[float, float]:
    """(seconds, share of them after the last rollout has begun) for `num` rollouts of typical lengths over `slots`
    places, each place taken by the next rollout as soon as it is free."""
    scale = max(1.0, num / _MAX_ROLLOUTS)
    followed = max(1, round(num / scale))
    places = max(1, round(slots / scale))
    lengths = work.response_quantiles(followed)
    stride = _stride(followed)
    order = [lengths[index * stride % followed] for index in range(followed)]  # a fixed shuffle
    ends = order[:places]  # of the rollouts that run, in decode steps
    last_start = 0
    heapq.heapify(ends)
    for length in order[places:]:
        last_start = heapq.heappop(ends)
        heapq.heappush(ends, last_start + length)
    # Up to `last_start` all places are taken; afterwards rollouts end one by one.
    steady = last_start * speed.step(min(num, slots), work.attended_tokens)
    tail = 0.0
    now = last_start
    running = len(ends)
    for end in sorted(ends):
        context = work.attended_tokens
        if last_start == 0:  # all began together, not in turns
            context = work.prompt_tokens + (now + end) / 2
        tail += (end - now) * speed.step(running * scale, context)
        now = end
        running -= 1
    return steady + tail, tail / (steady + tail)


def _stride(num: int) -> int:
    """Step width that is coprime with `num`, near its golden section: neighbours in the order are far apart in the
    sorted list."""
    stride = max(1, round(0.618 * num))
    while math.gcd(stride, num) > 1:
        stride += 1
    return stride


@dataclass(frozen=True)
class GenerationTime:
    """Time of generation in a step."""

    prefill_s: float
    decode_s: float
    tail_share: float  # of decode_s, after the last rollout has begun
    rollouts_per_engine: int
    batch: int  # rollouts sampled together
    decode_step_s: float  # with a full batch


def generation_time(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    engine: EnginePlan,
    num: int,
) -> GenerationTime:
    """Time of `num` engines. One without room for a single rollout takes infinitely long."""
    speed = engine_speed(config, shape, hardware)
    rollouts = max(1, math.ceil(work.sampled / num / hardware.efficiency.balance))
    batch = min(engine.concurrency, rollouts)
    if batch < 1:
        return GenerationTime(math.inf, math.inf, 0.0, rollouts, 0, math.inf)
    decode, tail = decode_seconds(speed, rollouts, batch, work)
    tokens = prompt_tokens_computed(config, work, num) / num
    flops = forward_flops(shape, work.prompt_tokens / 2) / config.generation.tensor_parallel_size
    prefill = tokens * flops / speed.matrix_flops
    return GenerationTime(prefill, decode, tail, rollouts, batch, speed.step(batch, work.attended_tokens))


def prompt_tokens_computed(config: BroRLConfig, work: Workload, num_engines: int) -> float:
    """Prompt tokens that all engines compute together: a prompt once on every engine that has a chunk of its group, and
    for each other rollout what does not fill a cache block (`algorithm/theory/rollout_size.py`)."""
    chunks = math.ceil(work.num_per_prompt / config.rollouts.chunk_size)
    engines = min(num_engines, chunks)
    rest = work.prompt_tokens - mean_cached_tokens(work.prompt_tokens, config.generation.block_size)
    per_group = engines * work.prompt_tokens + (work.num_per_prompt - engines) * rest
    return work.sampled_groups * per_group


def mean_cached_tokens(prompt_tokens: float, block_size: int) -> float:
    """Tokens of a prompt in whole cache blocks, its last token never, in the mean over prompts from 0.65 to 1.35 times
    as long."""
    num_lengths = 15
    total = 0.0
    for index in range(num_lengths):
        length = prompt_tokens * (0.65 + 0.05 * index)
        if length > 1:
            total += (length - 1) // block_size * block_size
    return total / num_lengths
