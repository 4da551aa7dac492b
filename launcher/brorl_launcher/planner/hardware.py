"""Describe the hardware that a run is planned for: GPUs, nodes, and the assumed shares of the peaks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError


@dataclass(frozen=True)
class Efficiency:
    """Shares of the hardware's peaks, and fixed costs, that a step is assumed to reach.

    This project measured none of them on a GPU. README.md of this folder gives the source of each.
    """

    train: float = 0.40  # share of the matrix peak in forward and backward passes of packed sequences
    # share of the matrix peak for mixtures of experts: each expert has few tokens, and the fullest one sets the pace
    train_moe: float = 0.20
    train_fp8: float = 0.28  # share of the FP8 peak in layers that run in FP8
    decode_bandwidth: float = 0.70  # share of the memory bandwidth at which a decode step reads weights and cache
    prefill: float = 0.50  # share of the matrix peak
    network: float = 0.60  # share of the links' bandwidth in collectives
    balance: float = 0.95  # mean over largest load of data-parallel ranks and engines
    # Host time of a decode step (H100, 2026-11-26), and of each sequence in it (`python -m bench.engine_host_time` on a
    # CPU) with vLLM's own scheduler and with the lean one.
    engine_step_s: float = 1.3e-3
    engine_rollout_s: float = 30e-6
    lean_rollout_s: float = 7e-6
    rank_message_s: float = 20e-6  # one all-reduce between tensor-parallel ranks in a decode step
    sync_bytes_per_s: float = 4e9  # rate of a weight sync into an engine: gather, convert, load
    disk_bytes_per_s: float = 2e9  # rate at which a node writes a checkpoint


@dataclass(frozen=True)
class Hardware:
    """A homogeneous cluster. Memory in GiB is what a process can use of what the driver reports."""

    kind: str  # key of GPUS
    num_nodes: int
    per_node: int  # devices of a node
    memory_gib: float  # memory of one device
    host_memory_gib: float  # memory of one node
    matrix_flops: float  # dense bf16 FLOP/s of one device
    fp8_flops: float  # FLOP/s of one device; 0: no FP8
    bandwidth: float  # bytes/s of the device memory
    link_bandwidth: float  # bytes/s between devices of a node, one direction
    network_bandwidth: float  # bytes/s between nodes for one device, one direction
    host_bandwidth: float  # bytes/s between a device and its host, one direction
    efficiency: Efficiency = Efficiency()

    @property
    def num_devices(self) -> int:
        """Return the number of GPUs in the cluster, over all nodes."""
        return self.num_nodes * self.per_node


# Dense peaks and bandwidths of the SXM modules in NVIDIA's data sheets. Memory as nvidia-smi reports it. Nodes as in
# DGX systems: 400 Gb/s (H100, H200) or 200 Gb/s (A100) of InfiniBand for each GPU, PCIe 5 or 4 to the host, 2 TB of
# host memory (A100: 1 TB).
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
    """Return the hardware of a cluster with GPUs of a known kind, such as h100.

    Raises ConfigError for an unknown kind.
    """
    if kind not in GPUS:
        raise ConfigError(f"--kind {kind}: is not known; pass one of {', '.join(GPUS)}")
    known = GPUS[kind]
    if memory_gib is None:
        memory_gib = known.memory_gib
    if host_memory_gib is None:
        host_memory_gib = known.host_memory_gib * min(1.0, per_node / known.per_node)
    return replace(
        known, num_nodes=num_nodes, per_node=per_node, memory_gib=memory_gib, host_memory_gib=host_memory_gib
    )


def configured_hardware(config: BroRLConfig, kind: str = "h100", memory_gib: float | None = None) -> Hardware:
    """Return the hardware of the cluster that the settings describe, with GPUs of the given kind.

    The settings do not name a kind. Raises ConfigError for a CPU run or an unknown kind.
    """
    if config.trainer.num_gpus == 0:
        raise ConfigError("trainer.gpus_per_node=0 is a run on CPU: set trainer.num_nodes and gpus_per_node")
    return gpu_hardware(kind, config.trainer.num_nodes, config.trainer.gpus_per_node, memory_gib)
