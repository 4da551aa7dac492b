"""Episodes in processes: what a misbehaving episode costs others, and what is left of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.base.errors import ConfigError, ResourceError
from brorl_graders.environments.child import read_outcome
from brorl_graders.environments.host import EpisodeHost, HostLimits
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep
from brorl_graders.processes.channel import ChildReplyError

from graders.tests.support.bad_environments import COUNTER, LATER, OPEN, REMEMBERING
from graders.tests.support.names import allow_also

pytestmark = pytest.mark.slow


MISSING = "no_such_package:Nothing"
NAMED = [(name, {}) for name in (COUNTER, LATER, OPEN, REMEMBERING, MISSING, "nothing")]


@pytest.fixture(autouse=True)
def _named() -> None:
    allow_also(environments=[*NAMED, (COUNTER, {"start": "many"})])


@pytest.fixture
def host(_named: None) -> Iterator[EpisodeHost]:
    host = EpisodeHost(HostLimits(step_s=1.0))
    yield host
    host.close()


def turn(episode: str, *actions: str, environment: str = COUNTER) -> EpisodeStep:
    return EpisodeStep(episode, environment, {}, {"question": 1}, 7, actions)


def said(outcome: EpisodeOutcome) -> str:
    return outcome.observation[0]["content"]


def descendants() -> set[int]:
    """Return the process ids of all descendants of this process, read from /proc."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_command = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if after_command[0] != "Z":
            parents[int(path.parent.name)] = int(after_command[1])
    found = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def test_an_episode_keeps_its_state_and_its_process(host: EpisodeHost) -> None:
    first, other = host.step([turn("a", "go"), turn("b", "go")])
    (second,) = host.step([turn("a", "go", "on")])
    assert first.reward == other.reward == 1.0
    assert second.reward == 2.0
    assert said(second).split()[2] == said(first).split()[2]
    assert second.observation[0]["role"] == "user"
    assert second.info == {"count": 2}


def test_an_episode_with_other_actions_is_started_again(host: EpisodeHost) -> None:
    """Cover a step that was cut and starts again under other weights, with another action."""
    host.step([turn("a", "old", environment=REMEMBERING)])
    (outcome,) = host.step([turn("a", "new", "words", environment=REMEMBERING)])
    assert said(outcome) == "new words"


def test_an_episode_that_is_not_there_is_made_anew_from_its_actions(host: EpisodeHost) -> None:
    (third,) = host.step([turn("a", "one", "two", "three")])
    assert third.reward == 3.0
    host.step([turn("b", "crash")])
    (again,) = host.step([turn("a", "one", "two", "three", "four")])
    assert again.reward == 4.0
    (same_step,) = host.step([turn("a", "one", "two", "three", "four")])
    assert same_step.reward == 4.0


def test_an_episode_ends_by_its_environment_or_at_its_last_turn(host: EpisodeHost) -> None:
    ended, last = host.step([turn("a", "end"), turn("b", *"12345")])
    assert ended == EpisodeOutcome((), 1.0, True, False, {"count": 1}, "")
    assert (last.has_ended, last.truncated, last.reward, last.observation) == (True, True, 5.0, ())


def test_what_misbehaves_costs_its_own_trajectory(host: EpisodeHost) -> None:
    reasons = {
        "crash": "its process ended",
        "hang": "has not ended after 1 s",
        "spin": "has not ended after 1 s",
        "exit": "SystemExit: 4",
        "raise": "LookupError: told to",
        "memory": "its process ended",
        "nan": "ValueError: the reward is nan",
        "fork": "PermissionError",
        "file": "PermissionError",
    }
    host.step([turn(f"good {number}", "one") for number in range(50)])
    bad = [turn(name, name) for name in reasons]
    good = [turn(f"good {number}", "one", "two") for number in range(50)]
    outcomes = host.step([*good[:25], *bad, *good[25:]])
    found = {step.episode: outcome.error for step, outcome in zip(bad, outcomes[25:], strict=False)}
    assert {name: re.split(r": \[", error)[0] for name, error in found.items()} == reasons
    assert all(outcome.has_ended and outcome.reward == 0 for outcome in outcomes[25 : 25 + len(bad)])
    assert [outcome.reward for outcome in outcomes[:25] + outcomes[25 + len(bad) :]] == [2.0] * 50


def test_what_is_printed_goes_nowhere_and_a_long_observation_is_cut(host: EpisodeHost) -> None:
    printed, long = host.step([turn("a", "print"), turn("b", "long")])
    assert printed.reward == 1.0
    assert len(said(long)) < 8100
    assert said(long).endswith("(cut: 9992000 characters more)")


def test_asynchronous_episodes_run_at_once_and_one_that_hangs_is_ended_alone(host: EpisodeHost) -> None:
    many = [turn(str(number), "go", environment=LATER) for number in range(300)]
    outcomes = host.step([*many, turn("bad", "hang", environment=LATER)])
    assert [outcome.reward for outcome in outcomes[:-1]] == [1.0] * 300
    assert outcomes[-1].error == "has not ended after 1 s"
    again = [turn(str(number), "go", "on", environment=LATER) for number in range(3)]
    outcomes = host.step([*again, turn("worse", "block", environment=LATER)])
    assert [outcome.reward for outcome in outcomes[:-1]] == [2.0] * 3
    assert outcomes[-1].error == "has not ended after 1 s"


def test_no_process_is_left_not_even_one_that_has_left_its_group() -> None:
    before = descendants()
    host = EpisodeHost(HostLimits(step_s=1.0))
    outcomes = host.step([turn(str(number), "fork", environment=OPEN) for number in range(4)])
    assert [outcome.reward for outcome in outcomes] == [1.0] * 4
    assert len(descendants() - before) >= 6
    host.close()
    assert descendants() - before == set()
    with pytest.raises(ResourceError, match="closed"):
        host.step([turn("a", "go")])


def test_processes_are_few_for_many_episodes(host: EpisodeHost) -> None:
    outcomes = host.step([turn(str(number), "go") for number in range(500)])
    assert len(outcomes) == 500
    assert len(host.process_ids()) <= 2
    host.end([str(number) for number in range(500)])
    (fresh,) = host.step([turn("5", "go")])
    assert fresh.reward == 1.0


def test_what_is_no_environment_is_said(host: EpisodeHost) -> None:
    with pytest.raises(ConfigError, match="unknown environment 'nothing'"):
        host.step([turn("a", "go", environment="nothing")])
    with pytest.raises(ConfigError, match="cannot be imported"):
        host.step([turn("a", "go", environment=MISSING)])
    (outcome,) = host.step([turn("a", "go")._replace(settings={"start": "many"})])
    assert "start" in outcome.error


@pytest.mark.parametrize(
    "said",
    [
        "not JSON",
        "[]",
        '[1, [], 1.0, true, false, {}, "", "one too many"]',
        '[1, [], 1, true, false, {}, ""]',
        '[1, [], NaN, true, false, {}, ""]',
        '[1, [], -1e39, true, false, {}, ""]',
        '["1", [], 1.0, true, false, {}, ""]',
        '[1, [{"role": "user"}], 1.0, true, false, {}, ""]',
        '[1, ["text"], 1.0, true, false, {}, ""]',
        '[1, [], 1.0, true, false, [], ""]',
        "[" * 100_000,
    ],
)
def test_what_is_no_outcome_is_not_believed(said: str) -> None:
    assert read_outcome(b'[7, [{"role": "user", "content": "no"}], 1.0, false, false, {"a": 1}, ""]') == (
        7,
        EpisodeOutcome(({"role": "user", "content": "no"},), 1.0, False, False, {"a": 1}, ""),
    )
    with pytest.raises(ChildReplyError):
        read_outcome(said.encode())


def test_a_whole_episode_has_a_limit_too() -> None:
    host = EpisodeHost(HostLimits(step_s=60.0, episode_s=2.0))
    try:
        (first,) = host.step([turn("a", "go", environment=LATER)])
        assert first.error == ""
        (second,) = host.step([turn("a", "go", "hang", environment=LATER)])
        assert re.match(r"has not ended after [01]\.\d+ s", second.error)
    finally:
        host.close()
