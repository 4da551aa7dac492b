"""Take a micro-batch's responses from an update plan, and describe the row of tokens that `row_builder` makes of them.

A row's layout says which tokens attend to which, and every attention backend follows it. A row is cut into blocks. A
block is `num` segments of `length` tokens each, end to end. A segment attends to itself causally, and before that to
all spans that its block names. A span is part of the *context*. Without context parallelism the context is the row
itself. With it, the context is the segments that are cut over the ranks, put together again (`gather_context`).

So a response names the spans of its prompt and of whatever else it shares with other responses. A piece of a long
segment names what precedes it. No mask is needed, because spans are attended to as a whole.
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

HIDDEN = -1  # `Sight.key_last` of a key that no query attends to


@dataclass(frozen=True)
class RowSettings:
    """Settings that all rows of tokens on one rank have in common."""

    device: torch.device
    multiple: int = 1  # the number of tokens is padded to a multiple of it
    context_rank: int = 0
    context_size: int = 1
    attention: str = "sdpa"  # attention backend: flash, flex or sdpa
    min_shared_tokens: int = 0  # fewest tokens of a shared segment beyond a prompt; 0: only prompts are shared


@dataclass(frozen=True)
class Span:
    """Context rows [start + i * stride, start + i * stride + length), which segment i of a block attends to as a whole.

    With stride 0 all segments attend to the same rows.
    """

    start: int
    length: int
    stride: int = 0


@dataclass(frozen=True)
class Block:
    """A block of `num` segments of `length` tokens, which all attend to the spans in `sees` and then to themselves.

    The spans are their ancestors, or their own past under context parallelism.
    """

    num: int
    length: int
    sees: tuple[Span, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num * self.length


@dataclass(frozen=True)
class Sight:
    """The layout's rules token by token, for attention backends that take a mask.

    Keys are the context (under context parallelism), then the row. Segments are numbered so that the ones that attend
    to a segment are those after it up to a last number. A query attends to the keys of its own segment and of its
    ancestors that do not come after it.
    """

    query_segment: Tensor  # [T] int32, number of the query's segment
    query_position: Tensor  # [T] int32, position of the query
    key_segment: Tensor  # [S] int32, number of the key's segment
    # [S] int32, last segment that attends to the key. HIDDEN: padding, or a token that the context has too.
    key_last: Tensor
    key_position: Tensor  # [S] int32, position of the key


@dataclass(eq=False)
class Packing(PackedSeqParams):
    """Layout of a row on this rank, which travels through Megatron as its `packed_seq_params`.

    Its own `qkv_format` avoids Megatron's code for packed sequences, a Python loop per document and layer.
    """

    qkv_format: str = "shared_prompt"
    blocks: tuple[Block, ...] = ()
    positions: Tensor | None = None  # [T] int64, positions that continue those of the prompt
    num_positions: int = 0  # one more than the largest position
    source_rows: Tensor | None = None  # [u] int64, index of the token that predicts each sampled token
    targets: Tensor | None = None  # [u] int64, ids of the sampled tokens
    temperature: float = 1.0  # log-probs are those of softmax(logits / temperature)
    num_cut: int = 0  # tokens at the start of the row whose segments are cut over the context-parallel ranks
    # [C] int64, index of each context row among the cut tokens of all ranks, end to end.
    context_order: Tensor | None = None
    attention: str = "sdpa"  # attention backend of `RowSettings`
    # [T, layers, k] experts of each token, or NO_ROUTE, in the engine's format. They are on the host until the model
    # reads the row: those of a whole update of Qwen3-30B-A3B take more memory than the rest of the policy.
    routes: Tensor | None = field(default=None, repr=False)
    sight: Sight | None = None  # None: the backend follows the blocks
    rotation: Tensor | None = field(default=None, repr=False)  # rotation table, set by `rotary.PackedRotary`
    caches: dict[Any, Any] = field(default_factory=dict, repr=False)  # results that a backend derives once per row


@dataclass(frozen=True)
class Response:
    """One response of a micro-batch, with everything that the loss needs."""

    packed_group: int  # index of its packed group in the row's input
    index: int  # index within the packed group
    token_ids: Int32  # [T]
    log_probs: Float32  # [T] log-probs of the sampler
    advantage: float | Float32  # one number, or [K] where each of its turns has its own
    is_fresh: bool  # True: sampled by the weights that the update starts from
    is_measured: bool = True  # copy of `PlannedGroup.is_measured`
    is_sampled: Bool | None = None  # [T] False: the token is an observation; None: all tokens were sampled
    place: tuple[int, int] = (0, 0)  # index of the group in the plan, index of the rollout in the group
    routes: Routes | None = None  # [T, layers, k] routes, as in ChunkArrays

    @cached_property
    def counts(self) -> Bool:
        """Mask [T] of the response's tokens that count in the loss: the sampled ones."""
        if self.is_sampled is None:
            return np.ones(len(self.token_ids), bool)
        return self.is_sampled

    @property
    def is_plain(self) -> bool:
        """True for a response of one turn with one advantage, whose tokens were all sampled."""
        return self.is_sampled is None and not isinstance(self.advantage, np.ndarray)

    @property
    def num_sampled(self) -> int:
        return len(self.token_ids) if self.is_sampled is None else int(self.is_sampled.sum())

    @property
    def num_turns(self) -> int:
        return 1 if self.is_sampled is None else len(self.turn_lengths)

    @cached_property
    def turns(self) -> Int64:
        """Index [T] of the turn that each token belongs to. An observation belongs to the turn before it."""
        begins = self.counts.copy()
        # A turn starts where a sampled token follows an observation.
        begins[1:] &= ~self.counts[:-1]
        # An observation before the first sampled token has no turn before it and belongs to the first one.
        return np.maximum(np.cumsum(begins) - 1, 0)

    @cached_property
    def turn_lengths(self) -> Int64:
        """Number of sampled tokens in each turn of the response, [K]."""
        return np.bincount(self.turns, weights=self.counts).astype(np.int64)

    @property
    def token_advantages(self) -> Float32:
        """Advantage of each token of the response, [T]."""
        if isinstance(self.advantage, np.ndarray):
            return self.advantage[self.turns]
        return np.full(len(self.token_ids), self.advantage, np.float32)


@dataclass(frozen=True)
class PackedGroup:
    """A prompt and those of its responses that are in one micro-batch."""

    prompt_ids: Int32  # [P], at least one token
    responses: tuple[Response, ...]
    prompt_routes: Routes | None = None  # [P, layers, k] routes of the prompt's tokens


@dataclass(frozen=True)
class Row:
    """One micro-batch as the model reads it on one rank.

    It has T tokens, of which u predict a sampled token. Responses that share a sampled token count it once each, n
    tokens in all.
    """

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    packing: Packing
    sampled_log_probs: Tensor  # [n] float32
    advantages: Tensor  # [n] float32
    turn_lengths: Tensor  # [n] float32, number of sampled tokens in the token's turn
    is_fresh: Tensor  # [n] bool
    responses: tuple[Response, ...]  # R responses of the whole micro-batch, in the order of their tokens in [n]
    response_index: Int64  # [n] index into `responses` of the token's response
    token_index: Int64  # [n] index of the token in its response
    response_of: Tensor  # [n] int64, copy of `response_index` on the model's device
    response_lengths: Tensor  # [R] float32, number of sampled tokens in each response
    num_turns: Tensor  # [R] float32, number of turns in each response
    measured: Tensor  # [M] int64, indices of the responses that `MeasuredGain` counts
    score_index: Tensor | None = None  # [n] int64, index into the u scores; None: no token is shared

    @property
    def num_loss_tokens(self) -> int:
        return len(self.advantages)

    def draws(self, seed: int) -> Float32:
        """Return a uniform random number in [0, 1) for each of the packed row's n loss tokens.

        It depends only on the seed, the rollout and the token's index in it, not on how rollouts are packed.
        """
        drawn = [np.empty(0, np.float32)]
        for response in self.responses:
            # The seed has the identity of the response, so that packing into rows and ranks does not change the draws.
            random = np.random.default_rng((seed, *response.place))
            num = len(response.token_ids)
            of_response = random.random(num, np.float32)
            drawn.append(of_response)
        begins = np.cumsum([len(part) for part in drawn])
        # Numbers are drawn for all tokens, also for those of other context-parallel ranks, so that ranks agree.
        first = begins[self.response_index]
        places = first + self.token_index
        return np.concatenate(drawn)[places]

    @property
    def num_fresh_tokens(self) -> int:
        """Number of the packed row's loss tokens that were sampled by the weights from which the update starts.

        It is computed on the host, while `is_fresh` may be on a GPU.
        """
        is_fresh = np.array([response.is_fresh for response in self.responses], np.bool_)
        return int(is_fresh[self.response_index].sum())


class GroupArrays:
    """Token ids, log-probs and routes of one group's chunks, from which single responses are cut."""

    def __init__(self, chunks: Sequence[ChunkArrays]) -> None:
        self.chunks = chunks
        sizes = [len(chunk.offsets) - 1 for chunk in chunks]
        self.first = np.cumsum([0, *sizes])  # [chunks + 1] index of the first rollout of each chunk

    def response(self, rollout: int) -> tuple[Int32, Float32, Bool | None]:
        """Return token ids and the sampler's log-probs [T] of one rollout, and the mask of its sampled tokens.

        The mask is None where all tokens were sampled.
        """
        chunk, tokens = self._find(rollout)
        is_sampled = None if chunk.is_sampled is None else chunk.is_sampled[tokens]
        return chunk.token_ids[tokens], chunk.log_probs[tokens], is_sampled

    def routes(self, rollout: int) -> Routes | None:
        """Return the experts [T, layers, k] that the engine chose for one rollout's tokens, or None if unknown."""
        chunk, tokens = self._find(rollout)
        return None if chunk.routes is None else chunk.routes[tokens]

    def prompt_routes(self) -> Routes | None:
        """Return the experts [P, layers, k] that an engine chose for the prompt's tokens, or None if they are unknown.

        They come from the group's first chunk of rollouts in which they are recorded.
        """
        for chunk in self.chunks:
            if chunk.prompt_routes is not None:
                return chunk.prompt_routes
        return None

    def _find(self, rollout: int) -> tuple[ChunkArrays, slice]:
        """Return the chunk of a group's rollouts that holds this rollout, and the slice of its tokens in the chunk."""
        # This is the last chunk that starts at or before the rollout. Empty chunks start where the next one does.
        num_begun = int(np.searchsorted(self.first, rollout, side="right"))
        number = num_begun - 1
        chunk = self.chunks[number]
        local = rollout - int(self.first[number])
        return chunk, slice(chunk.offsets[local], chunk.offsets[local + 1])


def fetch_groups(plan: UpdatePlan, micro_batches: Iterable[MicroBatch]) -> dict[int, GroupArrays]:
    """Return the rollout arrays of all groups in the given micro-batches, with one call to Ray's object store."""
    used: set[int] = set()
    for micro_batch in micro_batches:
        used.update(group_slice.group for group_slice in micro_batch.slices)
    chunks: list[Any] = []
    for group in sorted(used):
        chunks += plan.groups[group].chunks
    # Each call to the object store has a fixed cost and a group has many chunks, so one call fetches all.
    arrays = fetch_all(chunks)
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
    """Return the prompts and responses of one micro-batch of an update plan.

    `groups` are the fetched rollout arrays of groups, by the group's index in the plan.
    """
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
