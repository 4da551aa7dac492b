"""A verifier of a module outside the package, with typed parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.errors import NotAllowedError
from brorl_graders.base.names import Names
from brorl_graders.base.payload import Deadlines
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers.registry import (
    Template,
    UserFunction,
    answer_reader,
    check_payload,
    endpoints_in,
    is_foreign,
    is_open,
    judge,
    names_in,
    prepare,
    score_of,
    templates,
    use_names,
)

NEAR, FAR = "my_verifiers:near", "my_verifiers:far"
MODULE = """
from dataclasses import dataclass


@dataclass
class Tolerance:
    tolerance: float = 0.25


def near(payload, response, params: Tolerance):
    return float(abs(float(response) - payload["value"]) <= params.tolerance)


def far(payload, response):
    distance = abs(float(response) - payload["value"])
    return distance, f"{distance:g} away"
"""


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_verifiers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_verifiers", None)


def allow_near(**params: Any) -> None:
    use_names(Names(verifiers={NEAR: params}))


def test_its_parameters_are_those_of_the_settings() -> None:
    allow_near(tolerance=1)
    score = score_of(NEAR)
    assert [score({"value": 5}, response) for response in ("5", "6", "6.5")] == [1.0, 1.0, 0.0]


def test_without_settings_they_have_their_defaults() -> None:
    allow_near()
    score = score_of(NEAR)
    assert [score({"value": 5}, response) for response in ("5.25", "5.5")] == [1.0, 0.0]


@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_verifier_needs_is_said_without_importing_it(is_named: bool) -> None:
    use_names(Names(verifiers={NEAR: {}} if is_named else {}))
    for name, payload in ((NEAR, {"value": 5}), ("composite", {"value": 5, "parts": [{"verifier": NEAR}]})):
        assert names_in(name, payload) == [NEAR]
        assert templates(name, payload) == [Template(NEAR)]
        assert (is_open(name, payload), is_foreign(name, payload)) == (True, False)
        assert endpoints_in(name, payload) == []
        assert answer_reader(name, payload) is None
        if is_named:
            check_payload(name, payload)
    assert "my_verifiers" not in sys.modules


def test_no_way_leads_to_a_function_that_no_setting_names() -> None:
    use_names(Names())
    composition = {"value": 5, "parts": [{"verifier": NEAR}]}
    nested = {"value": 5, "parts": [{"verifier": "composite", "options": composition}]}
    ways: list[Callable[[], object]] = [
        lambda: check_payload("composite", composition),
        lambda: judge("composite", composition, "5"),
        lambda: judge("composite", nested, "5"),
        lambda: prepare(Template(NEAR)),
        lambda: score_of(NEAR),
        lambda: UserFunction(NEAR).load(""),
        lambda: UserFunction(NEAR).score({"value": 5}, "5"),
    ]
    for way in ways:
        with pytest.raises(NotAllowedError, match="is not in the settings"):
            way()
    assert is_open("composite", nested)
    assert "my_verifiers" not in sys.modules


def test_the_processes_that_score_have_them_too() -> None:
    allow_near(tolerance=1)
    pool = ProcessPool(Deadlines(10.0))
    try:
        assert pool.score(NEAR, {"value": 5}, ["6", "7"]) == [1.0, 0.0]
    finally:
        pool.close()


def test_it_may_say_why_and_its_words_reach_who_asked() -> None:
    use_names(Names(verifiers={FAR: {}}))
    pool = ProcessPool(Deadlines(10.0))
    try:
        verdicts = pool.judge(FAR, {"value": 5}, ["5.5", "\ud800", "7"])
    finally:
        pool.close()
    assert verdicts.scores == [0.5, None, 2.0]
    assert verdicts.reasons[0] == "0.5 away"
    assert "could not convert string to float" in verdicts.reasons[1]
    assert verdicts.reasons[2] == "2 away"


FAILING = """
import asyncio
import json
import sys


class Refusal(Exception):
    pass


async def waits(completions, **columns):
    await asyncio.sleep(0)
    return [float("7" in completions[0])]


def fails(payload, response):
    if response == "own":
        raise Refusal("not today")
    if response == "exit":
        sys.exit(3)
    if response == "library":
        return json.loads("{")
    if response == "none":
        return None
    if response == "infinite":
        return {"score": float("inf")}
    if response == "large":
        return 1e300
    return response.txt
"""
WHY = {
    "own": "Refusal: not today (my_failing.py:18)",
    "exit": "SystemExit: 3 (my_failing.py:20)",
    "library": "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
    "(my_failing.py:22)",
    "none": "NoScoreError: it returned None",
    "infinite": "the score is inf",
    "large": "the score is 1e+300",
    "other": "AttributeError: 'str' object has no attribute 'txt' (my_failing.py:29)",
}


def test_a_failure_has_the_name_of_its_exception_and_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "my_failing.py").write_text(FAILING)
    use_names(Names(verifiers={"my_failing:fails": {}, "my_failing:waits": {}}))
    pool = ProcessPool(Deadlines(10.0))
    try:
        verdicts = pool.judge("my_failing:fails", {}, [*WHY])
        parts = [{"verifier": "exact_match"}, {"verifier": "my_failing:fails"}]
        composed = pool.judge("composite", {"answer": "x", "parts": parts}, ["other"])
        awaited = pool.judge("my_failing:waits", {"question": "3 + 4?"}, ["7", "8"])
    finally:
        pool.close()
    assert verdicts.scores == [None] * len(WHY)
    assert verdicts.reasons == dict(enumerate(WHY.values()))
    assert all(map(verdicts.is_own, range(len(WHY))))
    assert (composed.reasons[0], composed.is_own(0)) == (WHY["other"], True)
    assert awaited.scores == [1.0, 0.0]


def test_a_response_is_to_blame_where_a_verifier_of_the_package_fails_on_it() -> None:
    pool = ProcessPool(Deadlines(10.0))
    try:
        broken = pool.judge("exact_match", {}, ["<answer>4</answer>"])
    finally:
        pool.close()
    assert broken.scores == [None]
    assert not broken.is_own(0)
