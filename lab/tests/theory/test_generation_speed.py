"""Prompt tokens and seconds per rollout, worked by hand."""

from __future__ import annotations

import pytest
from brorl_lab.theory.batching import (
    EngineCosts,
    GroupLoad,
    cached_tokens,
    in_flight_for,
    largest_gain_of_batching,
    longest_response_for,
    prompt_tokens_computed,
    seconds_per_rollout,
)


def test_only_whole_blocks_before_the_last_token_are_found_again() -> None:
    assert [cached_tokens(length, 32) for length in (20, 32, 33, 200, 448)] == [0, 0, 32, 192, 416]


def test_a_group_computes_its_prompt_once_and_what_is_not_cached_every_time() -> None:
    assert prompt_tokens_computed(200, 1, 32) == 200
    assert prompt_tokens_computed(200, 16, 32) == 8 + 12
    assert prompt_tokens_computed(200, 512, 32) == pytest.approx(8.375)
    assert prompt_tokens_computed(20, 512, 32) == 20


def test_the_hit_rate_that_was_measured_is_the_models() -> None:
    """docs/measured/generation_grid.csv: 90.0 % at N = 16 and 95.8 % at 512 for prompts of 200 tokens."""
    assert [1 - prompt_tokens_computed(200, num, 32) / 200 for num in (16, 512)] == pytest.approx(
        [0.900, 0.958], abs=5e-4
    )


def test_seconds_add_up() -> None:
    # 20 prompt tokens at 2 s, 10 response tokens at 1 s and a tenth of a step of 5 s each
    load = GroupLoad(prompt_tokens=200, response_tokens=10, num_per_prompt=16, in_flight=10)
    assert seconds_per_rollout(load, EngineCosts(2.0, 1.0, 5.0), block_size=32) == pytest.approx(40 + 10 * 1.5)


def test_at_the_longest_response_for_a_gain_the_gain_is_reached() -> None:
    costs = EngineCosts(prompt_token=0.5, response_token=1.0)
    longest = longest_response_for(1.5, 448, 16, 512, cost_ratio=0.5, block_size=16)
    few, many = (seconds_per_rollout(GroupLoad(448, longest, num, 512), costs, 16) for num in (16, 512))
    assert few / many == pytest.approx(1.5)
    assert longest > 0


def test_the_papers_factor_is_out_of_reach_of_prompts_with_blocks_of_32() -> None:
    assert longest_response_for(1.98, 448, 16, 512, cost_ratio=1.0, block_size=32) < 0


def test_the_gain_of_batching_is_undone_by_the_batch_it_names() -> None:
    costs = EngineCosts(prompt_token=1.0, response_token=1.0, step=100.0)
    # 512 in flight: 1 + 100/512 a token; twice that is 2.39, so a step is shared by 100 / 1.39 rollouts
    assert in_flight_for(2.0, 512, costs) == pytest.approx(100 / (2 * (1 + 100 / 512) - 1))
    assert largest_gain_of_batching(512, costs) == pytest.approx(101 / (1 + 100 / 512))
