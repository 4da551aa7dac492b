"""majority@k: whether the answer that most of k samples give is right (self-consistency, Wang et al., arXiv
2203.11171)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from nemo_brorl.types import Int64

NUM_DRAWS = 1000  # subsets of k of n samples; where there are no more of them, each counts once


def majority_at_k(answers: Sequence[str | None], is_correct: Sequence[bool], k: int, seed: int = 0) -> float:
    """Chance that the most frequent answer of k of the n samples is right, k ≤ n.

    `answers` are normalised; None did not give one and does not vote. Ties are broken evenly: a tie of two answers, one
    of them right, is half a success. Without a single vote nothing is right. For k = n this is exact, and where few
    subsets exist; else a mean over `NUM_DRAWS` subsets drawn with `seed`.
    """
    num = len(answers)
    assert 1 <= k <= num, f"majority@{k} needs at least {k} samples, got {num}"
    names = sorted({answer for answer in answers if answer is not None})
    if not names:
        return 0.0
    place = {name: index for index, name in enumerate(names)}
    votes = np.array([len(names) if answer is None else place[answer] for answer in answers])
    value = np.array(
        [
            np.mean([right for answer, right in zip(answers, is_correct, strict=True) if answer == name])
            for name in names
        ]
    )
    drawn = votes[_subsets(num, k, seed)]
    counts = np.zeros((len(drawn), len(names) + 1), np.int64)
    np.add.at(counts, (np.arange(len(drawn))[:, None], drawn), 1)
    counts = counts[:, :-1]  # without those that did not vote
    most = counts.max(axis=1, keepdims=True)
    is_first = (counts == most) & (most > 0)
    return float(np.mean((is_first * value).sum(axis=1) / np.maximum(is_first.sum(axis=1), 1)))


def _subsets(num: int, k: int, seed: int) -> Int64:
    """[subsets, k] places of samples."""
    if comb(num, k) <= NUM_DRAWS:
        return np.array(list(combinations(range(num), k)), np.int64)
    return np.argsort(np.random.default_rng(seed).random((NUM_DRAWS, num)), axis=1)[:, :k].astype(np.int64)
