"""Rank of this node among those of a job: Slurm's variables, and how its lists of nodes are written."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_brorl.core.errors import ConfigError

DEFAULT_PORT = 12377  # of the rendezvous; the next ones are for all-reduces. Below the ephemeral ports (32768-60999)
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


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
