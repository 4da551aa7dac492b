"""Bring the nodes of a job together before anything else works, at torch's store on the first node.

Rank and node names come from Slurm's variables, and every wait has a deadline.

The first node hosts the store. The other nodes come, announce themselves, and have their clocks compared. Then all of
them may call `exchange`, in step and as often as they like: each node sends a value, the first one collects them and
sends all of them to everyone. A node that is late or goes away is left out from then on.

As a program (`probe.py`) this module checks whether torch loads.
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

from brorl_graders.base.foreign import LARGE, read_json

from brorl_launcher.doctor.probe import answer_probe, run_probe
from brorl_launcher.job.ray_ports import own_address
from nemo_brorl.core.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from torch.distributed import TCPStore

DEFAULT_PORT = 12377  # port of the rendezvous, before those of all-reduces, below the ephemeral ones (32768-60999)
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")

TORCH_S = 300.0  # longest start of a process with torch, while all nodes read from one file server
LOOK_S = 0.02
CLOCK_S = 5.0  # seconds in which the nodes read the first node's clock
LEAVE_S = 10.0  # seconds that the first node waits for the others to leave
SLACK_S = 10.0  # extra seconds that the others wait for the first node


@dataclass(frozen=True)
class NodeRank:
    """The rank of one node of a job, with one process on each node, and the address of the first."""

    rank: int
    nodes: tuple[str, ...]  # node names by rank
    address: str = "127.0.0.1"  # address of rank 0
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
        """Convert a mapping with node ranks as keys into one with node names as keys."""
        return {self.nodes[rank]: value for rank, value in by_rank.items()}


def single_node() -> NodeRank:
    """Return the node rank of a machine that is not part of a Slurm job."""
    return NodeRank(0, (own_name(os.environ),))


def rank_in_job(environment: Mapping[str, str], address: str | None = None) -> NodeRank:
    """Return this node's rank from the variables of a Slurm step with one task per node.

    `address` is HOST or HOST:PORT of the first node. Without it the first node's name is resolved, or
    SLURM_LAUNCH_NODE_IPADDR is used. Raises ConfigError outside of such a Slurm step.
    """
    try:
        rank = int(environment["SLURM_PROCID"])
        size = int(environment["SLURM_NTASKS"])
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"--job runs on every node of a Slurm job and {error} is not set as srun sets it: run"
            " srun --ntasks-per-node=1 brorl doctor --job …, or leave --job out to look at this machine"
        ) from error
    listed = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    listed = listed or own_name(environment)
    nodes = tuple(expand_node_list(listed))
    if len(nodes) != size or not 0 <= rank < size:
        raise ConfigError(
            f"task {rank} of {size} runs on {len(nodes)} nodes ({listed}): one on each is wanted, run srun "
            "--ntasks-per-node=1"
        )
    host, _, port = (address or "").partition(":")
    if port and not port.isdecimal():
        raise ConfigError(f"--address {address}: {port} is no port; pass HOST or HOST:PORT")
    if not host:
        try:
            host = socket.gethostbyname(nodes[0])
        except OSError:
            host = environment.get("SLURM_LAUNCH_NODE_IPADDR") or nodes[0]
    return NodeRank(rank, nodes, host, int(port or DEFAULT_PORT))


def expand_node_list(nodes: str) -> Iterator[str]:
    """Yield the node names of a list in Slurm's short form, such as `gpu[01-03,7]-ib,login`.

    Raises ConfigError for a list of another form.
    """
    items = _ITEM.findall(nodes)
    if ",".join(items) != nodes:
        raise ConfigError(f"{nodes!r} is no list of nodes as Slurm writes one (node[0-3,7])")
    for item in items:
        yield from _names(item)


def own_name(environment: Mapping[str, str]) -> str:
    """Return Slurm's name of this node, or the machine's own host name without its domain."""
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
        if not first.isdecimal() or not last.isdecimal():
            raise ConfigError(f"{part!r} is no range of numbers in a list of nodes")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


class NoTorchError(ResourceError):
    """Torch does not load on this node, which is no other node's fault."""


@dataclass
class Rendezvous:
    """The nodes that have met at torch's store on the first node, as a context in which the store is open.

    On the first node `offsets` holds, by rank, how many seconds a node's clock is ahead of its own.
    """

    this: NodeRank
    store: TCPStore | None = None  # None: this node is alone
    present: list[int] = field(default_factory=list)  # ranks without those that were left out
    offsets: dict[int, float] = field(default_factory=dict)
    num_exchanges: int = 0

    @property
    def own_address(self) -> str:
        """Return the address of this node's network interface towards the first node of the Slurm job."""
        return self.this.address if self.this.is_first else own_address(self.this.address)

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the rendezvous in which the nodes of a Slurm job exchange data.

        The first node hosts the key-value store, so it waits until the other nodes have left.
        """
        if self.store is None:
            return
        with contextlib.suppress(RuntimeError):  # the first node is lost
            self.store.set(f"left/{self.this.rank}", "")
            if self.this.is_first:
                wait_for_ranks(self.store, "left", self.present, time.monotonic() + LEAVE_S)

    def exchange(self, data: Any, seconds: float) -> dict[int, Any]:
        """Send `data` to all nodes of the Slurm job, and return the data of every node that sent it in time, by rank.

        Raises ResourceError when the first node is lost or has left this node out.
        """
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
            everything[rank] = read_json(store.get(f"{turn}/{rank}"), most_bytes=LARGE)
        store.set(f"{turn}/all", json.dumps(everything))
        return everything


def join_rendezvous(this: NodeRank, seconds: float) -> Rendezvous:
    """Meet the other nodes of the Slurm job within `seconds`, counted from when torch has loaded.

    Raises NoTorchError when torch does not load on this node. Raises ResourceError when this node cannot reach the
    first node, or when the first node's port is taken.
    """
    if this.size == 1:
        return Rendezvous(this)
    fault = torch_fault()
    if fault:
        raise NoTorchError(f"torch, whose store the nodes meet at, does not load on {this.node}: {fault}")
    return _host(this, seconds) if this.is_first else _come(this, seconds)


def torch_fault() -> str:
    """Return why torch does not load on this node, or an empty text.

    Torch is loaded in another process, because loading may hang.
    """
    return run_probe("rendezvous", "torch", {}, TORCH_S).reason


def load_torch(_: dict[str, Any]) -> dict[str, Any]:
    """Load the part of torch that nodes need to exchange data through a key-value store."""
    from torch.distributed import TCPStore

    return {"store": TCPStore.__name__}


def wait_for_ranks(
    store: TCPStore,
    word: str,
    ranks: Iterable[int],
    ends_at: float,
) -> list[int]:
    """Return those of `ranks` that have not written `word` into the key-value store by `ends_at`."""
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
    """Join the key-value store of the first node, and measure this node's clock offset.

    The first node writes its time with the word that starts the rendezvous, for which all nodes wait at that moment.
    """
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
        raise ResourceError(f"{this.node} reached {this.nodes[0]} after the checks had started without it")
    return Rendezvous(this, store, start["present"])


def _store(this: NodeRank, address: str, seconds: float) -> TCPStore:
    """Open torch's key-value store at the first node's address.

    Raises RuntimeError when the store cannot be opened.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # otherwise torch reports every attempt to connect
    from torch.distributed import TCPStore

    limit = timedelta(seconds=seconds)
    return TCPStore(address, this.port, None, is_master=this.is_first, timeout=limit, wait_for_workers=False)


def _receive(store: TCPStore, key: str, seconds: float) -> Any:
    """Return the value of a key in the key-value store that the nodes share.

    Raises RuntimeError when the value does not come in time or the store is lost.
    """
    store.wait([key], timedelta(seconds=seconds))
    return read_json(store.get(key), most_bytes=LARGE)


def _first_line(error: RuntimeError) -> str:
    line, _, _ = str(error).partition("\n")
    return line


if __name__ == "__main__":
    answer_probe({"torch": load_torch})
