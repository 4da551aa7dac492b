"""Plan the memory of a node outside its GPUs, term by term: host memory, object store, checkpoints on disk."""

from __future__ import annotations

from dataclasses import dataclass

from brorl_launcher.planner.hardware import Hardware
from brorl_launcher.planner.workload import Engines, Workload
from nemo_brorl.config.parallel_layout import ParallelLayout
from nemo_brorl.config.rank_memory import NUMBER_BYTES, PolicyBytes
from nemo_brorl.config.rank_parameters import rank_parameters
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.machine import GIB
from nemo_brorl.core.model_shape import ModelShape

# Assumed GiB of host memory of a process with its imports and a CUDA context.
RANK_GIB = 4.0

ENGINE_GIB = 4.0

VERIFIER_GIB = 0.5

DRIVER_GIB = 4.0

# torch rounds a pinned allocation up to a power of two: between 1 and 2 times as much, 1.5 on average
PINNED_ROUNDING = 1.5

ROLLOUT_TOKEN_BYTES = 8  # int32 token ids and float32 log-probs

OPTIMIZER_BYTES = 12  # bytes of a parameter in a checkpoint: master weights and two moments in fp32


@dataclass(frozen=True)
class NodeTerm:
    """One use of a node's memory, or of the shared disk."""

    name: str
    gib: float
    note: str


@dataclass(frozen=True)
class NodeMemory:
    """The memory of the first node, which runs the driver and stores the published weights."""

    terms: tuple[NodeTerm, ...]
    capacity_gib: float
    object_store_gib: float  # part of it in Ray's object store
    checkpoint_gib: float  # one checkpoint on disk
    disk_gib: float  # all kept checkpoints, one more while it is written, and the best weights

    @property
    def peak(self) -> float:
        return sum(term.gib for term in self.terms)

    @property
    def fits(self) -> bool:
        return self.peak <= self.capacity_gib

    @property
    def largest(self) -> NodeTerm:
        return max(self.terms, key=lambda term: term.gib)


def node_memory(
    config: BroRLConfig,
    shape: ModelShape,
    hardware: Hardware,
    held: PolicyBytes,
    layout: ParallelLayout,
    engines: Engines,
    work: Workload,
) -> NodeMemory:
    """Return the estimated host memory of a node whose GPUs are filled with policy ranks, engines, or both."""
    policy, generation = config.policy, config.generation
    ranks = hardware.per_node
    num_engines = max(1, min(engines.num, hardware.per_node // engines.tensor))
    published = NUMBER_BYTES[policy.precision] * rank_parameters(shape, ParallelLayout(), 0).total / GIB
    moved = {"none": 0.0, "optimizer": held.optimizer, "all": held.optimizer + held.weights}[policy.offload]
    saved = held.weights + held.optimizer + held.reference
    sleeping = 0
    if generation.sleep == "offload":
        per_gpu = rank_parameters(shape, ParallelLayout(tensor=engines.tensor), 0).total
        sleeping = NUMBER_BYTES[generation.precision] * per_gpu
    store = _object_store_gib(config, shape, work, published)
    processes = DRIVER_GIB + ranks * RANK_GIB + num_engines * engines.tensor * ENGINE_GIB
    pinned = PINNED_ROUNDING * ranks / GIB  # GiB of a node for each byte of a rank
    terms = (
        NodeTerm("processes", processes, f"driver, {ranks} ranks, engines"),
        NodeTerm("reference", pinned * held.reference, "pinned"),
        NodeTerm("offloaded policy", pinned * moved, f"policy.offload={policy.offload}, pinned"),
        NodeTerm("checkpoint in flight", pinned * saved, "weights, optimizer and reference, pinned"),
        NodeTerm("sleeping engines", ranks * sleeping / GIB, f"generation.sleep={generation.sleep}"),
        NodeTerm("verifiers", config.rewards.num_workers * VERIFIER_GIB, f"{config.rewards.num_workers} workers"),
        NodeTerm("object store", store, "rollouts of a step, weights on their way"),
    )
    return NodeMemory(terms, hardware.host_memory_gib, store, *checkpoint_gib(config, shape))


def checkpoint_gib(config: BroRLConfig, shape: ModelShape) -> tuple[float, float]:
    """Return the size on disk of one checkpoint, and of everything that a run keeps, in GiB.

    A run keeps `trainer.keep_checkpoints` checkpoints, one more while it is written, and the best weights.
    """
    number = NUMBER_BYTES[config.policy.precision]
    weights = number * rank_parameters(shape, ParallelLayout(), 0).total / GIB
    one = weights * (number + OPTIMIZER_BYTES) / number
    one += weights * len(config.algorithm.kl.references)
    return one, (config.trainer.keep_checkpoints + 1) * one + weights


def _object_store_gib(config: BroRLConfig, shape: ModelShape, work: Workload, published: float) -> float:
    """Return the estimated size of Ray's object store in GiB.

    It holds the rollouts of a step and as many surplus ones, with the chosen experts if they are replayed, and weights
    on their way: buckets, or with the transport object_store the published weights and the next ones.
    """
    surplus = 2.0 if config.dynamic_sampling.max_staleness > 0 or config.rollouts.overlap else 1.0
    token_bytes = ROLLOUT_TOKEN_BYTES
    if config.policy.moe.router_replay and shape.moe is not None:
        # a byte for each layer and chosen expert
        token_bytes += shape.num_layers * shape.moe.experts_per_token
    rollouts = surplus * work.sampled * work.response_tokens * token_bytes / GIB
    weights = min(published, 3 * config.generation.weight_bucket_mib / 1024)
    if RunSizes.from_config(config).weight_transport == "object_store":
        weights = 2 * published
    return rollouts + weights
