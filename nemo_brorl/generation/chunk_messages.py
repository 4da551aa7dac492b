"""Messages between the driver and an engine about chunks: replies and progress reports.

This module imports neither torch nor vllm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_brorl.types import Bool, ChunkArrays, Int32, Int64, PartialRollouts, Period


@dataclass(frozen=True)
class ChunkProgress:
    """Progress of one chunk on its engine."""

    call_id: int
    num_started: int  # rollouts that have at least one token
    num_ended: int
    age: float  # mean number of tokens of its running rollouts


# One entry for each chunk in an engine's batch that has started.
Progress = tuple[ChunkProgress, ...]


@dataclass(frozen=True)
class ChunkMeta:
    """The small part of an engine's reply. The driver fetches it, and leaves the ChunkArrays in the object store."""

    call_id: int  # id of the call of `generate` that this answers
    uid: str  # prompt uid
    indices: Int32  # [m] indices in the group of the rollouts that have ended, ascending
    lengths: Int32  # [m]
    is_stopped: Bool  # [m]
    version: int
    newest_version: int
    partial: PartialRollouts | None = None  # unfinished rollouts of a chunk that was cut, without their data
    num_sampled: Int32 | None = None  # [m], as in RolloutChunk
    progress: Progress = ()  # progress of the engine's other chunks; () if a report was sent just before
    period: Period | None = None


@dataclass(frozen=True)
class ReturnedChunk:
    """Reply for a chunk that the engine dropped, or gave back before it had sampled a token of it."""


@dataclass(frozen=True)
class ChunkFailure:
    """Reply of an engine that must be replaced: a step failed, or what it sampled makes no sense."""

    reason: str
    is_garbage: bool = False


# The small part, the tokens of the rollouts that ended, and the tokens of those that were cut off.
Reply = tuple[ChunkMeta | ChunkFailure | ReturnedChunk, ChunkArrays | None, ChunkArrays | None]


def response_lengths(arrays: ChunkArrays) -> Int32:
    """Return the number of tokens of each of n responses, as an array [n]."""
    offsets: Int64 = arrays.offsets
    return np.diff(offsets).astype(np.int32)


def no_arrays(num: int) -> ChunkArrays:
    """Return the arrays of tokens and log-probabilities of `num` responses that have no token."""
    return ChunkArrays(
        token_ids=np.zeros(0, np.int32),
        log_probs=np.zeros(0, np.float32),
        offsets=np.zeros(num + 1, np.int64),
    )
