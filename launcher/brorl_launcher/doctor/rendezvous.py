"""Rendezvous of the nodes of a job before anything else works: plain TCP to the first one, with a deadline for
everything. Rank and names of the nodes are read from Slurm's variables.

The first node listens; the others come, say who they are, and have their clocks compared. Then all of them may
`exchange` something, as often as they like, in step: everyone sends, the first collects and sends everything to
everyone. Who is late or goes away is left out from then on; nobody waits for him again. A message is its length in
eight bytes and JSON.

When an all-reduce over all nodes fails, the one at fault is searched: neighbours try it two by two, each node with two
others. The nodes stand in a ring. Edges that share no node are tried at once, so that two rounds (three, for an odd
number) try all. A node that fails with both neighbours is at fault, unless all do: then it is the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brorl_launcher.doctor.report import OK, Check
from nemo_brorl.core.errors import ConfigError, ResourceError

DEFAULT_PORT = 12377  # of the rendezvous; the next ones are for all-reduces. Below the ephemeral ports (32768-60999)
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")

NUM_PINGS = 9
HELLO_S = 5.0  # for one who has come to say who he is
RETRY_S = 0.2
SLACK_S = 10.0  # that the others wait for the first node longer than it waits for them
MAX_BYTES = 1 << 24


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


def here() -> NodeRank:
    """Rank of a machine that is alone."""
    return NodeRank(0, (own_name(os.environ),))


def in_job(environment: Mapping[str, str], address: str | None = None) -> NodeRank:
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
    nodes = tuple(expand(listed))
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


def expand(nodes: str) -> Iterator[str]:
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


@dataclass
class Rendezvous:
    """Connections to those who have come. A context: inside it the connections are open. On the first node `offsets`
    says by how many seconds each one's clock is ahead of its own."""

    this: NodeRank
    links: dict[int, socket.socket] = field(default_factory=dict)  # by rank; on other nodes that to rank 0 alone
    offsets: dict[int, float] = field(default_factory=dict)

    @property
    def own_address(self) -> str:
        """Address of this node's interface towards the first one."""
        if self.this.is_first:
            return self.this.address
        host, *_ = self.links[0].getsockname()
        return str(host)

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *exception: object) -> None:
        for link in self.links.values():
            link.close()

    def exchange(self, data: Any, seconds: float) -> dict[int, Any]:
        """Everyone's `data` by rank, of those who sent it in time. Raises ResourceError when the first node is gone."""
        if self.this.is_first:
            return self._collect(data, seconds)
        try:
            link = self.links[0]
            _send(link, data, seconds)
            by_rank = _receive(link, seconds + SLACK_S)
            return {int(rank): item for rank, item in by_rank.items()}
        except (OSError, ValueError) as error:
            raise ResourceError(
                f"the first node, {self.this.nodes[0]}, went away in the middle of the checks ({error})"
            ) from error

    def _collect(self, data: Any, seconds: float) -> dict[int, Any]:
        everything = {0: data}
        ends_at = time.monotonic() + seconds
        for rank, link in sorted(self.links.items()):
            try:
                left = ends_at - time.monotonic()
                everything[rank] = _receive(link, max(left, 0.1))
            except (OSError, ValueError):
                self._leave_out(rank)
        for rank, link in sorted(self.links.items()):
            try:
                _send(link, everything, HELLO_S)
            except OSError:
                self._leave_out(rank)
        return everything

    def _leave_out(self, rank: int) -> None:
        self.links.pop(rank).close()


def join(this: NodeRank, seconds: float) -> Rendezvous:
    """Come together, for at most so long. Raises ResourceError when this is not the first node and it cannot be
    reached, or when the first node's port is taken."""
    if this.size == 1:
        return Rendezvous(this)
    return _host(this, seconds) if this.is_first else _come(this, seconds)


def _host(this: NodeRank, seconds: float) -> Rendezvous:
    rendezvous = Rendezvous(this)
    ends_at = time.monotonic() + seconds
    try:
        listener = socket.create_server(("", this.port), backlog=this.size)
    except OSError as error:
        raise ResourceError(
            f"port {this.port} of {this.node}, where the nodes meet, is not free ({error}): give another by --address"
        ) from error
    with listener:
        while len(rendezvous.links) < this.size - 1:
            left = ends_at - time.monotonic()
            if left <= 0:
                break
            listener.settimeout(left)
            with contextlib.suppress(OSError, ValueError, KeyError):
                link, _ = listener.accept()
                _welcome(rendezvous, link)
    return rendezvous


def _welcome(rendezvous: Rendezvous, link: socket.socket) -> None:
    """Hear who it is and compare clocks; one who does not speak like us is sent away by the exception."""
    try:
        rank = int(_receive(link, HELLO_S)["rank"])
        offsets = []
        for _ in range(NUM_PINGS):
            before = time.time()
            _send(link, {"ping": True}, HELLO_S)
            theirs = float(_receive(link, HELLO_S)["time"])
            middle = (before + time.time()) / 2
            offsets.append(theirs - middle)
        _send(link, {"ping": False}, HELLO_S)
    except BaseException:  # whatever it was, Ctrl-C too: the link is not left open
        link.close()
        raise
    rendezvous.links[rank] = link
    rendezvous.offsets[rank] = statistics.median(offsets)


def _come(this: NodeRank, seconds: float) -> Rendezvous:
    ends_at = time.monotonic() + seconds
    reason = "no time"
    while True:
        left = ends_at - time.monotonic()
        if left <= 0:
            break
        try:
            address = (this.address, this.port)
            link = socket.create_connection(address, timeout=min(left, HELLO_S))
            _send(link, {"rank": this.rank}, HELLO_S)
            while _receive(link, max(left, HELLO_S))["ping"]:
                _send(link, {"time": time.time()}, HELLO_S)
            return Rendezvous(this, {0: link})
        except (OSError, ValueError) as error:
            reason = str(error)
            time.sleep(RETRY_S)
    raise ResourceError(
        f"{this.node} did not reach {this.nodes[0]} at {this.address}:{this.port} within {seconds:.0f} s ({reason}): "
        "is it up, does a firewall close the port, is the address one that other nodes can reach (--address "
        "HOST:PORT)?"
    )


def _send(link: socket.socket, data: Any, seconds: float) -> None:
    body = json.dumps(data).encode()
    link.settimeout(seconds)
    length = len(body).to_bytes(8, "big")
    link.sendall(length + body)


def _receive(link: socket.socket, seconds: float) -> Any:
    """Raises OSError when it does not come whole within `seconds`, ValueError when it is no message."""
    ends_at = time.monotonic() + seconds
    size = int.from_bytes(_read(link, 8, ends_at), "big")
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(_read(link, size, ends_at))


def _read(link: socket.socket, size: int, ends_at: float) -> bytes:
    body = b""
    while len(body) < size:
        left = ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        link.settimeout(left)
        part = link.recv(size - len(body))
        if not part:
            raise ConnectionError("the connection was closed")
        body += part
    return body


Pair = tuple[str, str]
Try = Callable[[NodeRank, Pair], Check]  # an all-reduce between two nodes, one of which is this
LEAST = 3  # nodes: two that fail together do not say whose fault it is


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """All edges of the ring; within a round no node stands in two."""
    neighbours = [*nodes[1:], nodes[0]]
    edges = list(zip(nodes, neighbours, strict=True))
    last = []
    if len(nodes) % 2:
        last = [[edges.pop()]]  # it shares a node with the first edge of either round
    return [edges[::2], edges[1::2], *last]


def at_fault(nodes: Sequence[str], went_well: Mapping[Pair, bool]) -> list[str]:
    """The nodes none of whose pairs went well; none when that is so of all."""
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
    """The nodes of `nodes` at fault. Every node of the job calls this at the same time, also those that are not among
    `nodes`; a try takes at most `seconds`. Raises ResourceError as `Rendezvous.exchange`."""
    addresses = rendezvous.exchange(rendezvous.own_address, seconds)
    address_of = {node: node for node in this.nodes}  # a node that has gone is called by its name
    address_of.update(this.by_node(addresses))
    address_of[this.nodes[0]] = this.address  # as this node reaches it; by itself it may know a loopback address
    went_well: dict[Pair, bool] = {}
    for number, edges in enumerate(rounds(nodes)):
        own_status = None  # no pair of this round has this node in it
        for pair in edges:
            if this.node in pair:
                port = this.port + 1 + number
                between = NodeRank(pair.index(this.node), pair, address_of[pair[0]], port)
                own_status = try_pair(between, pair).status
        statuses = rendezvous.exchange(own_status, seconds)
        by_node = this.by_node(statuses)
        good = {node for node, status in by_node.items() if status == OK}
        for pair in edges:
            went_well[pair] = good.issuperset(pair)
    return at_fault(nodes, went_well)


def blamed(check: Check, node: str, faults: Sequence[str]) -> Check:
    """The failed check of all nodes, as it stands in one node's report once it is known who is at fault."""
    if node in faults:
        return replace(check, found=f"{check.found}; it fails with both neighbours", is_shared=False)
    who = "no node is at fault alone"
    if faults:
        who = f"at fault: {', '.join(faults)}"
    return replace(check, found=f"{check.found}; {who}")
