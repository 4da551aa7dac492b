"""Messages between the driver and an engine about chunks: requests, answers and reports of progress. Imports neither
torch nor vllm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_brorl.types import Bool, ChunkArrays, Int32, Int64, PartialRollouts, Period


@dataclass(frozen=True)
class ChunkProgress:
    """How far an engine is with a chunk."""

    call_id: int
    num_begun: int  # rollouts with a token
    num_ended: int
    age: float  # tokens that those begun and not ended have, on average


# Of the chunks in an engine's batch that have begun.
Progress = tuple[ChunkProgress, ...]


@dataclass(frozen=True)
class ChunkMeta:
    """The small part of a chunk; the driver fetches this and leaves the ChunkArrays where they are."""

    call_id: int  # which call of `generate` this answers
    uid: str  # of the prompt
    indices: Int32  # [m] places in the group, ascending, of the rollouts that have ended
    lengths: Int32  # [m]
    is_stopped: Bool  # [m]
    version: int
    newest_version: int
    partial: PartialRollouts | None = None  # the others, when the chunk was cut; without their data
    num_sampled: Int32 | None = None  # [m], as in RolloutChunk
    progress: Progress = ()  # of the engine's other chunks
    period: Period | None = None


@dataclass(frozen=True)
class ReturnedChunk:
    """The engine gave the chunk back before it sampled a token of it, or dropped it."""


@dataclass(frozen=True)
class ChunkFailure:
    """The engine can no longer be trusted: a step failed, or what it sampled makes no sense."""

    reason: str
    is_garbage: bool = False


# What to know of a chunk, its rollouts that ended, and those that were cut off.
Reply = tuple[ChunkMeta | ChunkFailure | ReturnedChunk, ChunkArrays | None, ChunkArrays | None]


def response_lengths(arrays: ChunkArrays) -> Int32:
    """Return the number of tokens [n] of each response."""
    offsets: Int64 = arrays.offsets
    return np.diff(offsets).astype(np.int32)


def no_arrays(num: int) -> ChunkArrays:
    """Return `num` responses without a token."""
    return ChunkArrays(
        token_ids=np.zeros(0, np.int32),
        log_probs=np.zeros(0, np.float32),
        offsets=np.zeros(num + 1, np.int64),
    )
