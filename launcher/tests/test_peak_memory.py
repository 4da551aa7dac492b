"""The planner's terms of an update against the tensors of one, traced without numbers on a rank of shipped layouts with
few layers. `tests/support/fake_rank.py` says what a trace cannot show: nothing here is a card's allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peak_memory import FULL, agrees, peak_of, traced, with_all_layers
from tests.support.traced_update import Case

pytestmark = pytest.mark.slow

SMALL = Case("brorl_64gpu")
ONE, TWO, THREE = (replace(SMALL, num_layers=number) for number in (1, 2, 3))
AGAIN = replace(SMALL, overrides=FULL, num_layers=1)
WIDE = Case("brorl_7b", num_layers=2)
CASES = (ONE, TWO, THREE, AGAIN, WIDE)
Found = dict[Case, dict[str, float]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Bytes by kind at the peak of an update."""
    return dict(zip(CASES, traced(CASES, tmp_path_factory.mktemp("fake_cuda")), strict=True))


def test_each_layer_adds_as_much_as_the_one_before(found: Found) -> None:
    one, two, three = (peak_of(found[case]) for case in (ONE, TWO, THREE))
    assert three.beside - two.beside == pytest.approx(two.beside - one.beside, rel=1e-9)
    assert three.state - two.state == pytest.approx(two.state - one.state, rel=1e-5)  # shards are rounded up


def test_the_planner_is_within_15_percent_of_all_layers_of_the_main_recipe(found: Found) -> None:
    assert agrees(SMALL, with_all_layers(SMALL, found[TWO], found[THREE]))


@pytest.mark.parametrize("case", [AGAIN, WIDE], ids=["computed again", "tensor parallel"])
def test_the_planner_is_within_15_percent_of_the_tensors_of_an_update(case: Case, found: Found) -> None:
    assert agrees(case, found[case])


def test_one_tile_of_logits_is_alive_at_a_time(found: Found) -> None:
    """2^27 logits in fp32 and their gradient in bf16; of 16,384 tokens and 1,536 numbers each, the gradient of hidden
    states in bf16 and, of half of them, its sum in fp32. What is left are a few numbers for each token."""
    tile = 6 * 2**27
    hidden = 2 * 16384 * 1536 + 4 * 8192 * 1536
    assert found[ONE]["log-probs"] == pytest.approx(tile + hidden, rel=2e-3)
