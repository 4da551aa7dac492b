"""Stored responses scored again, over a fake pool."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_brorl.commands.rescore import asked_again, changes_by_task, confusion, rescore
from nemo_brorl.core.errors import ConfigError, DataError
from tests.support.environments import environment_prompt
from tests.support.fakes import FakeVerifier, make_prompt
from tests.support.stored import group

NAME = "exact_match"


def test_rewards_come_back_in_the_order_of_the_groups_and_their_rollouts() -> None:
    """The fake gives 1 to every rollout of train/0, to every second one of train/1."""
    groups = [group("train/1", [0.0, 0.0, 1.0, 1.0]), group("train/0", [1.0, 0.0])]
    first, second = rescore(groups, FakeVerifier(), NAME, {})
    np.testing.assert_array_equal(first.rewards, [1, 0, 1, 0])
    np.testing.assert_array_equal(first.changed, [0, 3])
    np.testing.assert_array_equal(second.rewards, [1, 1])


def test_right_and_wrong_are_counted_before_and_now() -> None:
    groups = rescore([group("train/1", [0.0, 0.0, 1.0, 1.0]), group("train/0", [1.0, 0.0])], FakeVerifier(), NAME, {})
    np.testing.assert_array_equal(confusion(groups), [[2, 1], [2, 1]])
    overall = changes_by_task(groups)["all"]
    assert (overall.num, overall.num_changed, overall.reward_before, overall.reward_now) == (6, 3, 3.0, 4.0)
    assert (overall.num_groups, overall.informative_before, overall.informative_now) == (2, 2, 1)


def test_options_stand_over_those_of_the_prompt() -> None:
    prompt = make_prompt()
    again = asked_again(prompt, NAME, {"answer": "2"})
    assert (again.verifier, again.payload) == (NAME, {"answer": "2"})
    assert asked_again(again, None, {}).verifier == NAME


def test_a_verifier_that_cannot_score_these_prompts_is_refused_first() -> None:
    with pytest.raises(ConfigError, match="unknown verifier 'maths'"):
        asked_again(make_prompt(), "maths", {})
    with pytest.raises(DataError, match="verifier instruction_following"):
        asked_again(make_prompt(), "instruction_following", {})


def test_what_an_environment_answered_is_not_scored_again_by_it() -> None:
    with pytest.raises(DataError, match="answered by an environment"):
        asked_again(environment_prompt(), None, {})
