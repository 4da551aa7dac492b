"""The answer to a request as a session hands it on."""

from __future__ import annotations

import dataclasses

import numpy as np

from nemo_brorl.generation.chunk_messages import ChunkMeta, no_arrays
from nemo_brorl.generation.in_flight import ChunkInFlight
from nemo_brorl.types import PartialRollouts, RolloutChunk, RolloutRequest


def answered_chunk(
    in_flight: ChunkInFlight,
    request: RolloutRequest,
    meta: ChunkMeta,
) -> RolloutChunk:
    """Return the answer that an engine gave; tokens stay where they are. Those it went on from are in it, so the
    request lets go of them."""
    partial = None
    if meta.partial is not None:
        partial = dataclasses.replace(meta.partial, data=in_flight.partial, engine=in_flight.engine)
    if request.partial is not None:
        without_data = dataclasses.replace(request.partial, data=None)
        request = dataclasses.replace(request, partial=without_data)
    return RolloutChunk(
        request=request,
        indices=meta.indices,
        lengths=meta.lengths,
        is_stopped=meta.is_stopped,
        version=meta.version,
        newest_version=meta.newest_version,
        engine=in_flight.engine,
        data=in_flight.data,
        partial=partial,
        num_sampled=meta.num_sampled,
        period=meta.period,
    )


def unsampled_chunk(request: RolloutRequest, version: int) -> RolloutChunk:
    """Return the answer to a request that was cut before an engine had it: nothing has ended, and what it resumes is as
    it was. `version` is that of rollouts without a token."""
    nothing = np.zeros(0, np.int32)
    partial = request.partial
    if partial is None:
        partial = PartialRollouts(
            indices=request.indices,
            lengths=np.zeros(request.num_rollouts, np.int32),
            version=version,
            data=no_arrays(request.num_rollouts),
        )
    return RolloutChunk(
        request=request,
        indices=nothing,
        lengths=nothing,
        is_stopped=np.zeros(0, bool),
        version=version,
        newest_version=version,
        engine=-1,
        data=no_arrays(0),
        partial=partial,
    )
