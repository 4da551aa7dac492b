"""A reward function that a program passes as an object: it scores in other processes, or is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from brorl_graders import ConfigError, NamedCode, Pool, give_reward, keep_reward, look_up, source_hashes
from brorl_graders.base.names import Names, allow, allowed
from brorl_graders.given import GIVEN_REWARD, kept_reward

from graders.tests.support.weighted_reward import Weighted

NAMED = NamedCode("data.verifier", GIVEN_REWARD, "payload, response", "workers")


@pytest.fixture(autouse=True)
def names_as_before() -> Iterator[None]:
    before = allowed()
    yield
    keep_reward(None)
    allow(before)


def test_an_object_scores_in_the_processes_of_a_pool() -> None:
    give_reward(Weighted(0.5), pickle.dumps)
    allow(Names(verifiers={GIVEN_REWARD: {}}, given=kept_reward()))
    with Pool(10.0, processes=1) as pool:
        grades = pool.grade(GIVEN_REWARD, {"prompt": "3 + 4 =", "answer": "7"}, ["7", "8"])
    assert [(grade.reward, grade.failed) for grade in grades] == [(0.5, False), (0.0, False)]
    give_reward(Weighted(0.25), pickle.dumps)
    allow(Names(verifiers={GIVEN_REWARD: {}}, given=kept_reward()))
    with Pool(10.0, processes=1) as pool:
        assert pool.grade(GIVEN_REWARD, {"prompt": "3 + 4 =", "answer": "7"}, ["7"])[0].reward == 0.25


def test_its_hash_is_that_of_its_code_and_no_environment_variable_holds_its_pickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = set()
    for weight in (1.0, 2.0, 1.0):
        give_reward(Weighted(weight), pickle.dumps)
        given = kept_reward()
        assert given is not None
        allow(Names(verifiers={GIVEN_REWARD: {}}, given=given))
        digests.add(source_hashes([])[GIVEN_REWARD])
    assert len(digests) == 2
    allow(Names(verifiers={"my_reward:score": {}}, given=given))
    assert GIVEN_REWARD not in source_hashes([])


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (0.5, "reward=0.5 is of type float and no function"),
        ("math", "reward='math' is of type str and no function"),
        (Weighted, "reward=Weighted is a class and no function. Pass an object"),
        (lambda response: 1.0, "it takes (response) and is called with (payload, response)"),
        (lambda solution_str, unknown: 1.0, "it takes (solution_str, unknown)"),
    ],
)
def test_what_cannot_be_called_as_a_reward_is_refused_by_name(reward: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        give_reward(reward, pickle.dumps)
    assert words in str(caught.value)
    assert kept_reward() is None


def test_what_cannot_be_sent_to_other_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be sent to other processes.*when it is first called"):
        give_reward(lambda row, response: 1.0, pickle.dumps)


def test_a_process_that_was_given_none_says_who_passes_it() -> None:
    assert [fault and "nemo_brorl.Session or train" in fault.words for fault in look_up([NAMED], [], [])] == [True]
    give_reward(Weighted(1.0), pickle.dumps)
    assert look_up([NAMED], [], []) == [None]
