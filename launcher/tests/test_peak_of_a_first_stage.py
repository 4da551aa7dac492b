"""Memory of the first of two stages of a mixture, traced with few layers: how much each layer adds. What a trace cannot
show stands in `tests/support/fake_rank.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peak_memory import FULL, agrees, peak_of, traced, with_all_layers
from nemo_brorl.core.machine import GIB
from tests.support.traced_update import Case

pytestmark = pytest.mark.slow

FIRST_STAGE = Case("brorl_qwen3_30b_a3b", FULL)
TWO, THREE = (replace(FIRST_STAGE, num_layers=2 * number) for number in (2, 3))  # as many in each stage
Found = dict[Case, dict[str, float]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Bytes by kind at the peak of an update."""
    cases = (TWO, THREE)
    return dict(zip(cases, traced(cases, tmp_path_factory.mktemp("fake_cuda")), strict=True))


def test_a_recomputed_layer_of_the_first_stage_adds_its_input_for_each_row_under_way(found: Found) -> None:
    """Two rows of 16,384 tokens, half of them on each of two tensor-parallel ranks, 2,048 numbers of bf16 a token:
    2 × 8,192 × 4,096 bytes = 64 MiB."""
    two, three = (peak_of(found[case]).beside * GIB for case in (TWO, THREE))
    assert three - two == pytest.approx(2 * 8192 * 4096, rel=1e-3)


def test_the_planner_is_within_15_percent_of_the_first_stage_with_two_layers_and_with_all(found: Found) -> None:
    assert agrees(TWO, found[TWO])
    assert agrees(FIRST_STAGE, with_all_layers(FIRST_STAGE, found[TWO], found[THREE]))
