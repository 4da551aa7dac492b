"""What becomes of a group of which nothing is being sampled: every row of the table, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.rollouts.fate import Fate, fate_of
from nemo_brorl.rollouts.ledger import OpenGroup, requests_for
from nemo_brorl.types import PartialRollouts, Sampling
from tests.support.fakes import FakeGenerator, FakeVerifier, make_prompt

SAMPLING = Sampling(1.0, 1.0, 8)


def group_of(num_finished: int, num_partial: int, num_trained_chunks: int = 0) -> OpenGroup:
    """A settled group, its finished rollouts in chunks of one."""
    prompt = make_prompt()
    chunks = FakeGenerator().generate(requests_for([prompt], num_finished, 1, SAMPLING, 1))
    group = OpenGroup(
        prompt, SAMPLING, scored_chunks=list(FakeVerifier().score(chunks)), num_trained_chunks=num_trained_chunks
    )
    if num_partial:
        indices = np.arange(num_finished, num_finished + num_partial)
        group.partial = [PartialRollouts(indices, np.ones(num_partial, np.int32), version=0, data=None)]
    return group


def settings(unfinished: str = "finish", min_fraction: float = 0.5) -> RolloutsConfig:
    return RolloutsConfig(unfinished=unfinished, min_fraction=min_fraction)


@pytest.mark.parametrize("is_surplus", [False, True])
def test_a_group_that_a_step_has_learned_from_is_completed(is_surplus: bool) -> None:
    assert fate_of(group_of(6, 2, num_trained_chunks=6), is_surplus, settings("resume")) is Fate.COMPLETE


@pytest.mark.parametrize("unfinished", ["finish", "resume", "drop"])
def test_a_group_of_which_all_has_ended_is_closed(unfinished: str) -> None:
    assert fate_of(group_of(8, 0), False, settings(unfinished)) is Fate.CLOSE


def test_surplus_goes_on_in_the_next_step_or_is_dropped() -> None:
    assert fate_of(group_of(6, 2), True, settings("resume")) is Fate.POSTPONE
    assert fate_of(group_of(6, 2), True, settings("drop")) is Fate.DROP


@pytest.mark.parametrize("unfinished", ["finish", "resume", "drop"])
def test_a_group_of_which_enough_ended_in_time_is_closed_without_the_rest(unfinished: str) -> None:
    assert fate_of(group_of(4, 4), False, settings(unfinished)) is Fate.CLOSE_CUT


def test_a_group_of_which_too_little_ended_in_time_goes_on_or_is_given_up() -> None:
    assert fate_of(group_of(3, 5), False, settings("resume")) is Fate.POSTPONE
    assert fate_of(group_of(3, 5), False, settings("finish")) is Fate.TIME_OUT
    assert fate_of(group_of(3, 5), False, settings("drop")) is Fate.TIME_OUT


def test_one_rollout_is_never_enough() -> None:
    assert fate_of(group_of(1, 7), False, settings("drop", min_fraction=0.1)) is Fate.TIME_OUT
    assert fate_of(group_of(2, 6), False, settings("drop", min_fraction=0.1)) is Fate.CLOSE_CUT
