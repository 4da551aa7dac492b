"""From an update plan to the responses of a micro-batch, and the row of tokens that `row_builder` makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from nemo_brorl.core.object_store import fetch_all
from nemo_brorl.policy.rows.row_layout import Packing
from nemo_brorl.types import ChunkArrays, Float32, Int32, Int64, MicroBatch, UpdatePlan


@dataclass(frozen=True)
class Response:
    """One response with what the loss needs."""

    segment: int  # index of its segment in the row's input
    index: int  # within the segment
    token_ids: Int32  # [T]
    log_probs: Float32  # [T], when it was sampled
    advantage: float
    is_fresh: bool  # sampled by the weights that the update starts from


@dataclass(frozen=True)
class PackedSegment:
    """A prompt and the responses that share it."""

    prompt_ids: Int32  # [P], at least one token
    responses: tuple[Response, ...]


@dataclass(frozen=True)
class Row:
    """One micro-batch as the model reads it on one rank: T tokens, n of them predict a response token."""

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    packing: Packing
    sampled_log_probs: Tensor  # [n] float32
    advantages: Tensor  # [n] float32
    is_fresh: Tensor  # [n] bool
    responses: tuple[Response, ...]  # of the whole micro-batch, in the order their tokens have in [n]
    response_index: Int64  # [n] which of `responses` a token is of
    token_index: Int64  # [n] where in the response

    @property
    def num_loss_tokens(self) -> int:
        return len(self.advantages)


class GroupArrays:
    """The responses of one group, cut out of its chunks."""

    def __init__(self, chunks: Sequence[ChunkArrays]) -> None:
        self.chunks = chunks
        self.first = np.cumsum([0, *(len(chunk.offsets) - 1 for chunk in chunks)])  # [chunks + 1] first rollout of each

    def response(self, rollout: int) -> tuple[Int32, Float32]:
        """Token ids and sampled log-probs [T] of one rollout of the group."""
        chunk = int(np.searchsorted(self.first, rollout, side="right")) - 1
        arrays, local = self.chunks[chunk], rollout - int(self.first[chunk])
        tokens = slice(arrays.offsets[local], arrays.offsets[local + 1])
        return arrays.token_ids[tokens], arrays.log_probs[tokens]


def fetch_groups(plan: UpdatePlan, micro_batches: Iterable[MicroBatch]) -> dict[int, GroupArrays]:
    """The arrays of the groups that these micro-batches use, in one call to the object store."""
    used = sorted({segment.group for micro in micro_batches for segment in micro.segments})
    arrays = iter(fetch_all([data for group in used for data in plan.groups[group].chunks]))
    return {group: GroupArrays([next(arrays) for _ in plan.groups[group].chunks]) for group in used}


def segments_of(plan: UpdatePlan, micro: MicroBatch, groups: Mapping[int, GroupArrays]) -> list[PackedSegment]:
    """What a micro-batch of the plan holds."""
    segments = []
    for number, segment in enumerate(micro.segments):
        planned = plan.groups[segment.group]
        responses = tuple(
            Response(
                number,
                index,
                *groups[segment.group].response(rollout),
                float(planned.advantages[rollout]),
                planned.staleness == 0,
            )
            for index, rollout in enumerate(segment.rollouts)
        )
        segments.append(PackedSegment(planned.prompt_ids, responses))
    return segments
