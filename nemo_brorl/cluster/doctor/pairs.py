"""Which node is at fault when an all-reduce over all of them fails: neighbours try it two by two, each node with two
others.

The nodes stand in a ring. Edges that share no node are tried at once, so that two rounds (three, for an odd number) try
all. A node that fails with both neighbours is at fault, unless all do: then it is the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nemo_brorl.cluster.doctor.node_rank import Place
from nemo_brorl.cluster.doctor.rendezvous import Meeting
from nemo_brorl.cluster.doctor.report import OK, Check

Pair = tuple[str, str]
Try = Callable[[Place, Pair], Check]  # an all-reduce between two nodes, of which the place is one
LEAST = 3  # nodes: two that fail together do not say whose fault it is


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """All edges of the ring; within a round no node stands in two."""
    edges = [(node, nodes[(index + 1) % len(nodes)]) for index, node in enumerate(nodes)]
    if len(nodes) % 2 == 0:
        return [edges[::2], edges[1::2]]
    return [edges[:-1:2], edges[1:-1:2], edges[-1:]]


def at_fault(nodes: Sequence[str], went_well: Mapping[Pair, bool]) -> list[str]:
    """The nodes none of whose pairs went well; none when that is so of all."""
    bad = [node for node in nodes if not any(well for pair, well in went_well.items() if node in pair)]
    return bad if len(bad) < len(nodes) else []


def find_fault(place: Place, meeting: Meeting, nodes: Sequence[str], try_pair: Try, seconds: float) -> list[str]:
    """The nodes of `nodes` at fault. Every node of the job calls this at the same time, also those that are not among
    `nodes`; a try takes at most `seconds`. Raises ResourceError as `Meeting.exchange`."""
    addresses = meeting.exchange(meeting.own_address, seconds)
    address_of = {place.nodes[rank]: address for rank, address in addresses.items()}
    address_of[place.nodes[0]] = place.address  # as this node reaches it; by itself it may know a loopback address
    went_well: dict[Pair, bool] = {}
    for number, edges in enumerate(rounds(nodes)):
        mine = next((pair for pair in edges if place.node in pair), None)
        status = None
        if mine is not None:
            between = Place(mine.index(place.node), mine, address_of.get(mine[0], mine[0]), place.port + 1 + number)
            status = try_pair(between, mine).status
        said = meeting.exchange(status, seconds)
        by_node = {place.nodes[rank]: status for rank, status in said.items()}
        went_well |= {pair: all(by_node.get(node) == OK for node in pair) for pair in edges}
    return at_fault(nodes, went_well)


def blamed(check: Check, node: str, faults: Sequence[str]) -> Check:
    """The failed check of all nodes, as it stands in one node's report once it is known who is at fault."""
    if not faults:
        return replace(check, found=f"{check.found}; no node is at fault alone")
    if node in faults:
        return replace(check, found=f"{check.found}; it fails with both neighbours", is_shared=False)
    return replace(check, found=f"{check.found}; at fault: {', '.join(faults)}")
