"""Mixtures: shares as weighted, every domain exactly once per epoch, a position decides the draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.levels import TaskLevel
from nemo_brorl.prompts.mixture import BLOCK, Domain, Mixture
from nemo_brorl.prompts.questions import Question


@dataclass
class Numbers:
    """Question i is the text i."""

    size: int | None = None
    fingerprint: str = ""
    levels: Mapping[str, TaskLevel] = field(default_factory=dict)

    def question(self, index: int) -> Question:
        return Question("numbers", "exact_match", str(index), {})


def mixture(*weights: float, seed: str = "1") -> Mixture:
    return Mixture([Domain(f"d{number}", Numbers(), weight, None, 10) for number, weight in enumerate(weights)], seed)


def test_shares_are_as_weighted_within_the_error_of_independent_draws() -> None:
    weights, num = (3.0, 1.0, 0.5, 5.5), 1000
    mixed = mixture(*weights)
    drawn = [mixed.draw(position)[0] for position in range(num)]
    for number, weight in enumerate(weights):
        share = weight / 10
        assert abs(drawn.count(number) / num - share) < 3 * (share * (1 - share) / num) ** 0.5


def test_a_block_has_every_share_to_the_nearest_draw() -> None:
    mixed = mixture(1.0, 1.0, 1.0)
    drawn = [mixed.draw(position)[0] for position in range(BLOCK)]
    assert sorted(drawn.count(number) for number in range(3)) == [1365, 1365, 1366]


@pytest.mark.parametrize("seed", ["1", "2/train"])
def test_the_draws_of_a_domain_are_numbered_without_gap_or_repeat(seed: str) -> None:
    mixed = mixture(0.7, 0.2, 0.1, seed=seed)
    ranks: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for position in range(2 * BLOCK + 100):
        number, rank = mixed.draw(position)
        ranks[number].append(rank)
    assert all(found == list(range(len(found))) for found in ranks.values())
    assert mixed.draws_before(2 * BLOCK + 100) == [len(found) for found in ranks.values()]


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    forward, other = mixture(1.0, 2.0), mixture(1.0, 2.0)
    draws = [forward.draw(position) for position in range(50)]
    assert [other.draw(position) for position in reversed(range(50))] == draws[::-1]
    assert [mixture(1.0, 2.0, seed="2").draw(position) for position in range(50)] != draws
    assert other.question(7).text == str(draws[7][1])


def test_a_billionth_draw_is_reached_at_once() -> None:
    number, rank = mixture(1.0, 3.0).draw(10**9)
    assert rank == pytest.approx(10**9 * (0.25, 0.75)[number], rel=1e-3)


def test_one_domain_is_drawn_from_in_order() -> None:
    assert [mixture(2.0).draw(position) for position in (0, 1, 10**6)] == [(0, 0), (0, 1), (0, 10**6)]


def test_weights_that_leave_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="the weights of d0, d1 sum to 0"):
        mixture(0.0, 0.0)
    with pytest.raises(DataError, match="domain d1 has 1e-06 of all weight, less than the smallest share, 1/4096"):
        mixture(1.0, 1e-6)
