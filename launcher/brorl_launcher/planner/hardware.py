"""The hardware that a run is planned for: GPUs with their memory, peaks and bandwidths, nodes, and the shares of the
peaks that are assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
