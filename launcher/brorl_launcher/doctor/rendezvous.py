"""Rendezvous of the nodes of a job before anything else works, at torch's store on the first one, with a deadline for
everything. Rank and names of the nodes are read from Slurm's variables.

The first node serves the store; the others come, say who they are, and have their clocks compared. Then all of them may
`exchange` something, as often as they like, in step: everyone sends, the first collects and sends everything to
everyone. Who is late or goes away is left out from then on; nobody waits for him again.

As a program (`probe.py`): whether torch loads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.job.ray_ports import own_address
from nemo_brorl.core.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from torch.distributed import TCPStore

DEFAULT_PORT = 12377  # of the rendezvous; the next ones are for all-reduces. Below the ephemeral ports (32768-60999)
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")

TORCH_S = 120.0  # for a process with torch to start, with all nodes asking one file server
LOOK_S = 0.02
CLOCK_S = 5.0  # for those who have come to read the first node's clock
LEAVE_S = 10.0  # that the first node waits for the others to leave
SLACK_S = 10.0  # that the others wait for the first node longer than it waits for them


@dataclass(frozen=True)
class NodeRank:
    """One of the processes of a job, one on each node."""

    rank: int
    nodes: tuple[str, ...]  # by rank
    address: str = "127.0.0.1"  # of rank 0
    port: int = DEFAULT_PORT

    @property
    def node(self) -> str:
        return self.nodes[self.rank]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def by_node(self, by_rank: Mapping[int, Any]) -> dict[str, Any]:
        """Values of ranks as values of nodes."""
        return {self.nodes[rank]: value for rank, value in by_rank.items()}


def single_node() -> NodeRank:
    """Rank of a machine that is alone."""
    return NodeRank(0, (own_name(os.environ),))


def rank_in_job(environment: Mapping[str, str], address: str | None = None) -> NodeRank:
    """Rank by the variables of a Slurm step with one task per node. `address` is HOST or HOST:PORT of the first node,
    else its name is looked up, and where that has no answer SLURM_LAUNCH_NODE_IPADDR is taken. Raises ConfigError
    outside of a step."""
    try:
        rank = int(environment["SLURM_PROCID"])
        size = int(environment["SLURM_NTASKS"])
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"--job runs on every node of a Slurm job and {error} is not set as srun sets it: write"
            " srun --ntasks-per-node=1 brorl doctor --job …, or leave --job out to look at this machine"
        ) from error
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    listed = listed or own_name(environment)
    nodes = tuple(expand_node_list(listed))
    if len(nodes) != size or not 0 <= rank < size:
        raise ConfigError(
            f"task {rank} of {size} runs on {len(nodes)} nodes ({listed}): one on each is wanted, write srun "
            "--ntasks-per-node=1"
        )
    host, _, port = (address or "").partition(":")
    if port and not port.isdigit():
        raise ConfigError(f"--address {address}: {port} is no port; write HOST or HOST:PORT")
    if not host:
        try:
            host = socket.gethostbyname(nodes[0])
        except OSError:
            host = environment.get("SLURM_LAUNCH_NODE_IPADDR") or nodes[0]
    return NodeRank(rank, nodes, host, int(port or DEFAULT_PORT))


def expand_node_list(nodes: str) -> Iterator[str]:
    """Slurm's short form of a list of nodes, `gpu[01-03,7]-ib,login`, name by name. Raises ConfigError when it is not
    one."""
    items = _ITEM.findall(nodes)
    if ",".join(items) != nodes:
        raise ConfigError(f"{nodes!r} is no list of nodes as Slurm writes one (node[0-3,7])")
    for item in items:
        yield from _names(item)


def own_name(environment: Mapping[str, str]) -> str:
    """Slurm's name of this node, or the machine's own, without its domain."""
    host, _, _ = socket.gethostname().partition(".")
    return environment.get("SLURMD_NODENAME") or host


def _names(item: str) -> Iterator[str]:
    brackets = _BRACKETS.search(item)
    if brackets is None:
        yield item
        return
    before = item[: brackets.start()]
    after = item[brackets.end() :]
    for number in _numbers(brackets[1]):
        for rest in _names(after):
            yield f"{before}{number}{rest}"


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            last = first
        if not first.isdigit() or not last.isdigit():
            raise ConfigError(f"{part!r} is no range of numbers in a list of nodes")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


class NoTorchError(ResourceError):
    """Torch does not load on this node, which is no other node's fault."""


@dataclass
class Rendezvous:
    """Those who have come, at torch's store on the first node. A context: inside it the store is there. On the first
    node `offsets` says by how many seconds each one's clock is ahead of its own."""

    this: NodeRank
    store: TCPStore | None = None  # None: this node is alone
    present: list[int] = field(default_factory=list)  # ranks, without those that were left out
    offsets: dict[int, float] = field(default_factory=dict)
    num_exchanges: int = 0

    @property
    def own_address(self) -> str:
        """Address of this node's interface towards the first one."""
        return self.this.address if self.this.is_first else own_address(self.this.address)

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave; the first node, which has the store, is the last to go."""
        if self.store is None:
            return
        with contextlib.suppress(RuntimeError):  # the first node is gone
            self.store.set(f"left/{self.this.rank}", "")
            if self.this.is_first:
                wait_for_ranks(self.store, "left", self.present, time.monotonic() + LEAVE_S)

    def exchange(self, data: Any, seconds: float) -> dict[int, Any]:
        """Everyone's `data` by rank, of those who sent it in time. Raises ResourceError when the first node is gone, or
        has left this one out."""
        if self.store is None:
            return {0: data}
        self.num_exchanges += 1
        turn = f"exchange/{self.num_exchanges}"
        try:
            self.store.set(f"{turn}/{self.this.rank}", json.dumps(data))
            if self.this.is_first:
                return self._collect(self.store, turn, seconds)
            by_rank = _receive(self.store, f"{turn}/all", seconds + SLACK_S)
        except RuntimeError as error:
            raise ResourceError(
                f"the first node, {self.this.nodes[0]}, went away in the middle of the checks ({_first_line(error)})"
            ) from error
        everything = {int(rank): item for rank, item in by_rank.items()}
        if self.this.rank not in everything:
            raise ResourceError(f"{self.this.node} was too late in the middle of the checks, and left out")
        return everything

    def _collect(self, store: TCPStore, turn: str, seconds: float) -> dict[int, Any]:
        late = wait_for_ranks(store, turn, self.present, time.monotonic() + seconds)
        self.present = [rank for rank in self.present if rank not in late]
        everything = {}
        for rank in self.present:
            everything[rank] = json.loads(store.get(f"{turn}/{rank}"))
        store.set(f"{turn}/all", json.dumps(everything))
        return everything


def join_rendezvous(this: NodeRank, seconds: float) -> Rendezvous:
    """Come together, for at most so long once torch is there. Raises NoTorchError when torch does not load on this
    node, and ResourceError when this is not the first node and it cannot be reached, or when the first node's
    port is taken."""
    if this.size == 1:
        return Rendezvous(this)
    fault = torch_fault()
    if fault:
        raise NoTorchError(f"torch, whose store the nodes meet at, does not load on {this.node}: {fault}")
    return _host(this, seconds) if this.is_first else _come(this, seconds)


def torch_fault() -> str:
    """Why torch does not load here, asked in a process that may hang; \"\" when it does."""
    return run_probe("rendezvous", "torch", {}, TORCH_S).reason


def load_torch(_: dict[str, Any]) -> dict[str, Any]:
    """Load what the store needs."""
    from torch.distributed import TCPStore

    return {"store": TCPStore.__name__}


def wait_for_ranks(
    store: TCPStore,
    word: str,
    ranks: Iterable[int],
    ends_at: float,
) -> list[int]:
    """Return those of `ranks` that have not said `word` in the store by then."""
    missing = list(ranks)
    while missing:
        missing = [rank for rank in missing if not store.check([f"{word}/{rank}"])]
        if missing and time.monotonic() > ends_at:
            return missing
        time.sleep(LOOK_S)
    return []


def _host(this: NodeRank, seconds: float) -> Rendezvous:
    try:
        store = _store(this, "127.0.0.1", seconds)
    except RuntimeError as error:
        raise ResourceError(
            f"port {this.port} of {this.node}, where the nodes meet, is not free ({_first_line(error)}): give another "
            "by --address"
        ) from error
    store.set("came/0", "")
    late = wait_for_ranks(store, "came", range(this.size), time.monotonic() + seconds)
    present = [rank for rank in range(this.size) if rank not in late]
    store.set("start", json.dumps({"present": present, "time": time.time()}))
    without_clock = wait_for_ranks(store, "clock", present[1:], time.monotonic() + CLOCK_S)
    offsets = {}
    for rank in present[1:]:
        if rank not in without_clock:
            offsets[rank] = float(store.get(f"clock/{rank}"))
    return Rendezvous(this, store, present, offsets)


def _come(this: NodeRank, seconds: float) -> Rendezvous:
    """The first node's clock is read from the word by which it starts: all wait for it at that moment."""
    try:
        store = _store(this, this.address, seconds)
        store.set(f"came/{this.rank}", "")
        start = _receive(store, "start", seconds + SLACK_S)
        store.set(f"clock/{this.rank}", str(time.time() - start["time"]))
    except RuntimeError as error:
        raise ResourceError(
            f"{this.node} did not reach {this.nodes[0]} at {this.address}:{this.port} within {seconds:.0f} s "
            f"({_first_line(error)}): is it up, does a firewall close the port, is the address one that other nodes "
            "can reach (--address HOST:PORT)?"
        ) from error
    if this.rank not in start["present"]:
        raise ResourceError(f"{this.node} reached {this.nodes[0]} when the checks had begun without it")
    return Rendezvous(this, store, start["present"])


def _store(this: NodeRank, address: str, seconds: float) -> TCPStore:
    """Raises RuntimeError."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or torch tells of every try to reach it
    from torch.distributed import TCPStore

    limit = timedelta(seconds=seconds)
    return TCPStore(address, this.port, None, is_master=this.is_first, timeout=limit, wait_for_workers=False)


def _receive(store: TCPStore, key: str, seconds: float) -> Any:
    """Raises RuntimeError when it does not come within `seconds`, or the store is gone."""
    store.wait([key], timedelta(seconds=seconds))
    return json.loads(store.get(key))


def _first_line(error: RuntimeError) -> str:
    line, _, _ = str(error).partition("\n")
    return line


if __name__ == "__main__":
    answer_probe({"torch": load_torch})
