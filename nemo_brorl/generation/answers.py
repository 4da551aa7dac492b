"""Build the RolloutChunk with which a sampling session answers a request."""

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
    """Return the RolloutChunk that holds an engine's reply to a request for rollouts.

    The tokens stay in the object store, where the engine put them. For rollouts that were resumed, the chunk includes
    the tokens that they already had, so the request in the chunk drops its own reference to these tokens.
    """
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
    """Return the RolloutChunk of a request for rollouts that was cut before any engine had it.

    No rollout in the chunk has ended, and the partial rollouts that the request would have resumed are unchanged.
    `version` is the policy version that is given to rollouts without a token.
    """
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
