"""Records of what a session has under way on its engines, and the chunks it hands on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nemo_brorl.generation.chunk_messages import ChunkMeta, Progress, no_arrays
from nemo_brorl.types import PartialRollouts, RolloutChunk, RolloutRequest


@dataclass
class ChunkInFlight:
    """A chunk that an engine was given."""

    call_id: int
    engine: int
    chunk: int
    num_rollouts: int
    meta: Any  # reference to the ChunkMeta to be
    data: Any  # reference to the ChunkArrays to be
    partial: Any  # reference to the ChunkArrays of what will have been cut
    is_asked_back: bool = False  # and the engine has not answered that
    is_given_back: bool = False


@dataclass
class EngineInUse:
    """An engine that a session gives chunks to."""

    actor: Any
    in_flight: dict[int, ChunkInFlight] = field(default_factory=dict)  # by call
    last_progress: Progress | None = None

    @property
    def num_rollouts(self) -> int:
        """Rollouts of all its chunks, ended ones included."""
        return sum(in_flight.num_rollouts for in_flight in self.in_flight.values())


class OpenCall(NamedTuple):
    """A call to an engine that has not been answered."""

    engine: int
    on_result: Callable[[Any], None]  # also takes the exception with which it fails


def answered_chunk(in_flight: ChunkInFlight, request: RolloutRequest, meta: ChunkMeta) -> RolloutChunk:
    """The answer that an engine gave; tokens stay where they are."""
    unfinished = None
    if meta.partial is not None:
        unfinished = dataclasses.replace(meta.partial, data=in_flight.partial)
    return RolloutChunk(
        request=request,
        indices=meta.indices,
        lengths=meta.lengths,
        is_stopped=meta.is_stopped,
        version=meta.version,
        newest_version=meta.newest_version,
        engine=in_flight.engine,
        data=in_flight.data,
        unfinished=unfinished,
    )


def unsampled_chunk(request: RolloutRequest, version: int) -> RolloutChunk:
    """The answer to a request that was cut before an engine had it: nothing has ended, and what it resumes is as it
    was. `version` is that of rollouts without a token."""
    nothing = np.zeros(0, np.int32)
    num = request.num_rollouts
    unfinished = request.resumed
    if unfinished is None:
        unfinished = PartialRollouts(request.indices, np.zeros(num, np.int32), version, no_arrays(num))
    return RolloutChunk(
        request=request,
        indices=nothing,
        lengths=nothing,
        is_stopped=np.zeros(0, bool),
        version=version,
        newest_version=version,
        engine=-1,
        data=no_arrays(0),
        unfinished=unfinished,
    )
