"""Keys of token sequences: which responses are the same, and how much one repeats itself (the share of its n-grams that
it has said before, arXiv 2502.03373 section 5.2)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from nemo_brorl.types import ChunkArrays, Float32, Int32, UInt64

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying by it loses nothing modulo 2^64


def repetition_of(data: ChunkArrays, ngram: int) -> Float32:
    """[n] per response of a chunk, from 0 to below 1; all 0 for `ngram=0`."""
    bounds = data.offsets.tolist()
    if ngram == 0:
        return np.zeros(len(bounds) - 1, np.float32)
    return np.array([repeated_share(data.token_ids[start:end], ngram) for start, end in pairwise(bounds)], np.float32)


def response_keys(data: ChunkArrays) -> UInt64:
    """[n] per response of a chunk: a hash of its tokens t and their number n, n b^n + Σ (t_i + 1) b^(n − 1 − i) modulo
    2^64."""
    lengths = np.diff(data.offsets)
    powers = np.ones(int(lengths.max(initial=0)) + 1, np.uint64)
    np.cumprod(np.full(len(powers) - 1, _BASE), out=powers[1:])
    exponents = np.repeat(data.offsets[1:], lengths) - 1 - np.arange(len(data.token_ids))
    terms = (data.token_ids.astype(np.uint64) + np.uint64(1)) * powers[exponents]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    return lengths.astype(np.uint64) * powers[lengths] + sums[data.offsets[1:]] - sums[data.offsets[:-1]]


def repeated_share(token_ids: Int32, ngram: int) -> float:
    """1 − different n-grams / n-grams; 0 for a response shorter than two of them."""
    num = len(token_ids) - ngram + 1
    if num < 2:
        return 0.0
    ids = token_ids.astype(np.uint64)
    hashes = np.zeros(num, np.uint64)  # a polynomial of each window's tokens: equal windows have equal ones
    for offset in range(ngram):
        hashes = hashes * _BASE + ids[offset : offset + num]
    return 1.0 - len(np.unique(hashes)) / num
