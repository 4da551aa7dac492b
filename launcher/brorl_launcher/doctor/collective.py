"""Try an all-reduce between the GPUs of a node (or two CPU processes), and over all nodes of a job.

As a program (`probe.py`) this module is one rank. Each rank first announces itself in a store on rank 0, so that a late
one is known by its number.

When an all-reduce over all nodes fails, neighbours try it in pairs to find the node at fault. The nodes form a ring, so
each one is in two pairs. Pairs that share no node try at the same time: two rounds (three, for an odd number of nodes)
cover all. A node that fails with both neighbours is at fault. If all nodes do, it is the network.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from brorl_launcher.doctor.probe import Probe, ProbeResult, answer_probe
from brorl_launcher.doctor.rendezvous import NodeRank, Rendezvous, wait_for_ranks
from brorl_launcher.doctor.report import FAIL, OK, WARN, Check, join_names

LOCAL = "all-reduce, node"
GLOBAL = "all-reduce, job"
START_S = 300.0  # longest start of a process with torch, while all nodes read from one file server
KILL_S = 10.0  # seconds after its own deadline until a rank is killed
SLOW_GIB_PER_S = 10.0  # bandwidth of a GPU between nodes, below which NCCL most likely speaks TCP
NO_GPU = "torch sees no GPU"
CPU_MIB = 4
GPU_MIB = 256
NUM_REPEATS = 4
CPU_RANKS = 2
LEAST = 3  # fewest nodes for a search: of two that fail together either may be at fault

Pair = tuple[str, str]
Try = Callable[[NodeRank, Pair], Check]  # an all-reduce between two nodes, one of which is this node


@dataclass(frozen=True)
class Ring:
    """The ranks that take part in an all-reduce: `per_node` ranks on every one of `nodes`."""

    nodes: Sequence[str]
    per_node: int
    address: str
    port: int
    has_gpus: bool

    @property
    def size(self) -> int:
        return len(self.nodes) * self.per_node

    @property
    def backend(self) -> str:
        return "nccl" if self.has_gpus else "gloo"


def longest_s(seconds: float) -> float:
    """Return the longest time of an all-reduce check, start and kill included, if the all-reduce may take `seconds`."""
    return START_S + seconds + KILL_S


def check_node(this: NodeRank, num_gpus: int, seconds: float) -> Check:
    """Check an all-reduce between the processes of this node alone.

    If it fails, the fault is in this node.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    per_node = num_gpus or CPU_RANKS
    ring = Ring((this.node,), per_node, "127.0.0.1", port, has_gpus=num_gpus > 0)
    answers = _run(ring, 0, seconds)
    return _judge(LOCAL, ring, answers)


def check_job(
    this: NodeRank,
    nodes: Sequence[str],
    num_gpus: int,
    seconds: float,
) -> Check:
    """Check an all-reduce between the processes of all nodes in `nodes`, which include this node."""
    per_node = num_gpus or 1
    ring = Ring(nodes, per_node, this.address, this.port + 1, has_gpus=num_gpus > 0)
    answers = _run(ring, nodes.index(this.node), seconds)
    return _judge(GLOBAL, ring, answers)


def check_pair(
    between: NodeRank,
    pair: Sequence[str],
    num_gpus: int,
    seconds: float,
) -> Check:
    """Check an all-reduce between the processes of two nodes.

    `between` holds this node's rank in the pair and the address at which the two nodes meet.
    """
    per_node = num_gpus or 1
    ring = Ring(pair, per_node, between.address, between.port, has_gpus=num_gpus > 0)
    answers = _run(ring, between.rank, seconds)
    return _judge(GLOBAL, ring, answers)


def _run(ring: Ring, node: int, seconds: float) -> list[ProbeResult]:
    """Run this node's ranks of an all-reduce, each in a process of its own, and return their results."""
    environment = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    probes = []
    for device in range(ring.per_node):
        wanted = {
            "rank": node * ring.per_node + device,
            "size": ring.size,
            "device": device,
            "address": ring.address,
            "port": ring.port,
            "backend": ring.backend,
            "seconds": START_S + seconds,
        }
        probes.append(Probe("collective", "rank", wanted, environment))
    ends_at = time.monotonic() + longest_s(seconds)
    answers = []
    for probe in probes:
        left = ends_at - time.monotonic()
        answers.append(probe.wait(max(left, 1.0)))
    return answers


def _judge(name: str, ring: Ring, answers: Sequence[ProbeResult]) -> Check:
    """Return the outcome of a node's all-reduce check, from the results of the node's ranks."""
    is_own_fault = len(ring.nodes) == 1
    reason = ""  # error of the first rank that failed
    missing: set[int] = set()
    speeds = []
    for rank_answer in answers:
        data = rank_answer.data
        if data is None:
            is_own_fault = True
            reason = reason or rank_answer.reason
            continue
        is_own_fault = is_own_fault or bool(data.get("is_mine"))
        reason = reason or data.get("error", "")
        missing.update(data.get("absent", ()))
        speeds.append(data.get("gib_per_s", 0.0))
    if missing and not (reason and is_own_fault):
        indices = {rank // ring.per_node for rank in missing}
        late = [ring.nodes[index] for index in sorted(indices)]
        found = f"{join_names(late)} did not come ({len(missing)} of {ring.size} ranks)"
        # A slow file server makes healthy nodes late, so lateness alone excludes no node.
        return Check(name, FAIL, found, "look there first", is_shared=True)
    ranks = f"{ring.backend} over {ring.size} ranks"
    if reason:
        advice = "is GLOO_SOCKET_IFNAME an interface that the nodes share?"
        if reason == NO_GPU:
            advice = "look at the row gpus"
        elif ring.has_gpus:
            advice = "run it again with NCCL_DEBUG=INFO"
        return Check(name, FAIL, f"{ranks}: {reason}", advice, is_shared=not is_own_fault)
    speed = min(speeds)
    found = f"{ranks}, {speed:.1f} GiB/s"
    if name == GLOBAL and ring.has_gpus and speed < SLOW_GIB_PER_S:
        advice = "with NCCL_DEBUG=INFO NCCL says NET/IB or NET/Socket: is InfiniBand in the container?"
        return Check(name, WARN, f"{found} a rank, where InfiniBand has more than {SLOW_GIB_PER_S:g}", advice)
    return Check(name, OK, found)


def pair_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return the pairs of neighbours in a ring of nodes, grouped in rounds.

    The pairs of one round share no node, so they can run at the same time.
    """
    neighbours = [*nodes[1:], nodes[0]]
    edges = list(zip(nodes, neighbours, strict=True))
    last = []
    if len(nodes) % 2:
        last = [[edges.pop()]]  # it shares a node with the first pair of either round
    return [edges[::2], edges[1::2], *last]


def nodes_at_fault(nodes: Sequence[str], went_well: Mapping[Pair, bool]) -> list[str]:
    """Return the nodes whose all-reduces with their neighbours all failed.

    The list is empty if that is true of every node.
    """
    well: set[str] = set()
    for pair, pair_went_well in went_well.items():
        if pair_went_well:
            well.update(pair)
    bad = [node for node in nodes if node not in well]
    return bad if len(bad) < len(nodes) else []


def find_fault(
    this: NodeRank,
    rendezvous: Rendezvous,
    nodes: Sequence[str],
    try_pair: Try,
    seconds: float,
) -> list[str]:
    """Find the nodes at fault for a failed all-reduce, by all-reduces between pairs of neighbours.

    Every node of the Slurm job must call this at the same time, also a node outside `nodes`. An all-reduce takes at
    most `seconds`. Raises ResourceError when the first node is lost or has left this node out.
    """
    addresses = rendezvous.exchange(rendezvous.own_address, seconds)
    address_of = {node: node for node in this.nodes}  # fall back to the name of a lost node
    address_of.update(this.by_node(addresses))
    address_of[this.nodes[0]] = (
        this.address
    )  # this node's view of it; the first node may only know its loopback address
    went_well: dict[Pair, bool] = {}
    for number, edges in enumerate(pair_rounds(nodes)):
        own_status = None  # stays None where this node is in no pair of the round
        for pair in edges:
            if this.node in pair:
                port = this.port + 1 + number
                between = NodeRank(pair.index(this.node), pair, address_of[pair[0]], port)
                own_status = try_pair(between, pair).status
        statuses = rendezvous.exchange(own_status, seconds)
        by_node = this.by_node(statuses)
        good = {node for node, status in by_node.items() if status in (OK, WARN)}
        for pair in edges:
            went_well[pair] = good.issuperset(pair)
    return nodes_at_fault(nodes, went_well)


def with_blame(check: Check, node: str, faults: Sequence[str]) -> Check:
    """Return a failed all-reduce check of all nodes, completed with the names of the nodes at fault.

    `node` is the node whose report will contain the check. If this node is at fault itself, the check says so, and the
    failure counts as the node's own.
    """
    if node in faults:
        return replace(check, found=f"{check.found}; it fails with both neighbours", is_shared=False)
    who = "no node is at fault alone"
    if faults:
        who = f"at fault: {', '.join(faults)}"
    return replace(check, found=f"{check.found}; {who}")


def run_rank(wanted: dict[str, Any]) -> dict[str, Any]:
    """Run one rank of an all-reduce and return what it found.

    The result has `absent` (ranks that did not come), or `error`, or the bandwidth `gib_per_s`. `is_mine` tells whether
    the error came before another rank could have caused it.
    """
    from torch import distributed

    rank = wanted["rank"]
    size = wanted["size"]
    limit_s = wanted["seconds"]
    ends_at = time.monotonic() + limit_s
    is_mine = True
    try:
        store = distributed.TCPStore(
            wanted["address"],
            wanted["port"],
            size,
            is_master=rank == 0,
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,
        )
        store.set(f"here/{rank}", "1")
        late = wait_for_ranks(store, "here", range(size), ends_at - KILL_S / 2)
        if late:
            return {"absent": late}
        device = _device(wanted)
        is_mine = False
        left_s = max(ends_at - time.monotonic(), 1.0)
        distributed.init_process_group(
            wanted["backend"],
            store=distributed.PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=left_s),
        )
        speed = _all_reduce(rank, size, device)
        store.set(f"done/{rank}", "1")
        if rank == 0:
            wait_for_ranks(
                store, "done", range(size), ends_at - KILL_S / 2
            )  # rank 0 hosts the store and must leave last
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        return {"error": first_line, "is_mine": is_mine}
    return {"gib_per_s": speed}


def _device(wanted: dict[str, Any]) -> Any:
    import torch

    if wanted["backend"] != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(NO_GPU)
    device = torch.device("cuda", wanted["device"])
    torch.cuda.set_device(device)
    return device


def _all_reduce(rank: int, size: int, device: Any) -> float:
    """Run an all-reduce and return its bandwidth in GiB/s for each rank (NCCL's bus bandwidth).

    Raises ValueError if the sum is wrong.
    """
    import torch
    from torch import distributed

    mib = GPU_MIB if device.type == "cuda" else CPU_MIB
    num_numbers = mib << 18  # float32 numbers
    numbers = torch.empty(num_numbers, dtype=torch.float32, device=device)
    seconds = []
    for _ in range(NUM_REPEATS):
        numbers.fill_(rank + 1.0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        distributed.all_reduce(numbers)
        least = float(numbers.min())
        most = float(numbers.max())
        seconds.append(time.perf_counter() - start)
        expected = size * (size + 1) / 2
        if least != expected or most != expected:
            raise ValueError(f"the sum of 1 to {size} came out as {least:g} to {most:g}")
    sent_gib = 2 * (size - 1) / size * mib / 1024
    return sent_gib / min(seconds)


if __name__ == "__main__":
    answer_probe({"rank": run_rank})
