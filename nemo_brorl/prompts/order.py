"""Compute the order of an epoch's rows without storing it, so that a billion rows need no memory.

A Feistel network permutes the numbers of 2k bits. Numbers outside the range are permuted again until they are inside
(cycle walking), which leaves a permutation of the range. On average fewer than four passes are needed.
"""

from __future__ import annotations

ROUNDS = 6
WORD = 2**64 - 1


def permuted(index: int, size: int, key: int) -> int:
    """Return the row at position `index` of a shuffled epoch of `size` rows.

    It is the image of `index` under permutation number `key` (64 bits) of 0 … size - 1.
    """
    assert 0 <= index < size, f"index {index} is outside 0 … {size - 1}"
    # Two halves of as many bits as the largest index needs, rounded up to an even number.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left = index >> half
        right = index & mask
        for number in range(ROUNDS):
            round_key = _mixed(key + number)
            scrambled = left ^ (_mixed(right ^ round_key) & mask)
            left = right
            right = scrambled
        index = left << half | right
        # An index outside the range is permuted again. This ends, because the cycle returns to its start.
        if index < size:
            return index


def _mixed(value: int) -> int:
    """Return 64 bits that each depend on all 64 input bits (the finaliser of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & WORD
    return value ^ value >> 31
