"""Deadlines and endpoints of verifiers that cannot be meant."""

from __future__ import annotations

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError

ENDPOINTS = "rewards.services.endpoints=[{name: judge, url: 'https://host/v1', model: m}]"
PART = "{verifier: 'https://host', options: {range: [0, 10]}}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rewards.timeouts.code=0"], "rewards.timeouts.code=0 must be above 0"),
        (["+data.verifier_options.timeout_s=soon"], "data.verifier_options.timeout_s=soon must be a number"),
        (["rewards.code.test_timeout_s=30"], "set rewards.timeouts.code=37.5 or more"),
    ],
)
def test_deadlines_are_checked(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("brorl_cpu", overrides)


def test_programs_have_more_time_than_other_answers_and_both_can_be_set() -> None:
    config = load_config(
        "brorl_cpu", ["rewards.timeouts.math=9", "rewards.timeouts.code=60", "rewards.code.test_timeout_s=30"]
    )
    assert (config.rewards.timeout_s, config.rewards.timeouts) == (5.0, {"code": 60.0, "math": 9.0})
    assert load_config("brorl_cpu").rewards.timeouts == {"code": 20.0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("{name: judge}", "rewards.services.endpoints[0].url is required and missing"),
        (
            "{name: judge, url: 'host:80'}",
            "rewards.services.endpoints.0.url: 'host:80' is no address; set one like http://",
        ),
        (
            "{name: judge, url: 'https://'}",
            "rewards.services.endpoints.0.url: 'https://' is no address; set one like http://",
        ),
        ("{name: judge, url: 'https://me:secret@host'}", "the address of host holds a name or a password"),
        ("{name: '', url: 'https://host'}", "rewards.services.endpoints.0.name='': set a plain name"),
        ("{name: 'http://a', url: 'https://host'}", "name='http://a': set a plain name"),
        ("{name: 'my.module:score', url: 'https://host'}", "name='my.module:score': set a plain name"),
        ("{name: judge, url: 'https://host', score_pattern: '\\d'}", "set a regular expression with one group"),
        ("{name: judge, url: 'https://host', score_pattern: '(\\d'}", "is no regular expression"),
        ("{name: judge, url: 'https://host', request: 'top_p=0.9'}", ".request=top_p=0.9 must be a mapping"),
        ("{name: judge, url: 'https://host', range: [1, 0]}", "range=[1.0, 0.0]: set the lowest and the highest"),
        ("{name: judge, url: 'https://host', range: [1]}", "range=[1.0]: set the lowest and the highest score"),
        ("{name: judge, url: 'https://host', threshold: 2}", "endpoints.0.threshold=2.0 is out of range"),
        ("{name: judge, url: 'https://host', sees: all}", "set one of shown, response, answer"),
        ("{name: judge, url: 'https://host', max_tokens: 0}", "endpoints.0.max_tokens=0 is out of range"),
        ("{name: a, url: 'https://b'}, {name: a, url: 'https://c'}", "endpoints names a 2 times: give each endpoint"),
    ],
)
def test_an_endpoint_that_cannot_work_is_refused(fields: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", [f"rewards.services.endpoints=[{fields}]"])
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_endpoints_are_services_and_judges_by_name() -> None:
    fields = "{name: judge, url: 'https://host/v1', model: m, range: [1, 5]}, {name: ours, url: 'http://host/score'}"
    judge, ours = load_config("brorl_cpu", [f"rewards.services.endpoints=[{fields}]"]).rewards.services.endpoints
    assert (judge.is_judge, judge.range, judge.sees) == (True, [1.0, 5.0], "shown")
    assert (ours.is_judge, ours.range, ours.api_key_variable) == (False, [0.0, 1.0], None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.verifier=https://host", "+data.verifier_options.threshold=0.5"], "data.verifier_options.threshold is"),
        (["data.verifier=judge", "data.verifier_options={model: m}", ENDPOINTS], "verifier_options.model is a sett"),
        (["data.verifier=composite", f"data.verifier_options={{parts: [{PART}]}}"], "options.parts.0.options.range is"),
        (["data.verifier=https://me:secret@host"], "the address of host holds a name or a password"),
    ],
)
def test_options_of_a_service_are_refused_where_they_had_an_effect_before(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", overrides)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
