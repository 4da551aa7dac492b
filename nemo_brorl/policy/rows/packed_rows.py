"""Responses of a micro-batch, taken from an update plan, and the row of tokens that `row_builder` makes of them.

A row's layout says which of its tokens see which; every attention follows it. A row is cut into blocks. A block is
`num` segments of `length` tokens each, end to end; a segment attends to itself causally, and before that to all of the
spans its block names. A span lies in the *context*: without context parallelism that is the row itself, with it the
segments that are cut over the ranks, put together again (`gather_context`).

So a response names its prompt and whatever else it shares with other responses, from the prompt on, and a piece of a
long segment names what comes before it. No mask is needed: what is not causal is seen whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from nemo_brorl.cluster.object_store import fetch_all
from nemo_brorl.types import (
    Bool,
    ChunkArrays,
    Float32,
    Int32,
    Int64,
    MicroBatch,
    Routes,
    UpdatePlan,
)

Context = tuple[Tensor, Tensor]  # keys and values [C, K, D] of the context

HIDDEN = -1  # key_last of what no query sees


@dataclass(frozen=True)
class RowSettings:
    """What the rows of one rank have in common."""

    device: torch.device
    multiple: int = 1  # the number of tokens is one of it
    context_rank: int = 0
    context_size: int = 1
    attention: str = "sdpa"  # a backend of `attention`
    min_shared_tokens: int = 0  # as `build_segments`


@dataclass(frozen=True)
class Span:
    """Context rows [start + i * stride, start + i * stride + length), seen in full by segment i of a block; with stride
    0 all segments see the same."""

    start: int
    length: int
    stride: int = 0


@dataclass(frozen=True)
class Block:
    """`num` segments of `length` tokens, which all see `sees` (ancestors, their own past) and then themselves."""

    num: int
    length: int
    sees: tuple[Span, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num * self.length


@dataclass(frozen=True)
class Sight:
    """The same rules token by token, for backends that take a mask. Keys are the context (under context parallelism),
    then the row. Segments are numbered so that those which see one are the numbers after it up to a last one. A query
    sees the keys of its own segment and of its ancestors that are not after it."""

    query_segment: Tensor  # [T] int32
    query_position: Tensor  # [T] int32
    key_segment: Tensor  # [S] int32
    key_last: Tensor  # [S] int32, last segment that sees it; HIDDEN: padding, or a token that stands in the context too
    key_position: Tensor  # [S] int32


@dataclass(eq=False)
class Packing(PackedSeqParams):
    """A row's layout on this rank. Travels through Megatron as its `packed_seq_params`; the `qkv_format` of its own
    keeps Megatron's code for packed sequences, a Python loop per document and layer, out of the way."""

    qkv_format: str = "shared_prompt"
    blocks: tuple[Block, ...] = ()
    positions: Tensor | None = None  # [T] int64, counted on from the prompt
    num_positions: int = 0  # one more than the largest of them
    source_rows: Tensor | None = None  # [u] int64, the row that predicts each sampled token
    targets: Tensor | None = None  # [u] int64, the sampled tokens
    temperature: float = 1.0  # log-probs are of softmax(logits / temperature)
    num_cut: int = 0  # the row's first tokens, which belong to segments that are cut over the context-parallel ranks
    # [C] int64, for each context row its place in the ranks' cut tokens, end to end
    context_order: Tensor | None = None
    attention: str = "sdpa"  # the backend, as in `RowSettings`
    # [T, layers, k] experts of each token, or NO_ROUTE, in the engine's format. On the host until the model reads the
    # row: those of a whole update of Qwen3-30B-A3B take more than the rest of the policy
    routes: Tensor | None = field(default=None, repr=False)
    sight: Sight | None = None  # None: the backend follows the blocks
    rotation: Tensor | None = field(default=None, repr=False)  # the model's table, set by `rotary.PackedRotary`
    caches: dict[Any, Any] = field(
        default_factory=dict, repr=False
    )  # what a backend derives from the above, once per row


@dataclass(frozen=True)
class Response:
    """One response with what the loss needs."""

    packed_group: int  # index of its group in the row's input
    index: int  # within the packed group
    token_ids: Int32  # [T]
    log_probs: Float32  # [T], when it was sampled
    advantage: float | Float32  # [K] where its turns have their own
    is_fresh: bool  # sampled by the weights that the update starts from
    is_measured: bool = True  # as its group
    is_sampled: Bool | None = None  # [T] False: observed; None: all were sampled
    place: tuple[int, int] = (0, 0)  # group of the plan, rollout of the group
    routes: Routes | None = None  # [T, layers, k] as in ChunkArrays

    @cached_property
    def counts(self) -> Bool:
        """[T] whether the loss counts a token."""
        if self.is_sampled is None:
            return np.ones(len(self.token_ids), bool)
        return self.is_sampled

    @property
    def is_plain(self) -> bool:
        """Whether all its tokens were sampled, in one turn with one advantage."""
        return self.is_sampled is None and not isinstance(self.advantage, np.ndarray)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) if self.is_sampled is None else int(self.is_sampled.sum())

    @property
    def num_turns(self) -> int:
        return 1 if self.is_sampled is None else len(self.turn_lengths)

    @cached_property
    def turns(self) -> Int64:
        """[T] number of the turn that a token is of; what is observed belongs to the turn before."""
        begins = self.counts.copy()
        # A turn begins where a sampled token follows one that was observed.
        begins[1:] &= ~self.counts[:-1]
        # What is observed before the first sampled token has no turn before it: it counts to the first one.
        return np.maximum(np.cumsum(begins) - 1, 0)

    @cached_property
    def turn_lengths(self) -> Int64:
        """[K] sampled tokens of each turn."""
        return np.bincount(self.turns, weights=self.counts).astype(np.int64)

    @property
    def token_advantages(self) -> Float32:
        """[T] of each token."""
        if isinstance(self.advantage, np.ndarray):
            return self.advantage[self.turns]
        return np.full(len(self.token_ids), self.advantage, np.float32)


@dataclass(frozen=True)
class PackedGroup:
    """A prompt and the responses that share it."""

    prompt_ids: Int32  # [P], at least one token
    responses: tuple[Response, ...]
    prompt_routes: Routes | None = None  # [P, layers, k]


@dataclass(frozen=True)
class Row:
    """One micro-batch as the model reads it on one rank: T tokens, of which u predict a sampled one. Responses that
    share such a token count it once each: n of them."""

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    packing: Packing
    sampled_log_probs: Tensor  # [n] float32
    advantages: Tensor  # [n] float32
    turn_lengths: Tensor  # [n] float32, sampled tokens of the turn that a token is of
    is_fresh: Tensor  # [n] bool
    responses: tuple[Response, ...]  # of the whole micro-batch, in the order their tokens have in [n]
    response_index: Int64  # [n] which of `responses` a token is of
    token_index: Int64  # [n] where in the response
    response_of: Tensor  # [n] int64, `response_index` on the model's device
    response_lengths: Tensor  # [R] float32, sampled tokens of each of `responses`
    num_turns: Tensor  # [R] float32, turns of each of `responses`
    measured: Tensor  # [M] int64, indices of the `responses` that count for `MeasuredGain`
    score_index: Tensor | None = None  # [n] int64, which of the u; None: no token is shared

    @property
    def num_loss_tokens(self) -> int:
        return len(self.advantages)

    def draws(self, seed: int) -> Float32:
        """A number from 0 to 1 for every token [n], which depends on nothing but the seed and what token it is."""
        drawn = [np.empty(0, np.float32)]
        for response in self.responses:
            # Seeded by what token it is, not by where: the packing into rows and ranks must not change what is drawn.
            random = np.random.default_rng((seed, *response.place))
            num = len(response.token_ids)
            of_response = random.random(num, np.float32)
            drawn.append(of_response)
        begins = np.cumsum([len(part) for part in drawn])
        # Drawn for all tokens, also those that another context-parallel rank predicts: ranks then agree.
        first = begins[self.response_index]
        places = first + self.token_index
        return np.concatenate(drawn)[places]

    @property
    def num_fresh_tokens(self) -> int:
        """Known on the host, where `is_fresh` may be on a GPU."""
        is_fresh = np.array([response.is_fresh for response in self.responses], np.bool_)
        return int(is_fresh[self.response_index].sum())


class GroupArrays:
    """The responses of one group, cut out of its chunks."""

    def __init__(self, chunks: Sequence[ChunkArrays]) -> None:
        self.chunks = chunks
        sizes = [len(chunk.offsets) - 1 for chunk in chunks]
        self.first = np.cumsum([0, *sizes])  # [chunks + 1] first rollout of each

    def response(self, rollout: int) -> tuple[Int32, Float32, Bool | None]:
        """Token ids and sampled log-probs [T] of one rollout of the group, and which tokens were sampled; None: all."""
        chunk, tokens = self._find(rollout)
        is_sampled = None if chunk.is_sampled is None else chunk.is_sampled[tokens]
        return chunk.token_ids[tokens], chunk.log_probs[tokens], is_sampled

    def routes(self, rollout: int) -> Routes | None:
        """[T, layers, k] of one rollout."""
        chunk, tokens = self._find(rollout)
        return None if chunk.routes is None else chunk.routes[tokens]

    def prompt_routes(self) -> Routes | None:
        """[P, layers, k] of the first chunk that has them."""
        for chunk in self.chunks:
            if chunk.prompt_routes is not None:
                return chunk.prompt_routes
        return None

    def _find(self, rollout: int) -> tuple[ChunkArrays, slice]:
        """The chunk of a rollout, and where its tokens lie in there."""
        # The last chunk that begins at or before the rollout; empty chunks have the same first rollout as the next.
        num_begun = int(np.searchsorted(self.first, rollout, side="right"))
        number = num_begun - 1
        chunk = self.chunks[number]
        local = rollout - int(self.first[number])
        return chunk, slice(chunk.offsets[local], chunk.offsets[local + 1])


def fetch_groups(plan: UpdatePlan, micro_batches: Iterable[MicroBatch]) -> dict[int, GroupArrays]:
    """The arrays of the groups that these micro-batches use, in one call to the object store."""
    used: set[int] = set()
    for micro_batch in micro_batches:
        used.update(group_slice.group for group_slice in micro_batch.slices)
    wanted: list[Any] = []
    for group in sorted(used):
        wanted += plan.groups[group].chunks
    # One call for all chunks: each call to the object store has a fixed cost, and a group has many chunks.
    arrays = fetch_all(wanted)
    groups = {}
    start = 0
    for group in sorted(used):
        end = start + len(plan.groups[group].chunks)
        groups[group] = GroupArrays(arrays[start:end])
        start = end
    return groups


def build_packed_groups(
    plan: UpdatePlan,
    micro_batch: MicroBatch,
    groups: Mapping[int, GroupArrays],
) -> list[PackedGroup]:
    """What a micro-batch of the plan holds."""
    packed_groups = []
    for number, group_slice in enumerate(micro_batch.slices):
        planned = plan.groups[group_slice.group]
        group = groups[group_slice.group]
        responses = []
        for index, rollout in enumerate(group_slice.rollouts):
            token_ids, log_probs, is_sampled = group.response(rollout)
            advantage = planned.advantages[rollout]
            response = Response(
                packed_group=number,
                index=index,
                token_ids=token_ids,
                log_probs=log_probs,
                advantage=advantage if planned.advantages.ndim == 2 else float(advantage),
                is_fresh=planned.staleness == 0,
                is_measured=planned.is_measured,
                is_sampled=is_sampled,
                place=(group_slice.group, rollout),
                routes=group.routes(rollout),
            )
            responses.append(response)
        packed_groups.append(PackedGroup(planned.prompt_ids, tuple(responses), group.prompt_routes()))
    return packed_groups
