"""Repetition, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.scoring.response_arrays import repeated_share, repetition_of, response_keys
from nemo_brorl.types import ChunkArrays


@pytest.mark.parametrize(
    ("tokens", "ngram", "share"),
    [
        ([1, 2, 3, 4], 2, 0.0),
        ([1, 2, 1, 2, 1], 2, 0.5),  # 12 21 12 21: two of four are new
        ([7] * 10, 3, 7 / 8),  # eight windows, one of them new
        ([1, 2], 2, 0.0),
        ([], 2, 0.0),
        ([0, 0, 1, 0, 0], 2, 0.25),  # 00 01 10 00: the token 0 counts like any other
    ],
)
def test_the_share_of_repeated_ngrams(tokens: list[int], ngram: int, share: float) -> None:
    assert repeated_share(np.array(tokens, np.int32), ngram) == pytest.approx(share)


def test_every_response_of_a_chunk_is_measured_alone() -> None:
    data = ChunkArrays(np.array([5, 5, 5, 1, 2, 3], np.int32), np.zeros(6, np.float32), np.array([0, 3, 6]))
    np.testing.assert_allclose(repetition_of(data, 1), [2 / 3, 0])
    assert not repetition_of(data, 0).any()


def test_keys_are_equal_exactly_for_equal_responses() -> None:
    data = ChunkArrays(
        np.array([1, 2, 1, 2, 2, 1, 1, 0, 0], np.int32), np.zeros(9, np.float32), np.array([0, 2, 4, 6, 7, 8, 9, 9])
    )
    first, same, reversed_, short, zero, zero_again, empty = response_keys(data).tolist()
    assert first == same
    assert zero == zero_again
    assert len({first, reversed_, short, zero, empty}) == 5
