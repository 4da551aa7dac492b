"""The shuffle: every index exactly once, another order for another key, and neighbours torn apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nemo_brorl.prompts.order import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000, 4097])
def test_every_index_comes_exactly_once(size: int) -> None:
    for key in (0, 1, 12345, 2**64 - 1):
        assert sorted(permuted(index, size, key) for index in range(size)) == list(range(size))


def test_keys_give_different_orders() -> None:
    orders = {tuple(permuted(index, 50, key) for index in range(50)) for key in range(200)}
    assert len(orders) == 200


def test_all_orders_of_three_occur() -> None:
    orders = {tuple(permuted(index, 3, key) for index in range(3)) for key in range(500)}
    assert len(orders) == 6


def test_an_image_is_as_likely_to_be_anywhere() -> None:
    counts = [0] * 10
    for key in range(5000):
        counts[permuted(3, 10, key)] += 1
    assert all(abs(count - 500) < 5 * (5000 * 0.1 * 0.9) ** 0.5 for count in counts)


def test_neighbours_are_torn_apart() -> None:
    images = [permuted(index, 10_000, key=7) for index in range(10_000)]
    near = sum(abs(a - b) <= 10 for a, b in pairwise(images))
    assert near < 40  # 20 are expected of a random order


def test_a_billion_rows_need_no_table() -> None:
    images = [permuted(index, 10**9, key=3) for index in range(1000)]
    assert len(set(images)) == 1000
    assert max(images) < 10**9 and max(images) > 9 * 10**8
