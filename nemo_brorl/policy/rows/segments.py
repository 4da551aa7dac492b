"""Cut a row's responses into segments that share prefixes, and assign each segment to a context-parallel rank.

A segment is a run of tokens. The responses of a packed group are a tree of segments, whose root has their prompt. If
responses agree token by token for long enough, these tokens are one segment that all of them run through. What follows
are its branches. A segment attends to its ancestors and to itself.
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

# A segment stays whole if a rank's share of the row has room for this many of its length. Then segments spread evenly.
_WHOLE_PER_RANK = 4


@dataclass(eq=False)
class Segment:
    """A node in the tree of a packed group's responses: tokens that attend to each other.

    `choose_owners` sets `owner`. Placing the segment in a row sets `span` and `rows`.
    """

    token_ids: Int32
    num_given: int  # tokens at its start that are not predicted, because they are a prompt
    responses: tuple[Response, ...] = ()  # responses that contain its predicted tokens
    first_token: int = 0  # index of its first predicted token in these responses
    parent: Segment | None = None
    prompt_routes: Routes | None = None  # [P, layers, k] routes of its prompt's tokens
    children: list[Segment] = field(default_factory=list)
    number: int = -1  # number among the row's segments; a subtree's numbers follow its root's
    last_number: int = -1  # last number in its subtree
    owner: int | None = 0  # context-parallel rank; None: cut over all ranks
    span: Span | None = None  # rows of the context that it has
    # Index of each of its tokens in this rank's row. -1: the token is on another rank.
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def first_position(self) -> int:
        return 0 if self.parent is None else self.parent.first_position + self.parent.length

    @property
    def ancestors(self) -> list[Segment]:
        """Ancestors of a segment in the prefix tree of a group's responses, from the root to the segment's parent."""
        if self.parent is None:
            return []
        return [*self.parent.ancestors, self.parent]

    @property
    def num_predicted(self) -> int:
        return len(self.token_ids) - self.num_given

    @property
    def row_before(self) -> int:
        """Index in this rank's row of the token before a prefix-tree segment's first predicted token.

        It is -1 where another rank has the token before.
        """
        if self.parent is None:
            return int(self.rows[self.num_given - 1])
        return int(self.parent.rows[-1])

    @property
    def known_routes(self) -> Iterator[tuple[Int64, Routes]]:
        """Pairs of row indices and MoE experts for tokens of a prefix-tree segment whose experts the engine recorded.

        They come from the last response that contains the segment. Only at the end of a response a token has no
        recorded experts, and the last response does not end with the segment unless all do.
        """
        if self.prompt_routes is not None:
            rows = self.rows[: self.num_given]
            yield rows, self.prompt_routes
        for response in self.responses[-1:]:
            if response.routes is not None:
                rows = self.rows[self.num_given :]
                yield rows, self.part_of(response.routes)

    def part_of(self, values: np.ndarray) -> np.ndarray:
        """Return the values of a prefix-tree segment's predicted tokens, out of a response's token values [T]."""
        end = self.first_token + self.num_predicted
        return values[self.first_token : end]


def build_segments(packed_groups: Sequence[PackedGroup], min_shared_tokens: int = 0) -> list[Segment]:
    """Return the segments of all groups of a micro-batch, in the order in which a row of tokens has them.

    A segment is a run of tokens that responses share, or that one response has alone. Groups that are a single segment
    come first, by length. Then come the prefix trees, each segment before its branches. Empty responses are left out.
    `min_shared_tokens` is the least number of tokens that a shared segment beyond a prompt has. With 0 only prompts are
    shared.
    """
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
    # Adjacent segments of equal length become one block, which is one call of the attention.
    documents.sort(key=lambda document: document.length)
    return documents + trees


def number_segments(segments: Sequence[Segment]) -> None:
    """Set each prefix-tree segment's number in a packed row and the last number in its subtree.

    Only FlexAttention needs these numbers.
    """
    for number, segment in enumerate(segments):
        segment.number = number
        for ancestor in (*segment.ancestors, segment):
            ancestor.last_number = number


def _tree(packed_group: PackedGroup, min_shared_tokens: int) -> Segment:
    """Return the root of the prefix tree of a group's responses.

    Responses are sorted by their tokens, so that those with a common prefix are neighbours. A run of neighbours shares
    as many tokens as its least similar pair of neighbours does. If these are enough, they become a segment that the run
    shares. Then the run is cut into shorter runs, one for each continuation.
    """
    responses = [response for response in packed_group.responses if len(response.token_ids)]
    if min_shared_tokens == 0 and len(responses) > 1:
        return _star(packed_group, responses)
    # In sorted order any two responses share the minimum of what the neighbours between them share.
    responses.sort(key=_sorting_key)
    shared = [0]  # number of tokens that a response shares with the one before
    for one, other in pairwise(responses):
        shared.append(num_shared(one.token_ids, other.token_ids))
    root: Segment | None = None
    runs: list[tuple[int, int, Segment | None]] = [(0, len(responses), None)]  # start, end, parent segment
    while runs:
        low, high, parent = runs.pop()
        run = responses[low:high]
        start = _end(parent)
        common = min(shared[low + 1 : high], default=len(run[0].token_ids))
        is_branch = len(run) == 1 or _is_enough(common - start, min_shared_tokens, parent)
        if parent is None:
            # The root always has the prompt, and also what all responses share if that is enough.
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
    """Return a root segment that holds the prompt of a group, with a branch for every response."""
    root = Segment(packed_group.prompt_ids, len(packed_group.prompt_ids), prompt_routes=packed_group.prompt_routes)
    root.children = [Segment(response.token_ids, 0, (response,), parent=root) for response in responses]
    return root


def _sorting_key(response: Response) -> bytes:
    return response.token_ids.astype(">i4").tobytes()


def num_shared(one: Int32, other: Int32) -> int:
    """Return the number of tokens that two responses share at their start."""
    num = min(len(one), len(other))
    differs = one[:num] != other[:num]
    return int(differs.argmax()) if differs.any() else num


def _end(segment: Segment | None) -> int:
    """Return the index of a response's first token after this segment of its prefix tree, or 0 without a segment."""
    if segment is None:
        return 0
    return segment.first_token + segment.length - segment.num_given


def _is_enough(num_tokens: int, min_shared_tokens: int, parent: Segment | None) -> bool:
    depth = 0 if parent is None else 1 + len(parent.ancestors)
    return 0 < min_shared_tokens <= num_tokens and depth <= DEEPEST


def _in_order(segment: Segment) -> Iterator[Segment]:
    """Yield the segments of a prefix tree, each segment before its branches.

    Of a segment's branches, those without branches of their own come first, by length.
    """
    yield segment
    segment.children.sort(key=lambda child: (len(child.children) > 0, child.length, child.responses[0].index))
    for child in segment.children:
        yield from _in_order(child)


def choose_owners(segments: Sequence[Segment], context_size: int) -> None:
    """Give each prefix-tree segment, longest first, to the context-parallel rank that has the fewest tokens so far.

    Segments that responses share and long segments are split over all ranks instead. All ranks make the same choice.
    """
    if context_size == 1:
        return
    num_tokens = sum(segment.length for segment in segments)
    longest_whole = num_tokens // (context_size * _WHOLE_PER_RANK)
    loads = [(0, rank) for rank in range(context_size)]
    for segment in sorted(segments, key=lambda segment: -segment.length):
        if segment.children or segment.length > longest_whole:
            segment.owner = None
            continue
        # The heap's first entry is the rank with the fewest tokens, the lowest number first, on every rank.
        load, rank = loads[0]
        segment.owner = rank
        heapq.heapreplace(loads, (load + segment.length, rank))


def runs_of_equals(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield lists of a packed row's adjacent segments that have equal length and the same parent in the prefix tree."""

    def length_and_parent(segment: Segment) -> tuple[int, int]:
        return segment.length, id(segment.parent)

    for _, alike in groupby(segments, key=length_and_parent):
        yield list(alike)


def routes_of_row(segments: Sequence[Segment], num_tokens: int) -> Routes | None:
    """Return the engine's MoE experts [tokens, layers, k] for the tokens in this rank's row, or None if none are known.

    The segments of the prefix trees must have been placed in the row. Tokens whose experts are unknown get `NO_ROUTE`.
    """
    known: list[tuple[Int64, Routes]] = []
    for segment in segments:
        known += segment.known_routes
    if not known:
        return None
    _, first = known[0]
    shape = (num_tokens, *first.shape[1:])
    row_routes = np.full(shape, NO_ROUTE, first.dtype)
    for rows, routes in known:
        is_here = rows >= 0
        indices = rows[is_here]
        row_routes[indices] = routes[is_here]
    return row_routes
