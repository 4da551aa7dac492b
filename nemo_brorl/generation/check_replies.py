"""Checks of requests to an engine, of the arrays that it sampled, and of its reply."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.generation.chunk_messages import ChunkMeta, response_lengths
from nemo_brorl.types import ChunkArrays, RolloutRequest

# Rounding may lift a log-probability this far above 0.
LOG_PROB_SLACK = 1e-4


def find_garbage(
    arrays: ChunkArrays,
    vocab_size: int,
    max_tokens: int,
    least: int = 1,
) -> str | None:
    """Return what is wrong with the responses that an engine sampled, or None if they are valid.

    Each response must have from `least` to `max_tokens` tokens, token ids below `vocab_size`, and finite
    log-probabilities that are not positive.
    """
    lengths = response_lengths(arrays)
    tokens = arrays.token_ids
    log_probs = arrays.log_probs
    if lengths.size and (lengths.min() < least or lengths.max() > max_tokens):
        return f"responses of {lengths.min()} to {lengths.max()} tokens, {least} to {max_tokens} were asked for"
    if arrays.is_sampled is not None and len(arrays.is_sampled) != len(tokens):
        return f"{len(arrays.is_sampled)} marks of sampled tokens for {len(tokens)} tokens"
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
        return f"token ids from {tokens.min()} to {tokens.max()}, the vocabulary has {vocab_size}"
    is_finite = np.isfinite(log_probs)
    if not is_finite.all():
        return f"{np.count_nonzero(~is_finite)} of {log_probs.size} log-probabilities are not finite"
    if log_probs.size and log_probs.max() > LOG_PROB_SLACK:
        return f"a log-probability of {log_probs.max():.4g}"
    return None


def find_mismatch(
    meta: ChunkMeta,
    call_id: int,
    request: RolloutRequest,
    known_versions: Collection[int],
) -> str | None:
    """Return why an engine's reply does not belong to a request for rollouts, or None if it does.

    The call id, the prompt, the rollout indices and the number of response lengths must match. `known_versions` are the
    policy versions that were published to the engines.
    """
    asked_for = request.prompt.uid
    if meta.call_id != call_id or meta.uid != asked_for:
        return f"call {call_id} for prompt {asked_for} was answered as call {meta.call_id} for prompt {meta.uid}"
    indices = meta.indices
    if meta.partial is not None:
        unsorted = np.concatenate([indices, meta.partial.indices])
        indices = np.sort(unsorted)
    if not np.array_equal(indices, request.indices):
        return f"prompt {meta.uid}: rollouts {indices.tolist()} came for {request.indices.tolist()}"
    num_ended = len(meta.indices)
    num_lengths = len(meta.lengths)
    num_ends = len(meta.is_stopped)
    if not num_ended == num_lengths == num_ends:
        return f"prompt {meta.uid}: {num_ended} rollouts have {num_lengths} lengths and {num_ends} ends"
    is_oldest_known = meta.version in known_versions
    if request.partial is not None and meta.version == request.partial.version:
        is_oldest_known = True
    if not is_oldest_known or meta.newest_version not in known_versions:
        return f"prompt {meta.uid}: versions {meta.version} to {meta.newest_version} were never published"
    return None


def check_lengths(requests: Sequence[RolloutRequest], max_model_len: int | None) -> None:
    """Raise ConfigError for a request whose prompt and response do not fit the engines' context length.

    ConfigError is also raised for a request that resumes a rollout which has no token left to sample.
    """
    for request in requests:
        uid = request.prompt.uid
        num_prompt = len(request.prompt.token_ids)
        num_response = request.sampling.max_tokens
        if max_model_len is not None and num_prompt + num_response > max_model_len:
            raise ConfigError(
                f"generation.max_model_len={max_model_len}: prompt {uid} has {num_prompt} tokens, and its response may "
                f"have {num_response}. Set at least {num_prompt + num_response}."
            )
        if request.partial is None:
            continue
        longest = request.partial.lengths.max()
        if longest >= num_response:
            raise ConfigError(
                f"rollouts.max_response_tokens={num_response}: prompt {uid} is resumed after {longest} tokens. "
                f"Set at least {longest + 1}."
            )
