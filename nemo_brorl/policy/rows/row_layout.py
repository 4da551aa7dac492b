"""The layout of a packed row: which of its tokens see which. Made by `row_builder`, followed by every attention.

A row is cut into blocks. A block is `num` stretches of `length` tokens each, end to end; a stretch attends to itself
causally, and before that to all of the spans its block names. A span lies in the *context*: without context parallelism
that is the row itself, with it the stretches that are cut over the ranks, put together again (`gather_context`).

So a response names its prompt and whatever else it shares with other responses, from the prompt on, and a piece of a
long stretch names what comes before it. No mask is needed: what is not causal is seen whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

Context = tuple[Tensor, Tensor]  # keys and values [C, K, D] of the context


@dataclass(frozen=True)
class RowSettings:
    """What the rows of one rank have in common."""

    device: torch.device
    multiple: int = 1  # the number of tokens is one of it
    context_rank: int = 0
    context_size: int = 1
    attention: str = "sdpa"  # a backend of `attention`
    least_shared: int = 0  # as `stretches_of`


@dataclass(frozen=True)
class Span:
    """Context rows [start + i * stride, start + i * stride + length), seen in full by stretch i of a block; with stride
    0 all stretches see the same."""

    start: int
    length: int
    stride: int = 0


@dataclass(frozen=True)
class Block:
    """`num` stretches of `length` tokens, which all see `sees` (ancestors, their own past) and then themselves."""

    num: int
    length: int
    sees: tuple[Span, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num * self.length


@dataclass(frozen=True)
class Sight:
    """The same rules token by token, for backends that take a mask. Keys are the context (under context parallelism),
    then the row. Stretches are numbered so that those which see one are the numbers after it up to a last one. A query
    sees the keys of its own stretch and of its ancestors that are not after it."""

    query_stretch: Tensor  # [T] int32
    query_position: Tensor  # [T] int32
    key_stretch: Tensor  # [S] int32
    key_last: Tensor  # [S] int32, last stretch that sees it; HIDDEN: padding, or a token that stands in the context too
    key_position: Tensor  # [S] int32


HIDDEN = -1  # key_last of what no query sees


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
    num_cut: int = 0  # the row's first tokens, which belong to stretches that are cut over the context-parallel ranks
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
