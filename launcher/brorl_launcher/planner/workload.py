"""Workload of a step: rollouts and their lengths, micro-batches, and how the config cuts the model. All from config
and assumptions.

The hardware that it is planned for: devices with their memory, peaks and bandwidths, nodes, and the shares of the peaks
that are assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from brorl_launcher.planner.model_cost import Cut
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peaks, and fixed costs, that a step is assumed to reach. None of them was measured on a GPU by this
    project; README.md of this folder says where each is from."""

    train: float = 0.40  # of the matrix peak, forward and backward of packed rows
    # of the matrix peak, for mixtures: experts have few tokens each, and the fullest one is waited for
    train_moe: float = 0.20
    train_fp8: float = 0.28  # of the FP8 peak, for the layers that are in FP8
    decode_bandwidth: float = 0.70  # of the memory bandwidth, weights and cache read by a decode step
    prefill: float = 0.50  # of the matrix peak
    network: float = 0.60  # of the links' bandwidth, collectives
    balance: float = 0.95  # mean over largest load of data-parallel ranks and engines
    engine_step_s: float = 3e-3  # scheduler, sampling and launches of a decode step
    engine_rollout_s: float = 10e-6  # more for each rollout of its batch
    rank_message_s: float = 20e-6  # one all-reduce between tensor-parallel ranks of a decode step
    sync_bytes_per_s: float = 4e9  # weights into an engine: gathered, converted, loaded
    disk_bytes_per_s: float = 2e9  # a node writes a checkpoint


@dataclass(frozen=True)
class Hardware:
    """A homogeneous cluster. Sizes in GiB are what a process can use of what the driver reports."""

    kind: str  # one of GPUS
    num_nodes: int
    per_node: int  # devices of a node
    memory_gib: float  # of one device
    host_memory_gib: float  # of one node
    matrix_flops: float  # dense bf16, FLOP/s of one device
    fp8_flops: float  # 0: no FP8
    bandwidth: float  # of device memory, bytes/s
    link_bandwidth: float  # between devices of a node, bytes/s in one direction
    network_bandwidth: float  # between nodes, bytes/s of one device in one direction
    host_bandwidth: float  # between a device and its host, bytes/s in one direction
    efficiency: Efficiency = Efficiency()

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.num_nodes * self.per_node


# Dense peaks and bandwidths of the SXM modules in NVIDIA's data sheets; memory as nvidia-smi reports it; nodes as DGX
# systems have them: 400 Gb/s (H100, H200) or 200 Gb/s (A100) of InfiniBand for each GPU, PCIe 5 or 4 to the host, 2 TB
# of host memory (A100: 1 TB).
_H100 = Hardware("h100", 1, 8, 79.6, 2000, 989.4e12, 1978.9e12, 3.35e12, 450e9, 50e9, 50e9)
GPUS = {
    "h100": _H100,
    "h200": replace(_H100, kind="h200", memory_gib=140.4, bandwidth=4.8e12),
    "a100": Hardware("a100", 1, 8, 80.0, 1000, 312e12, 0.0, 2.04e12, 300e9, 25e9, 25e9),
}


def gpu_hardware(
    kind: str,
    num_nodes: int,
    per_node: int,
    memory_gib: float | None = None,
    host_memory_gib: float | None = None,
) -> Hardware:
    """A cluster of a known kind of GPU. Raises ConfigError for an unknown one."""
    if kind not in GPUS:
        raise ConfigError(f"--kind {kind}: is not known; write one of {', '.join(GPUS)}")
    known = GPUS[kind]
    if memory_gib is None:
        memory_gib = known.memory_gib
    if host_memory_gib is None:
        host_memory_gib = known.host_memory_gib * min(1.0, per_node / known.per_node)
    return replace(
        known, num_nodes=num_nodes, per_node=per_node, memory_gib=memory_gib, host_memory_gib=host_memory_gib
    )


def configured_hardware(config: BroRLConfig, kind: str = "h100", memory_gib: float | None = None) -> Hardware:
    """The GPUs that the config asks for, of a kind that it does not say. Raises ConfigError on a CPU config, or for an
    unknown kind."""
    if config.trainer.num_gpus == 0:
        raise ConfigError("trainer.gpus_per_node=0 is a run on CPU: set trainer.num_nodes and gpus_per_node")
    return gpu_hardware(kind, config.trainer.num_nodes, config.trainer.gpus_per_node, memory_gib)


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts and responses, as far as they are known before a run; None: assumed, see `lengths_of`."""

    prompt: float | None = None  # mean
    response: float | None = None  # mean
    spread: float = 0.7  # standard deviation of a response over the mean, of a log-normal cut at the limit
    keep_rate: float | None = None  # share of groups that are informative


ASSUMED = Lengths()


@dataclass(frozen=True)
class Workload:
    """Workload of one step."""

    num_per_prompt: int  # N
    prompts: int  # groups that are learnt from
    keep_rate: float
    prompt_tokens: float  # mean
    response_tokens: float  # mean
    response_limit: int
    response_spread: float

    @property
    def trained(self) -> int:
        """Rollouts that are learnt from."""
        return self.num_per_prompt * self.prompts

    @property
    def sampled_groups(self) -> float:
        """Groups sampled for a full batch; surplus is carried over, so none is wasted in the mean."""
        return self.prompts / self.keep_rate

    @property
    def sampled(self) -> float:
        """Rollouts sampled."""
        return self.num_per_prompt * self.sampled_groups

    @property
    def attended_tokens(self) -> float:
        """Tokens that a response token attends to, in the mean: the prompt, and E[R²] / 2 E[R] of its own response."""
        return self.prompt_tokens + self.response_tokens * (1 + self.response_spread**2) / 2

    def response_quantiles(self, num: int) -> list[int]:
        """Lengths of `num` typical responses, shortest first: the distribution's quantiles, cut at the limit, scaled to
        its mean."""
        if self.response_spread == 0:
            return [max(1, round(self.response_tokens))] * num
        sigma = math.sqrt(math.log(1 + self.response_spread**2))
        normal = NormalDist(0.0, sigma)
        shape = [math.exp(normal.inv_cdf((index + 0.5) / num)) for index in range(num)]
        mean = min(self.response_tokens, 0.98 * self.response_limit)
        scale = _scale_to_mean(shape, mean, self.response_limit)
        lengths = []
        for value in shape:
            lengths.append(max(1, min(self.response_limit, round(scale * value))))
        return lengths


def _scale_to_mean(shape: list[float], mean: float, limit: float) -> float:
    """The factor under which values, cut at the limit, have this mean."""
    low, high = 0.0, 1e6 * mean
    for _ in range(100):
        middle = (low + high) / 2
        if sum(min(limit, middle * value) for value in shape) < mean * len(shape):
            low = middle
        else:
            high = middle
    return high


def workload_of(config: BroRLConfig, lengths: Lengths) -> Workload:
    """Workload of the stage with the most rollouts. What `lengths` leaves open is assumed: prompts an eighth of the
    longest, responses 0.45 of it, and the paper's keep rates (0.41 at N = 16, 0.62 at N = 512, arXiv 2510.01180) with a
    straight line over log N."""
    num, prompts = max(config.rollouts.stage_sizes(), key=lambda size: (size[0] * size[1], size[0]))
    limit = config.rollouts.max_response_tokens
    rate = 1.0
    if config.dynamic_sampling.enabled:
        between = (math.log2(num) - 4) / 5
        rate = min(0.9, max(0.2, 0.41 + 0.21 * between))
        if lengths.keep_rate is not None:
            rate = lengths.keep_rate
    if config.dynamic_sampling.fill != "full":
        prompts = max(1, round(rate * prompts))
    prompt_tokens = max(1.0, config.data.max_prompt_tokens / 8)
    if lengths.prompt is not None:
        prompt_tokens = lengths.prompt
    response_tokens = max(1.0, 0.45 * limit)
    if lengths.response is not None:
        response_tokens = lengths.response
    return Workload(
        num_per_prompt=num,
        prompts=prompts,
        keep_rate=rate,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        response_limit=limit,
        response_spread=lengths.spread,
    )


@dataclass(frozen=True)
class Engines:
    """How generation is laid out."""

    num: int
    tensor: int
    is_colocated: bool


def cut_of(config: BroRLConfig) -> Cut:
    """How the config cuts the policy."""
    policy = config.policy
    return Cut(
        tensor=policy.tensor_model_parallel_size,
        pipeline=policy.pipeline_model_parallel_size,
        virtual=policy.virtual_pipeline_model_parallel_size or 1,
        context=policy.context_parallel_size,
        expert=policy.expert_model_parallel_size,
        data=RunSizes.of(config).data_parallel,
        has_sequence_parallel=policy.sequence_parallel,
    )


def engines_of(config: BroRLConfig) -> Engines:
    """Engines as the config lays them out."""
    is_colocated = config.trainer.num_gpus > 0 and config.generation.placement == "colocated"
    return Engines(RunSizes.of(config).num_engines, config.generation.tensor_parallel_size, is_colocated)


@dataclass(frozen=True)
class MicroBatches:
    """What one data-parallel rank works through for a mini-batch."""

    num: int
    tokens: float  # of each, over its context-parallel ranks, copies of prompts included
    response_tokens: float  # of each
    budget: int  # that none exceeds


def micro_batches(config: BroRLConfig, work: Workload, cut: Cut) -> MicroBatches:
    """Micro-batches as `packing.py` cuts them: as few micro-batches as hold the responses, with a copy of a prompt for
    each that has some of its group."""
    budget = RunSizes.of(config).micro_batch_tokens * cut.context
    rollouts = work.trained / config.algorithm.num_mini_batches / cut.data
    if config.algorithm.train_rollouts is not None:
        rollouts *= min(1.0, config.algorithm.train_rollouts / work.num_per_prompt)
    responses = rollouts * work.response_tokens
    num = max(1, math.ceil(responses / budget))
    while num < rollouts and _tokens(config, work, rollouts / num) > budget:
        num += max(1, num // 50)
    return MicroBatches(num, _tokens(config, work, rollouts / num), responses / num, budget)


def _tokens(config: BroRLConfig, work: Workload, rollouts: float) -> float:
    """Tokens of a row of so many rollouts in order of their groups. Every mini-batch has an equal share of every
    group."""
    if not config.policy.shared_prompt:
        return rollouts * (work.prompt_tokens + work.response_tokens)
    per_group = max(1.0, work.num_per_prompt / config.algorithm.num_mini_batches)
    copies = min(rollouts, 1.0)
    if rollouts > 1:
        copies = min(rollouts, 1 + (rollouts - 1) / per_group)
    return rollouts * work.response_tokens + copies * work.prompt_tokens
