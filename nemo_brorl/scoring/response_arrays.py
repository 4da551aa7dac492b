"""Arrays of a chunk's responses: their turns, subsets with observations appended, hashes and repetition.

A hash of a response's tokens shows which responses are equal. Repetition is the share of its n-grams that occurred
before in the response (arXiv 2502.03373 section 5.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from nemo_brorl.types import NO_ROUTE, ChunkArrays, Float32, Int32, Int64, Routes, TurnEnds, UInt64

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication by it is invertible modulo 2^64
NO_LOG_PROB = 0.0  # log-prob of tokens that were not sampled


def turn_bounds(data: ChunkArrays, start: int, end: int) -> list[tuple[int, int]]:
    """Return (start, end) of each turn of the model in a response with the tokens [start, end).

    A turn is a run of sampled tokens, between observations of the environment. There is at least one.
    """
    if data.is_sampled is None or start == end:
        return [(start, end)]
    is_sampled = data.is_sampled[start:end]
    edges = np.flatnonzero(np.diff(is_sampled, prepend=False, append=False)) + start
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def split(data: ChunkArrays, values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the slice of a per-token array that belongs to each response of a chunk."""
    for start, end in pairwise(data.offsets.tolist()):
        yield values[start:end]


def with_observations(data: ChunkArrays, observations: Sequence[Sequence[int]]) -> ChunkArrays:
    """Return the tokens of all responses of a chunk, each followed by the tokens of its environment's observation."""
    rows = range(len(observations))
    return select_responses(data, rows, observations)


def select_responses(
    data: ChunkArrays,
    rows: Sequence[int],
    observations: Sequence[Sequence[int]] = (),
) -> ChunkArrays:
    """Return the tokens of the responses at the indices `rows` of a chunk.

    `observations` holds the tokens of an environment's observation for each row of the chunk. They are appended to the
    responses.
    """
    token_ids: list[int] = []
    log_probs: list[float] = []
    is_sampled: list[bool] = []
    positions: list[int] = []  # position of each token in `data`; -1: token of an observation
    offsets = [0]
    masks = data.is_sampled
    if masks is None:
        masks = np.ones(len(data.token_ids), bool)
    for row in rows:
        response = slice(*data.offsets[row : row + 2])
        positions += range(response.start, response.stop)
        token_ids += data.token_ids[response].tolist()
        log_probs += data.log_probs[response].tolist()
        is_sampled += masks[response].tolist()
        if observations:
            observed = observations[row]
            token_ids += observed
            log_probs += [NO_LOG_PROB] * len(observed)
            is_sampled += [False] * len(observed)
            positions += [-1] * len(observed)
        offsets.append(len(token_ids))
    has_mask = bool(observations) or data.is_sampled is not None
    return ChunkArrays(
        token_ids=np.array(token_ids, np.int32),
        log_probs=np.array(log_probs, np.float32),
        offsets=np.array(offsets, np.int64),
        is_sampled=np.array(is_sampled, bool) if has_mask else None,
        routes=_routes_at(positions, data.routes),
        prompt_routes=data.prompt_routes,
    )


def _routes_at(positions: Sequence[int], routes: Routes | None) -> Routes | None:
    """Return the mixture-of-experts routes of the tokens at these positions, NO_ROUTE for position -1."""
    if routes is None:
        return None
    shape = (1, *routes.shape[1:])
    unknown = np.full(shape, NO_ROUTE, routes.dtype)
    with_last = np.concatenate([routes, unknown])
    return with_last[positions]


def repetition_of(data: ChunkArrays, ngram: int) -> Float32:
    """Return the share of repeated n-grams of each response, [n] in [0, 1). All 0 for `ngram=0`.

    Tokens of an environment's observations are left out.
    """
    bounds = data.offsets.tolist()
    shares = np.zeros(len(bounds) - 1, np.float32)
    if ngram == 0:
        return shares
    for index, (start, end) in enumerate(pairwise(bounds)):
        token_ids = data.token_ids[start:end]
        if data.is_sampled is not None:
            token_ids = token_ids[data.is_sampled[start:end]]
        shares[index] = repeated_share(token_ids, ngram)
    return shares


def response_keys(data: ChunkArrays) -> UInt64:
    """Return a hash [n] of the tokens of each response.

    For n tokens t the hash is n b^n + Σ (t_i + 1) b^(n − 1 − i) modulo 2^64, where b is a fixed odd number.
    """
    starts = data.offsets[:-1]
    ends = data.offsets[1:]
    lengths = ends - starts
    powers = _powers(lengths)
    last_positions = np.repeat(ends - 1, lengths)  # last position of each token's response
    exponents = last_positions - np.arange(len(data.token_ids))
    sums = _sums_before(data, powers[exponents])
    factors = lengths.astype(np.uint64)
    terms = sums[ends] - sums[starts]
    return factors * powers[lengths] + terms


def turn_ends(data: ChunkArrays, num_turns: int) -> TurnEnds:
    """Return the length and a hash of each response's prefix up to the end of each turn, observation included.

    Responses have at most `num_turns` turns. A hash is Σ (t_i + 1) b^i modulo 2^64 over the prefix's tokens t, where b
    is a fixed odd number.
    """
    starts = data.offsets[:-1]
    lengths = np.diff(data.offsets)
    powers = _powers(lengths)
    positions = np.arange(len(data.token_ids)) - np.repeat(starts, lengths)  # position of each token in its response
    sums = _sums_before(data, powers[positions])
    ends = np.repeat(lengths[:, None], num_turns, axis=1)
    if data.is_sampled is not None:
        was_sampled = np.append(False, data.is_sampled[:-1])
        begins = data.is_sampled & ~was_sampled & (positions > 0)
        tokens = np.flatnonzero(begins)  # first token of each later turn
        rows = np.searchsorted(data.offsets, tokens, side="right") - 1
        all_rows = np.arange(len(lengths))
        first_of_row = np.searchsorted(rows, all_rows)
        turns = np.arange(len(tokens)) - first_of_row[rows]
        is_kept = turns < num_turns
        rows, turns, tokens = rows[is_kept], turns[is_kept], tokens[is_kept]
        ends[rows, turns] = positions[tokens]
    until = sums[starts[:, None] + ends]
    before = sums[starts][:, None]
    return TurnEnds(ends.astype(np.int32), until - before)


def _powers(lengths: Int64) -> UInt64:
    """Return the powers b^0, b^1, … of the token hash's base b, up to the length of the longest response."""
    longest = int(lengths.max(initial=0))
    powers = np.ones(longest + 1, np.uint64)
    bases = np.full(longest, _BASE)
    np.cumprod(bases, out=powers[1:])
    return powers


def _sums_before(data: ChunkArrays, powers: UInt64) -> UInt64:
    """Return Σ (t_i + 1) b^(e_i) modulo 2^64 over all tokens t before each position of a chunk, [T + 1].

    Token hashes are computed from these sums. `powers` holds the factor b^(e_i) of each token, [T].
    """
    digits = data.token_ids.astype(np.uint64) + np.uint64(1)
    sums = np.zeros(len(digits) + 1, np.uint64)
    np.cumsum(digits * powers, out=sums[1:])
    return sums


def repeated_share(token_ids: Int32, ngram: int) -> float:
    """Return 1 − (different n-grams) / (n-grams) of a response, 0 if it has fewer than two n-grams."""
    num_windows = len(token_ids) - ngram + 1
    if num_windows < 2:
        return 0.0
    ids = token_ids.astype(np.uint64)
    hashes = np.zeros(num_windows, np.uint64)  # polynomial hash of each window's tokens
    for offset in range(ngram):
        hashes *= _BASE
        end = offset + num_windows
        hashes += ids[offset:end]
    num_different = len(np.unique(hashes))
    return 1.0 - num_different / num_windows
