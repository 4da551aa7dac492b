"""Which rank writes what of the optimizer's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nemo_brorl.policy.state.optimizer_state import _written_by, least_loaded


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "expected"),
    [
        ([8, 3, 3, 2], 2, [0, 1, 1, 1]),  # 8 and 8
        ([5, 5, 5, 5], 4, [0, 1, 2, 3]),
        ([5, 5, 5], 1, [0, 0, 0]),
        ([1, 9, 1, 1], 2, [0, 1, 0, 0]),
    ],
)
def test_each_tensor_is_written_by_the_rank_with_the_least_to_write(
    sizes: list[int], num_ranks: int, expected: list[int]
) -> None:
    loads = [0] * num_ranks
    assert [least_loaded(loads, size) for size in sizes] == expected
    assert sum(loads) == sum(sizes)


@dataclass(frozen=True)
class Entry:
    """As much of Megatron's ShardedTensor as is used."""

    replica_id: tuple[int, int, int]


def test_one_data_parallel_rank_of_the_right_tensor_rank_becomes_the_main_replica() -> None:
    def main_replicas(writer: int) -> list[tuple[int, int]]:
        found = []
        for tensor in range(2):
            for data in range(3):
                entry: Any = _written_by(Entry((0, tensor, data)), writer, num_ranks=3)
                if entry.replica_id == (0, 0, 0):
                    found.append((tensor, data))
        return found

    assert [main_replicas(writer) for writer in range(3)] == [[(0, 0)], [(0, 1)], [(0, 2)]]
