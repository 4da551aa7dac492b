"""Compute majority@k: the probability that the most frequent answer of k samples is right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from nemo_brorl.types import Int64

NUM_DRAWS = 1000  # random subsets of k of n samples; with at most so many subsets, each counts once


def majority_at_k(
    answers: Sequence[str | None],
    is_correct: Sequence[bool],
    k: int,
    seed: int = 0,
) -> float:
    """Return the probability that the most frequent answer of k of a prompt's n samples is right, k ≤ n.

    `answers` are normalised. A sample with None gave no answer and does not vote. Ties are broken evenly: a tie of two
    answers, one of them right, counts half. Without a single vote the result is 0. For k = n, and if few subsets exist,
    this is exact. Otherwise it is a mean over `NUM_DRAWS` subsets drawn with `seed`.
    """
    num = len(answers)
    assert 1 <= k <= num, f"majority@{k} needs at least {k} samples, got {num}"
    names = {answer for answer in answers if answer is not None}
    num_names = len(names)
    if num_names == 0:
        return 0.0
    # The counts have a column for each answer, and a last one for samples that do not vote.
    columns: dict[str | None, int] = {None: num_names}
    for column, name in enumerate(sorted(names)):
        columns[name] = column
    votes = np.array([columns[answer] for answer in answers])
    is_right = np.array(is_correct)
    value = np.zeros(num_names)
    for column in range(num_names):
        # The value is a share, because the verifier may judge one spelling both ways.
        value[column] = is_right[votes == column].mean()
    drawn = votes[_subsets(num, k, seed)]
    num_subsets = len(drawn)
    counts = np.zeros((num_subsets, num_names + 1), np.int64)
    subsets = np.arange(num_subsets)[:, None]
    np.add.at(counts, (subsets, drawn), 1)
    counts = counts[:, :num_names]
    most = counts.max(axis=1, keepdims=True)
    is_first = (counts == most) & (most > 0)
    num_first = is_first.sum(axis=1)
    total = (is_first * value).sum(axis=1)
    successes = total / np.maximum(num_first, 1)
    return float(np.mean(successes))


def _subsets(num: int, k: int, seed: int) -> Int64:
    """Return subsets of k of a prompt's samples for maj@k, as sample indices of shape [subsets, k].

    These are all such subsets, or `NUM_DRAWS` random ones if there are more.
    """
    if comb(num, k) <= NUM_DRAWS:
        every = list(combinations(range(num), k))
        return np.array(every, np.int64)
    # The first k indices of a random order are a subset without repeats.
    generator = np.random.default_rng(seed)
    keys = generator.random((NUM_DRAWS, num))
    order = np.argsort(keys, axis=1)
    return order[:, :k].astype(np.int64)
