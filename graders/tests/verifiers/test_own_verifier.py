"""A verifier of a module outside the package, with typed parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_graders.processes.process_pool import ProcessPool
from brorl_graders.verifiers.payload import Deadlines
from brorl_graders.verifiers.registry import check_params, score_of

from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.scoring.grader_settings import configure

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


def with_parameters(params: str) -> BroRLConfig:
    return load_config("brorl_cpu", [f"rewards.verifiers=[{{name: 'my_verifiers:near', params: {params}}}]"])


def with_verifier(name: str) -> BroRLConfig:
    return load_config("brorl_cpu", [f"data.verifier={name}"])


def test_its_parameters_are_those_of_the_settings() -> None:
    configure(with_parameters("{tolerance: 1}"))
    score = score_of("my_verifiers:near")
    assert [score({"value": 5}, response) for response in ("5", "6", "6.5")] == [1.0, 1.0, 0.0]


def test_without_settings_they_have_their_defaults() -> None:
    configure(with_verifier("my_verifiers:near"))
    score = score_of("my_verifiers:near")
    assert [score({"value": 5}, response) for response in ("5.25", "5.5")] == [1.0, 0.0]


def test_the_processes_that_score_have_them_too() -> None:
    config = with_parameters("{tolerance: 1}")
    configure(config)
    pool = ProcessPool(Deadlines(config.rewards.timeout_s, config.rewards.timeouts))
    try:
        assert pool.score("my_verifiers:near", {"value": 5}, ["6", "7"]) == [1.0, 0.0]
    finally:
        pool.close()


def test_it_may_say_why_and_its_words_reach_who_asked() -> None:
    config = with_verifier("my_verifiers:far")
    configure(config)
    pool = ProcessPool(Deadlines(config.rewards.timeout_s, config.rewards.timeouts))
    try:
        verdicts = pool.judge("my_verifiers:far", {"value": 5}, ["5.5", "\ud800", "7"])
    finally:
        pool.close()
    assert verdicts.scores == [0.5, None, 2.0]
    assert verdicts.reasons[0] == "0.5 away"
    assert "could not convert string to float" in verdicts.reasons[1]
    assert verdicts.reasons[2] == "2 away"


@pytest.mark.parametrize(
    ("params", "message"),
    [("{tolerence: 1}", "tolerence.*takes tolerance: float = 0.25"), ("{tolerance: wide}", "'wide'")],
)
def test_a_mistake_is_found_when_the_run_starts(params: str, message: str) -> None:
    configure(with_parameters(params))
    with pytest.raises(ConfigError, match=message):
        check_params()


def test_parameters_of_a_built_in_verifier_are_refused_and_not_ignored() -> None:
    with pytest.raises(ConfigError, match=r"rewards.verifiers.0.name=math .*package.module:function"):
        load_config("brorl_cpu", ["rewards.verifiers=[{name: math, params: {tolerance: 1}}]"])
