"""What GPUs compile, compiled here on fake CUDA tensors as far as the graphs of forward and backward go, over many
lengths of rows: without graph break, without falling back, and once or twice for all lengths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import fake_cuda

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How often each function was compiled, by part."""
    return fake_cuda.report("tests.support.gpu_compilation", tmp_path_factory.mktemp("fake_cuda"))


@pytest.mark.parametrize("part", ["training", "scoring"])
def test_flex_attention_and_its_mask_are_compiled_at_most_twice_for_rows_of_all_lengths(
    part: str, found: dict[str, dict[str, int]]
) -> None:
    assert set(found["training"]) == {"flex_attention", "create_block_mask"}
    assert all(number <= 2 for number in found[part].values()), found


def test_tiles_of_log_probs_are_compiled_at_most_twice_for_a_width_whatever_the_number_of_tokens(
    found: dict[str, dict[str, int]],
) -> None:
    """Tiles have one width, and the last ones another."""
    assert set(found["log-probs"]) == {"add_tile", "tile_gradient"}
    assert all(number <= 4 for number in found["log-probs"].values()), found


def test_the_merge_of_flash_calls_is_compiled_at_most_twice(found: dict[str, dict[str, int]]) -> None:
    assert set(found["flash"]) == {"merged"}
    assert found["flash"]["merged"] <= 2


def test_the_rotation_of_heads_is_compiled_a_few_times_for_queries_keys_and_rows_of_all_lengths(
    found: dict[str, dict[str, int]],
) -> None:
    assert set(found["rotation"]) == {"rotated_at_once"}
    assert found["rotation"]["rotated_at_once"] <= 8  # queries and keys, forward and back, at most twice each
