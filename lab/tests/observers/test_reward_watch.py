"""The watch for reward hacking: four alarms, worked by hand, and what must not raise them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from brorl_lab.observers.reward_watch import FILE, HISTORY, MIN_HISTORY, RewardWatch, RewardWatchParams, robust_z

from nemo_brorl.config.trainer import ObserverConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.training.own_observers import find_observers
from nemo_brorl.types import PaidAnswer, RewardEvidence, ScoredGroup
from tests.support.fakes import make_group

UNUSED = Path("unused")  # no folder: nothing is written


def group(uid: str, rewards: Sequence[float] = (1, 0), **evidence: object) -> ScoredGroup:
    found = RewardEvidence(**{"num_without_answer": 0, "num_late": 0, "num_raised": 0, **evidence})  # type: ignore[arg-type]
    failed = found.num_late + found.num_raised
    return replace(make_group(rewards, uid), evidence=(found,), num_failed=failed)


def paid(answer: str, is_reference: bool = False) -> tuple[PaidAnswer, ...]:
    return (PaidAnswer(answer, 4, is_reference),)


def kinds(groups: Sequence[ScoredGroup]) -> list[str]:
    _, found = RewardWatch(UNUSED, RewardWatchParams()).find_alarms(groups)
    return [alarm.kind for alarm in found]


def test_a_step_without_signs_raises_nothing() -> None:
    watch = RewardWatch(UNUSED, RewardWatchParams())
    metrics, found = watch.find_alarms([group(f"train/{number}") for number in range(5)])
    assert found == []
    assert set(metrics.values()) == {0.0}


def test_a_reward_without_an_answer_is_an_alarm_with_its_example() -> None:
    watch = RewardWatch(UNUSED, RewardWatchParams())
    metrics, (alarm,) = watch.find_alarms([group("a"), group("b", num_without_answer=3, example="0 0 0")])
    assert metrics["reward_watch/without_answer"] == 3
    assert (alarm.kind, alarm.prompt, alarm.example) == ("no_answer", "b", "0 0 0")


def test_one_answer_that_earns_on_three_prompts_whose_answer_it_is_not_is_an_alarm() -> None:
    two = [group("a", paid=paid("6*4*1*1")), group("b", paid=paid("6*4*1*1")), group("c", paid=paid("8*3"))]
    assert kinds(two) == []
    metrics, (alarm,) = RewardWatch(UNUSED, RewardWatchParams()).find_alarms([*two, group("d", paid=paid("6*4*1*1"))])
    assert alarm.kind == "same_answer"
    assert "'6*4*1*1' earned on 3 prompts" in alarm.text
    assert metrics["reward_watch/same_answer_prompts"] == 3


def test_a_task_of_yes_and_no_raises_no_alarm() -> None:
    assert kinds([group(f"{number}", paid=paid("yes", is_reference=True)) for number in range(20)]) == []


def test_the_same_answer_in_five_chunks_of_a_prompt_is_one_prompt() -> None:
    one = group("a", paid=paid("7"))
    assert kinds([replace(one, evidence=one.evidence * 5)]) == []


def test_a_robust_z_score_worked_by_hand() -> None:
    earlier = [0.1, 0.2, 0.3, 0.4, 0.9]  # median 0.3, deviations 0.2 0.1 0 0.1 0.6: median 0.1
    assert robust_z(0.8, earlier) == pytest.approx(0.5 / (1.4826 * 0.1))
    assert robust_z(0.36, [0.3, 0.3, 0.3]) == pytest.approx(2.0)  # a spread of at least 0.03
    assert robust_z(0.1, earlier) < 0


def test_a_sudden_rise_of_a_verifiers_mean_is_an_alarm_once_there_is_history() -> None:
    watch = RewardWatch(UNUSED, RewardWatchParams(rise=6.0))
    low, high = [1, 0, 0, 0], [1, 1, 1, 0]
    assert watch.find_alarms([group("x", high)])[1] == []
    watch = RewardWatch(UNUSED, RewardWatchParams(rise=6.0))
    for number in range(MIN_HISTORY):
        assert watch.find_alarms([group(f"{number}", low)])[1] == []
    metrics, (alarm,) = watch.find_alarms([group("x", high)])
    assert metrics["reward_watch/highest_rise"] == pytest.approx(0.5 / 0.03)  # 0.75 - 0.25, and the least spread
    assert (alarm.kind, alarm.where) == ("rise", "toy")
    assert "from 0.250 to 0.750" in alarm.text
    for number in range(100):
        watch.find_alarms([group(f"{number}", low)])
    assert len(watch.history["toy"]) == HISTORY


def test_a_slow_rise_is_learning() -> None:
    watch = RewardWatch(UNUSED, RewardWatchParams())
    found = []
    for step in range(60):
        rewards = [1.0] * step + [0.0] * (100 - step)
        found += watch.find_alarms([group(f"{step}", rewards)])[1]
    assert found == []


def test_failures_on_three_prompts_are_an_alarm_that_names_the_worst() -> None:
    failing = [group("a", num_late=1), group("b", num_raised=2, example="((((")]
    assert kinds(failing) == []
    metrics, (alarm,) = RewardWatch(UNUSED, RewardWatchParams()).find_alarms([*failing, group("c", num_late=1)])
    assert (alarm.kind, alarm.prompt, alarm.example) == ("failures", "b", "((((")
    assert alarm.text == "it failed on 4 responses to 3 prompts"
    assert (metrics["reward_watch/failing_prompts"], metrics["reward_watch/late"]) == (3, 2)


def test_groups_without_evidence_say_nothing() -> None:
    assert kinds([make_group([1, 0])]) == []


def test_the_state_goes_through_json_and_goes_on() -> None:
    watch = RewardWatch(UNUSED, RewardWatchParams(max_examples=1))
    for number in range(MIN_HISTORY):
        watch.find_alarms([group(f"{number}", [1, 0, 0, 0])])
    _, found = watch.find_alarms([group("x", [1, 0, 0, 0], num_without_answer=1)])
    assert len(watch.select_kept(found)) == 1
    other = RewardWatch(UNUSED, RewardWatchParams(max_examples=1))
    other.resume(None, json.loads(json.dumps(watch.state_dict())))
    assert other.select_kept(found) == []
    assert [alarm.kind for alarm in other.find_alarms([group("y", [1, 1, 1, 1])])[1]] == ["rise"]


def test_examples_are_kept_a_kind_warns_once_and_a_resumed_run_writes_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alarms = RewardWatch(tmp_path, RewardWatchParams(max_examples=2))
    states = []
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            alarms.record_step(step, [group("a", num_without_answer=1, example="x")])
            states.append(alarms.state_dict())
    assert len(caplog.records) == 1
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["kind"], row["example"]) for row in rows] == [
        (1, "no_answer", "x"),
        (2, "no_answer", "x"),
    ]
    resumed = RewardWatch(tmp_path, RewardWatchParams(max_examples=2))
    resumed.resume(1, states[0])
    resumed.record_step(2, [group("b", num_without_answer=1, example="y")])
    rows = [json.loads(line) for line in (tmp_path / FILE).read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["prompt"]) for row in rows] == [(1, "a"), (2, "b")]


def test_the_setting_makes_it_and_refuses_wrong_parameters() -> None:
    name = "brorl_lab.observers.reward_watch:reward_watch"
    (make,) = find_observers([ObserverConfig(name, {"rise": 4})])
    made = make(UNUSED)
    assert isinstance(made, RewardWatch)
    assert made.params == RewardWatchParams(rise=4.0)
    with pytest.raises(ConfigError, match="same_answer_prompts=1 must be 2 or more"):
        find_observers([ObserverConfig(name, {"same_answer_prompts": 1})])
