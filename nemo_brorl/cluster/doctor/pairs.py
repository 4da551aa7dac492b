"""Search for the node at fault when an all-reduce over all of them fails: neighbours try it two by two, each node with
two others.

The nodes stand in a ring. Edges that share no node are tried at once, so that two rounds (three, for an odd number) try
all. A node that fails with both neighbours is at fault, unless all do: then it is the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nemo_brorl.cluster.doctor.node_rank import NodeRank
from nemo_brorl.cluster.doctor.rendezvous import Rendezvous
from nemo_brorl.cluster.doctor.report import OK, Check

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
