"""Plan of a run on CPU: memory by the start-up check's own estimate (`config/memory.py`), seconds from what
`cpu_probe.py` measures here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from brorl_launcher.planner.cpu_probe import CpuSpeed
from brorl_launcher.planner.memory_plan import (
    NUMBER_BYTES,
    DeviceMemory,
    EnginePlan,
    NodeMemory,
    NodeTerm,
    checkpoint_gib,
    engine_term,
    term,
)
from brorl_launcher.planner.model_cost import Cut, rank_parameters
from brorl_launcher.planner.model_cost import key_value_bytes as token_bytes
from brorl_launcher.planner.step_time import (
    EngineSpeed,
    GenerationTime,
    StageTime,
    StepTime,
    decode_seconds,
    prompt_tokens_computed,
)
from brorl_launcher.planner.workload import Hardware, Lengths, MicroBatches, Workload
from nemo_brorl.config.derived import fullest_micro_batch, kv_cache_gib, max_num_seqs, num_engines, num_policy_ranks
from nemo_brorl.config.memory import CpuMemory, cpu_memory
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.machine import GIB, available_gib
from nemo_brorl.core.model_shape import ModelShape, hf_shapes, num_parameters


@dataclass(frozen=True)
class CpuShares:
    """How the parts of a run relate to what the probe measures. Dimensionless, so that they can be carried to another
    machine; fitted to one run of conf/brorl_cpu.yaml by bench/planner.py."""

    score: float = 1.2  # seconds of the policy's forward passes over those of the probe's layers
    train: float = 1.33  # the same forward and backward
    # of an engine's passes over prompts, and over one token of every rollout; its kernels are fused
    engine: float = 0.75
    rollout: float = 4300.0  # turns of the probe's Python loop: an engine takes in a rollout and hands it back
    token: float = 1900.0  # … samples one token of one rollout
    step: float = 80_000.0  # … makes a step, whatever its batch

    def scaled(
        self,
        score: float,
        train: float,
        engine: float,
    ) -> CpuShares:
        """With seconds of scoring, training and generation multiplied."""
        return replace(
            self,
            score=score * self.score,
            train=train * self.train,
            engine=engine * self.engine,
            rollout=engine * self.rollout,
            token=engine * self.token,
            step=engine * self.step,
        )


SHARES = CpuShares()
TENSOR_S = 1e-3  # of a publication, for each tensor
GLOO_SHARE = 0.25  # of the memory bandwidth that ranks exchange gradients with


def cpu_hardware(speed: CpuSpeed, memory_gib: float | None = None) -> Hardware:
    """This machine. Raises ResourceError where its free memory is not known and not given."""
    free = available_gib() if memory_gib is None else memory_gib
    if free is None:
        raise ResourceError("the free memory of this machine cannot be read: give it with --host-memory GIB")
    cores = len(os.sched_getaffinity(0))
    rate = speed.matrix_flops
    return Hardware(
        "cpu", 1, cores, free, free, rate, 0.0, speed.copy_bytes_per_s, math.inf, math.inf, math.inf, cpu=speed
    )


def cpu_devices(memory: CpuMemory, hardware: Hardware) -> tuple[DeviceMemory, ...]:
    """A policy rank and an engine as if each had a device, which is the machine."""
    rank, engine = [], []
    for name, gib in memory.rank.items():
        rank.append(term(name, "", update=gib))
    for name, gib in memory.engine.items():
        engine.append(engine_term(name, "", generate=gib))
    return (
        DeviceMemory("policy rank", tuple(rank), hardware.memory_gib),
        DeviceMemory("engine", tuple(engine), hardware.memory_gib),
    )


def cpu_engine(
    config: BroRLConfig,
    shape: ModelShape,
    memory: CpuMemory,
    work: Workload,
) -> EnginePlan:
    """One engine: its cache has a size of its own."""
    token = token_bytes(shape, NUMBER_BYTES[config.generation.precision])
    cache = kv_cache_gib(config)
    live = work.response_tokens * (1 + work.response_spread**2) / 2 + work.prompt_tokens / config.rollouts.chunk_size
    concurrency = min(max_num_seqs(config), int(cache * GIB / token / max(1.0, live)))
    return EnginePlan(
        memory.engine["weights"], memory.engine["batch"], cache, memory.engine["process"], cache, token, concurrency
    )


def cpu_node(
    config: BroRLConfig,
    shape: ModelShape,
    memory: CpuMemory,
    hardware: Hardware,
) -> NodeMemory:
    """The whole machine."""
    rank = sum(memory.rank.values())
    engine = sum(memory.engine.values())
    terms = [
        NodeTerm("policy ranks", memory.num_ranks * rank, f"{memory.num_ranks} of {rank:.2f}"),
        NodeTerm("engines", memory.num_engines * engine, f"{memory.num_engines} of {engine:.2f}"),
    ]
    for name, gib in memory.others.items():
        terms.append(NodeTerm(name, gib, ""))
    checkpoint, disk = checkpoint_gib(config, shape)
    return NodeMemory(tuple(terms), hardware.memory_gib, memory.others["object store"], checkpoint, disk)


def cpu_memory_of(
    config: BroRLConfig,
    shape: ModelShape,
    micro: MicroBatches,
    lengths: Lengths,
) -> CpuMemory:
    """Memory as the start-up check counts it; where the lengths of responses are known, with micro-batches as full as
    they fill them."""
    tokens: float = fullest_micro_batch(config)
    if lengths.response is not None:
        tokens = min(micro.tokens, micro.budget) / config.policy.context_parallel_size
    return cpu_memory(config, shape, tokens)


def cpu_step_time(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    work: Workload,
    cut: Cut,
    micro: MicroBatches,
    engine: EnginePlan,
    shares: CpuShares = SHARES,
) -> StepTime:
    """Seconds of a step whose processes have the cores to themselves; more processes than cores take turns."""
    speed = hardware.cpu
    assert speed is not None, "hardware of kind cpu has a measured speed"
    turns = [max(1.0, number / hardware.per_node) for number in (num_policy_ranks(config), num_engines(config))]
    generation = _generation_time(config, shape, work, engine, speed, shares)
    scoring, training, rest = _learning_s(config, shape, work, cut, micro, speed, shares)
    size = NUMBER_BYTES[config.policy.precision] * num_parameters(shape)
    sync = TENSOR_S * len(hf_shapes(shape)) + 12 * size / speed.copy_bytes_per_s
    saved = (2 * NUMBER_BYTES[config.policy.precision] + 12) * num_parameters(shape)
    interval = config.trainer.save_interval
    handled = f"{generation.rollouts_per_engine:,} rollouts an engine, {generation.batch} at a time"
    sampling = generation.prefill_s + generation.decode_s
    saving = 2 * saved / speed.copy_bytes_per_s / interval if interval else 0.0
    stages = (
        StageTime("generate", turns[1] * sampling, f"{handled}; prefill {generation.prefill_s:.1f} s"),
        StageTime("log_prob", turns[0] * scoring, f"{micro.num} micro-batches of {micro.tokens:,.0f} tokens"),
        StageTime("update", turns[0] * training, f"{rest:.2f} s of it the optimizer and the exchange of gradients"),
        StageTime("sync", sync, f"{len(hf_shapes(shape))} tensors"),
        StageTime("save", saving, f"a copy every {interval} steps"),
    )
    tokens = work.sampled * work.response_tokens
    return StepTime(stages, tokens, work.trained * work.response_tokens, generation)


def _learning_s(
    config: BroRLConfig,
    shape: ModelShape,
    work: Workload,
    cut: Cut,
    micro: MicroBatches,
    speed: CpuSpeed,
    shares: CpuShares,
) -> tuple[float, float, float]:
    """(scoring, training, of training what does not depend on tokens) of one rank."""
    num = config.algorithm.num_mini_batches
    ranks = cut.tensor * cut.pipeline * cut.context
    layer_tokens = shape.num_layers * num * micro.num * micro.tokens / ranks
    answers = num * micro.num * micro.response_tokens / ranks
    forward = shares.score * (layer_tokens * speed.forward_s + answers * speed.head_forward_s)
    train = shares.train * (layer_tokens * speed.train_s + answers * speed.head_train_s)
    if config.policy.recompute == "full":
        train += forward
    parameters = rank_parameters(shape, cut, 0).total
    scoring = (num - 1) / num * forward
    if (
        config.algorithm.kl.coefficient > 0
    ):  # the reference scores, too: two exchanges of three copies, read and written
        scoring += forward + 48.0 * parameters / speed.copy_bytes_per_s
    exchanged = 8.0 * parameters * (cut.replicas - 1) / cut.replicas
    exchange = exchanged / (GLOO_SHARE * speed.copy_bytes_per_s)
    # Gradients are cleared and read, Adam's state is read and written.
    step = (4.0 + 32.0 / cut.replicas) * parameters / speed.copy_bytes_per_s
    rest = num * (step + exchange)
    return scoring, train + rest, rest


def _generation_time(
    config: BroRLConfig,
    shape: ModelShape,
    work: Workload,
    engine: EnginePlan,
    speed: CpuSpeed,
    shares: CpuShares,
) -> GenerationTime:
    """Time of one engine on a core of its own."""
    num = num_engines(config)
    rollouts = max(1, math.ceil(work.sampled / num))
    batch = min(engine.concurrency, rollouts)
    if batch < 1:
        return GenerationTime(math.inf, math.inf, 0.0, rollouts, 0, math.inf)
    token = shares.engine * (shape.num_layers * speed.forward_s + speed.head_forward_s)
    decoding = EngineSpeed(
        weight_bytes=0.0,
        expert_bytes=0.0,
        expert_share=1.0,
        token_bytes=0.0,
        flops=token,
        context_flops=0.0,
        bandwidth=math.inf,
        matrix_flops=1.0,
        step_s=shares.step * speed.python_s,
        rollout_s=shares.token * speed.python_s,
    )
    decode, tail = decode_seconds(decoding, rollouts, batch, work)
    handling = rollouts * shares.rollout * speed.python_s
    prompts = prompt_tokens_computed(config, work, num) / num
    prefill = shares.engine * prompts * shape.num_layers * speed.forward_s + handling
    return GenerationTime(prefill, decode, tail, rollouts, batch, decoding.step(batch, work.attended_tokens))
