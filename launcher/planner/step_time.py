"""Time of a step on GPUs, stage by stage, from operations and bytes over assumed shares of the peaks;
README.md of this folder has each."""

from __future__ import annotations

from dataclasses import dataclass

from nemo_brorl.cluster.fit.memory import GIB
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.model_shape import ModelShape
from nemo_brorl.launcher.planner.generation_time import GenerationTime, generation_time
from nemo_brorl.launcher.planner.hardware import Hardware
from nemo_brorl.launcher.planner.memory_plan import EnginePlan
from nemo_brorl.launcher.planner.model_cost import (
    Cut,
    active_parameters,
    attention_size,
    forward_flops,
    rank_parameters,
)
from nemo_brorl.launcher.planner.policy_memory import NUMBER_BYTES, policy_bytes
from nemo_brorl.launcher.planner.workload import Engines, MicroBatches, Workload

HALF_SPEED_TOKENS = 512  # assumed: a micro-batch of so many tokens on a rank reaches half of what a large one does
VERIFIER_S = 0.01  # assumed, of one response and worker; runs beside generation


@dataclass(frozen=True)
class StageTime:
    """Time of one stage of a step."""

    name: str  # as in time/NAME_s of metrics.jsonl
    seconds: float
    note: str


@dataclass(frozen=True)
class StepTime:
    """A step by its stages, and what it makes."""

    stages: tuple[StageTime, ...]
    tokens: float  # sampled
    trained_tokens: float
    generation: GenerationTime | None = None  # None on CPU

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def of(self, name: str) -> float:
        """Seconds of a stage; 0 when there is none of this name."""
        return sum(stage.seconds for stage in self.stages if stage.name == name)


@dataclass(frozen=True)
class _Pass:
    """Forward passes over the rollouts of a step on one data-parallel replica."""

    forward_s: float  # of all micro-batches, pipeline bubbles apart
    bubble: float  # factor
    note: str


def step_time(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    cut: Cut,
    engines: Engines,
    micro: MicroBatches,
    engine: EnginePlan,
) -> StepTime:
    """Time of a typical step: checkpoints and validations in their share."""
    generation = generation_time(config, shape, hardware, work, engine, engines.num)
    sampling = generation.prefill_s + generation.decode_s
    sampling_note = (
        f"{generation.rollouts_per_engine:,} rollouts an engine, {generation.batch} at a time, a decode step "
        f"{1e3 * generation.decode_step_s:.1f} ms; prefill {generation.prefill_s:.1f} s, tail "
        f"{generation.tail_share:.0%}"
    )
    verifying = work.sampled * VERIFIER_S / config.rewards.num_workers
    whole = _forward(config, shape, hardware, work, cut, micro)
    forward = whole.forward_s * whole.bubble
    num = config.algorithm.num_mini_batches
    scored = (num - 1) / num  # passes that score: the first mini-batch needs none
    if config.algorithm.kl.coefficient > 0:
        scored += 1.0
    held = policy_bytes(config, shape, cut, 0)
    swap = 4 * held.reference / hardware.host_bandwidth
    passes = 3.0 + _recomputed_share(config, shape, work)
    exchange = _gradient_exchange_s(shape, hardware, cut) * num
    update_note = f"{passes:.3g} forward passes' work; exchange of gradients {exchange:.1f} s"
    state = held.weights + held.optimizer + held.reference
    stages = (
        StageTime("generate", sampling, sampling_note),
        StageTime("reward", max(0.0, verifying - sampling), f"{verifying:,.0f} s of verifying beside generation"),
        StageTime("log_prob", scored * forward + swap, f"{scored:.2f} forward passes, {whole.note}"),
        StageTime("update", passes * forward + exchange, update_note),
        _offload(config, hardware, held.weights, held.optimizer, engine),
        _sync(config, shape, hardware),
        _save(config, hardware, state),
    )
    tokens = work.sampled * work.response_tokens
    return StepTime(stages, tokens, work.trained * work.response_tokens, generation)


def _forward(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    cut: Cut,
    micro: MicroBatches,
) -> _Pass:
    """One forward pass over the step's rollouts, on every rank at the same time. A pipeline goes at the pace of its
    last stage, which has the output layer beside its layers; a micro-batch of few tokens leaves matrix units idle."""
    reached = hardware.efficiency
    tokens = micro.num * micro.tokens * config.algorithm.num_mini_batches
    per_rank = micro.tokens / cut.context
    head = 2.0 * shape.vocab_size * shape.hidden_size * micro.response_tokens / micro.tokens
    layers = forward_flops(shape, work.attended_tokens) - 2.0 * shape.vocab_size * shape.hidden_size
    flops = tokens * (layers / cut.pipeline + head) / (cut.tensor * cut.context)
    share = reached.train if shape.moe is None else reached.train_moe
    full_rate = share * hardware.matrix_flops
    compute = flops / (full_rate * per_rank / (per_rank + HALF_SPEED_TOKENS))
    if config.policy.fp8 is not None and hardware.fp8_flops:
        linear = _linear_share(shape, work)
        bf16_rate = reached.train * hardware.matrix_flops
        fp8_rate = reached.train_fp8 * hardware.fp8_flops
        compute *= linear * bf16_rate / fp8_rate + 1 - linear
    messages = _messages_s(config, shape, hardware, cut, tokens / cut.context)
    bubble = 1 + (cut.pipeline - 1) / (micro.num * cut.virtual)
    note = f"{micro.num} micro-batches of {micro.tokens:,.0f} tokens, bubble {bubble:.2f}"
    return _Pass((compute + messages) / reached.balance, bubble, note)


def _linear_share(shape: ModelShape, work: Workload) -> float:
    """Share of a forward pass in the products inside layers, which FP8 speeds up: not attention, nor the output
    layer."""
    head = shape.vocab_size * shape.hidden_size
    return 2.0 * (active_parameters(shape) - head) / forward_flops(shape, work.attended_tokens)


def _recomputed_share(config: BroRLConfig, shape: ModelShape, work: Workload) -> float:
    """Share of a forward pass that the backward pass repeats: all of it, or the products of MLPs."""
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
    cut: Cut,
    tokens: float,
) -> float:
    """Tensor parallelism moves a layer's hidden states four times (two all-reduces, or gather and scatter twice),
    expert parallelism each token to its experts and back, pipelines hidden states to the next stage, context
    parallelism keys and values; of a forward pass, on one rank."""
    number = NUMBER_BYTES[config.policy.precision]
    layers = shape.num_layers / cut.pipeline
    inside = hardware.efficiency.network * hardware.link_bandwidth
    across = hardware.efficiency.network * hardware.network_bandwidth
    hidden = tokens * shape.hidden_size * number
    seconds = 4 * layers * hidden * (cut.tensor - 1) / cut.tensor / inside
    if shape.moe is not None and cut.expert > 1:
        spread = cut.tensor if cut.has_sequence_parallel else 1
        link = inside if cut.expert <= hardware.per_node else across
        sent = hidden / spread * shape.moe.experts_per_token * (cut.expert - 1) / cut.expert
        seconds += 2 * layers * sent / link
    if cut.pipeline > 1:
        is_inside = cut.tensor * cut.context * cut.data * cut.pipeline <= hardware.per_node
        link = inside if is_inside else across
        seconds += cut.virtual * hidden / link
    if cut.context > 1:
        link = inside if cut.tensor * cut.context <= hardware.per_node else across
        groups = 2 * shape.num_key_value_heads * shape.head_size / cut.tensor * number
        seconds += layers * tokens * groups * (cut.context - 1) / link
    return seconds


def _gradient_exchange_s(shape: ModelShape, hardware: Hardware, cut: Cut) -> float:
    """Exchange of a mini-batch: fp32 gradients are scattered and bf16 weights gathered over the replicas. How much
    of it is hidden by the passes nobody has measured: it counts whole."""
    parameters = rank_parameters(shape, cut, 0)
    seconds = 0.0
    for size, replicas in ((parameters.dense, cut.replicas), (parameters.experts, cut.expert_replicas)):
        bandwidth = hardware.network_bandwidth
        if cut.tensor * replicas <= hardware.per_node:
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
    """Way of the policy's and the engines' bytes out and back in over the host's bandwidth."""
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
    """Way of the new weights into every engine."""
    size = NUMBER_BYTES[config.policy.precision] * rank_parameters(shape, Cut(), 0).total
    rate = hardware.efficiency.sync_bytes_per_s
    return StageTime("sync", size / rate, f"{size / GIB:.1f} GiB at {rate / 1e9:g} GB/s into every engine")


def _save(config: BroRLConfig, hardware: Hardware, state: float) -> StageTime:
    """The share of one step in a checkpoint: a copy to the host, and without async_save the writing too."""
    interval = config.trainer.save_interval
    if interval == 0:
        return StageTime("save", 0.0, "only at the end")
    waited = state / hardware.host_bandwidth
    writing = state * hardware.per_node / hardware.efficiency.disk_bytes_per_s
    beside = " beside training"
    if not config.trainer.async_save:
        waited += writing
        beside = ""
    note = f"{waited:.1f} s every {interval} steps; {writing:.0f} s of writing{beside}"
    return StageTime("save", waited / interval, note)
