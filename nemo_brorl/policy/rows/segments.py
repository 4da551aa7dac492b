"""Segments of a row: tokens that attend to each other, and the context-parallel rank each belongs to.

The responses of a packed group are a tree of segments. Its root holds their prompt; where responses agree token by
token for long enough, the tokens stand once, in a segment that all of them run through, and what comes after is its
branches. A segment attends to its ancestors and to itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np

from nemo_brorl.algorithm.packing import DEEPEST
from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response, Span
from nemo_brorl.types import (
    NO_ROUTE,
    Int32,
    Int64,
    Routes,
)

# a segment stays whole if a rank's share of the row holds this many of its length: they spread evenly then
_WHOLE_PER_RANK = 4


@dataclass(eq=False)
class Segment:
    """Tokens that attend to each other. Placing it fills the last three fields."""

    token_ids: Int32
    num_given: int  # tokens at its start that are not predicted: those of a prompt
    responses: tuple[Response, ...] = ()  # those that its predicted tokens are of
    first_token: int = 0  # place of the first predicted token in these responses
    parent: Segment | None = None
    prompt_routes: Routes | None = None  # [P, layers, k] of its prompt's tokens
    children: list[Segment] = field(default_factory=list)
    number: int = -1  # in the order of the row's segments: those of a subtree follow its root
    last_number: int = -1  # of its subtree
    owner: int | None = 0  # context-parallel rank, None: cut over all
    span: Span | None = None  # its rows in the context
    # of its tokens in this rank's row, -1: on another rank
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def first_position(self) -> int:
        return 0 if self.parent is None else self.parent.first_position + self.parent.length

    @property
    def ancestors(self) -> list[Segment]:
        """From the root on."""
        if self.parent is None:
            return []
        return [*self.parent.ancestors, self.parent]

    @property
    def num_predicted(self) -> int:
        return len(self.token_ids) - self.num_given

    @property
    def row_before(self) -> int:
        """The row that predicts its first predicted token, -1 on another rank."""
        if self.parent is None:
            return int(self.rows[self.num_given - 1])
        return int(self.parent.rows[-1])

    @property
    def known_routes(self) -> Iterator[tuple[Int64, Routes]]:
        """Rows of some of its tokens, with their routes. Of the responses that it is of, the last does not end with it
        unless all do: only at its end a response has a token without a route."""
        if self.prompt_routes is not None:
            rows = self.rows[: self.num_given]
            yield rows, self.prompt_routes
        for response in self.responses[-1:]:
            if response.routes is not None:
                rows = self.rows[self.num_given :]
                yield rows, self.part_of(response.routes)

    def part_of(self, values: np.ndarray) -> np.ndarray:
        """Of a response's values [T] those of its predicted tokens."""
        end = self.first_token + self.num_predicted
        return values[self.first_token : end]


def build_segments(packed_groups: Sequence[PackedGroup], min_shared_tokens: int = 0) -> list[Segment]:
    """Packed groups of a single segment by length, then every tree, each segment before its branches. Empty responses
    take no place. `min_shared_tokens`: tokens of a shared segment that is not a prompt; 0: only prompts are shared."""
    documents: list[Segment] = []
    trees: list[Segment] = []
    for packed_group in packed_groups:
        assert len(packed_group.prompt_ids), (
            "a prompt has at least one token: nothing else predicts the first response token"
        )
        if not any(len(response.token_ids) for response in packed_group.responses):
            continue
        root = _tree(packed_group, min_shared_tokens)
        if root.children:
            trees += _in_order(root)
        else:
            documents.append(root)
    # Equal lengths side by side become one block, which is one call of the attention.
    documents.sort(key=lambda document: document.length)
    return documents + trees


def number_segments(segments: Sequence[Segment]) -> None:
    """Set `number` and `last_number` of a row's segments, which only a mask for FlexAttention needs."""
    for number, segment in enumerate(segments):
        segment.number = number
        for ancestor in (*segment.ancestors, segment):
            ancestor.last_number = number


def _tree(packed_group: PackedGroup, min_shared_tokens: int) -> Segment:
    """The root of the tree of a packed group's responses.

    In the order of their tokens, responses that share a prefix are neighbours, and what a run of them shares is the
    least of what its neighbours share. So a run is a segment of what it shares, if that is enough, and then the runs in
    which it goes on.
    """
    responses = [response for response in packed_group.responses if len(response.token_ids)]
    if min_shared_tokens == 0 and len(responses) > 1:
        return _star(packed_group, responses)
    # Sorted, any two responses share what the least of the neighbours between them share, so neighbours are enough.
    responses.sort(key=_sorting_key)
    shared = [0]  # tokens that a response shares with the one before
    for one, other in pairwise(responses):
        shared.append(num_shared(one.token_ids, other.token_ids))
    root: Segment | None = None
    runs: list[tuple[int, int, Segment | None]] = [(0, len(responses), None)]  # from, to, what they stand on so far
    while runs:
        low, high, parent = runs.pop()
        run = responses[low:high]
        start = _end(parent)
        common = min(shared[low + 1 : high], default=len(run[0].token_ids))
        is_branch = len(run) == 1 or _is_enough(common - start, min_shared_tokens, parent)
        if parent is None:
            # The root holds the prompt in any case, and what all responses share only where that is enough.
            end = common if is_branch else 0
            token_ids = np.concatenate([packed_group.prompt_ids, run[0].token_ids[:end]])
            parent = Segment(token_ids, len(packed_group.prompt_ids), tuple(run) if end else ())
            parent.prompt_routes = packed_group.prompt_routes
            root = parent
        elif is_branch and common > start:
            branch = Segment(run[0].token_ids[start:common], 0, tuple(run), start, parent)
            parent.children.append(branch)
            parent = branch
        if len(run) > 1:
            cuts = [place for place in range(low + 1, high) if shared[place] == common]
            bounds = [low, *cuts, high]
            runs += [(begin, end, parent) for begin, end in pairwise(bounds)]
    assert root is not None
    return root


def _star(packed_group: PackedGroup, responses: Sequence[Response]) -> Segment:
    """Return a prompt with a branch for every response."""
    root = Segment(packed_group.prompt_ids, len(packed_group.prompt_ids), prompt_routes=packed_group.prompt_routes)
    root.children = [Segment(response.token_ids, 0, (response,), parent=root) for response in responses]
    return root


def _sorting_key(response: Response) -> bytes:
    return response.token_ids.astype(">i4").tobytes()


def num_shared(one: Int32, other: Int32) -> int:
    """Tokens at the start of two responses that are the same."""
    num = min(len(one), len(other))
    differs = one[:num] != other[:num]
    return int(differs.argmax()) if differs.any() else num


def _end(segment: Segment | None) -> int:
    """Place in the responses after a segment."""
    if segment is None:
        return 0
    return segment.first_token + segment.length - segment.num_given


def _is_enough(num_tokens: int, min_shared_tokens: int, parent: Segment | None) -> bool:
    depth = 0 if parent is None else 1 + len(parent.ancestors)
    return 0 < min_shared_tokens <= num_tokens and depth <= DEEPEST


def _in_order(segment: Segment) -> Iterator[Segment]:
    """A tree, each segment before its branches: those that end by length, then those that branch again."""
    yield segment
    segment.children.sort(key=lambda child: (len(child.children) > 0, child.length, child.responses[0].index))
    for child in segment.children:
        yield from _in_order(child)


def choose_owners(segments: Sequence[Segment], context_size: int) -> None:
    """Longest first, each to the rank with the fewest tokens so far. All ranks choose alike."""
    if context_size == 1:
        return
    num_tokens = sum(segment.length for segment in segments)
    longest_whole = num_tokens // (context_size * _WHOLE_PER_RANK)
    loads = [(0, rank) for rank in range(context_size)]
    for segment in sorted(segments, key=lambda segment: -segment.length):
        if segment.children or segment.length > longest_whole:
            segment.owner = None
            continue
        # The rank with the least so far, the lowest number first: all ranks choose by the same order.
        load, rank = loads[0]
        segment.owner = rank
        heapq.heapreplace(loads, (load + segment.length, rank))


def runs_of_equals(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Neighbours of equal length and parent."""

    def length_and_parent(segment: Segment) -> tuple[int, int]:
        return segment.length, id(segment.parent)

    for _, alike in groupby(segments, key=length_and_parent):
        yield list(alike)


def routes_of_row(segments: Sequence[Segment], num_tokens: int) -> Routes | None:
    """[tokens, layers, k] experts of the tokens of this rank's row, in which the segments have been placed. None:
    none is known."""
    known: list[tuple[Int64, Routes]] = []
    for segment in segments:
        known += segment.known_routes
    if not known:
        return None
    _, first = known[0]
    shape = (num_tokens, *first.shape[1:])
    found = np.full(shape, NO_ROUTE, first.dtype)
    for rows, routes in known:
        is_here = rows >= 0
        places = rows[is_here]
        found[places] = routes[is_here]
    return found
