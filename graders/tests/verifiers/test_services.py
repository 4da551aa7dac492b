"""What verifiers behind a network are asked, and how a reply is read."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError, DataError, NotAllowedError
from brorl_graders.base.names import Names
from brorl_graders.base.settings import Endpoint
from brorl_graders.verifiers.registry import check_name, check_payload, endpoints_in, is_open, names_in, use_names
from brorl_graders.verifiers.services import (
    ServiceReplyError,
    judge_request,
    read_judge_reply,
    read_service_reply,
    select_scored_part,
    service_request,
)

from graders.tests.support.names import allow_also
from graders.tests.support.scoring_service import completion


def a_judge(**options: Any) -> Endpoint:
    return Endpoint(**{"name": "judge", "url": "http://host/v1", "model": "m", **options})


def a_service(**options: Any) -> Endpoint:
    return Endpoint(**{"name": "ours", "url": "https://host/score", **options})


@pytest.mark.parametrize(
    ("sees", "response", "text"),
    [
        ("shown", "<think>a</think> 4 ", "4"),
        ("shown", "<think>never ends", None),
        ("response", "<think>a</think>4", "<think>a</think>4"),
        ("answer", "so <answer> 4 </answer>", "4"),
        ("answer", "so $\\boxed{1}$, $\\boxed{2}$", "1, 2"),
        ("answer", "no idea", None),
    ],
)
def test_a_service_sees_a_part_of_the_response(sees: str, response: str, text: str | None) -> None:
    assert select_scored_part(a_service(sees=sees), response) == text


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        ({}, "It is. Score: 1", 1.0),
        ({}, "Score: 1, I would say, no, **Score: 0**", 0.0),
        ({}, "<think>Score: 1</think>Score: 0", 0.0),
        ({"range": [1, 5]}, "score = 4", 0.75),
        ({"range": [1, 5], "threshold": 0.7}, "score = 4", 1.0),
        ({"range": [0, 10], "score_pattern": r"\[\[(\d+)\]\]"}, "good: [[5]]", 0.5),
        ({"score_key": "grade"}, 'Here: {"grade": 0.25, "why": {"a": 1}}', 0.25),
    ],
)
def test_a_judges_score_is_read(options: dict[str, Any], text: str, score: float) -> None:
    assert read_judge_reply(a_judge(**options), completion(text)).scores == [score]


@pytest.mark.parametrize("text", ["I cannot say", "Score: 12", "Score: nan", ""])
def test_a_judge_without_a_score_in_range_has_not_answered(text: str) -> None:
    with pytest.raises(ServiceReplyError):
        read_judge_reply(a_judge(), completion(text))


@pytest.mark.parametrize(
    "reply",
    [
        [],
        {"choices": []},
        {"scores": [1]},
        {"scores": [1, True]},
        {"scores": [1, "1"]},
        {"scores": [1, float("inf")]},
        {"scores": [1, -0.1]},
        {"scores": [1, 1], "reasons": ["one"]},
    ],
)
def test_a_reply_that_is_not_two_scores_is_none(reply: Any) -> None:
    with pytest.raises(ServiceReplyError):
        read_service_reply(a_service(), 2, reply)


def test_a_template_takes_fields_of_the_payload_and_a_response_cannot_name_any() -> None:
    judge = a_judge(template="{rubric} | {prompt} | {response} | {other}", request={"top_p": 1})
    body = judge_request(judge, {"rubric": ["a"]}, ({"role": "user", "content": "q"},), "{rubric}")
    assert body["messages"][0]["content"] == '["a"] | q | {rubric} | {other}'
    assert body["temperature"] == 0
    assert body["top_p"] == 1


def test_a_payload_fills_a_template_and_changes_nothing_else_of_a_request() -> None:
    changes = {"model": "other", "template": "{api_key_variable}", "request": {"top_p": 1}, "max_tokens": 10**6}
    payload = {**changes, "api_key_variable": "KEY", "answer": "4"}
    body = judge_request(a_judge(), payload, (), "4")
    assert body == judge_request(a_judge(), {"answer": "4"}, (), "4")


def test_a_service_gets_the_whole_payload_and_no_setting_of_its_own() -> None:
    body = service_request({"answer": 4, "level": 2}, (), ["4"])
    assert body == {"version": 1, "items": [{"prompt": [], "payload": {"answer": 4, "level": 2}, "response": "4"}]}


@pytest.mark.parametrize(
    ("template", "is_complete"),
    [
        (None, True),
        ("{prompt} {response} {answer}", True),
        ("{rubric}", False),
    ],
)
def test_what_a_template_asks_for_and_a_payload_lacks_is_named_before_anything_is_sampled(
    template: str | None, is_complete: bool
) -> None:
    allow_also(endpoints=[a_judge(template=template)])
    if is_complete:
        check_payload("judge", {"answer": "4"})
        return
    with pytest.raises(DataError, match="verifier judge: .* asks for {rubric}, which the payload lacks"):
        check_payload("judge", {"answer": "4"})


def test_services_are_known_by_their_name_also_in_a_composition() -> None:
    allow_also(endpoints=[a_service()])
    check_name("ours")
    parts = [{"verifier": "math"}, {"verifier": "ours", "options": {"level": 2}}]
    payload = {"parts": parts, "answer": "4"}
    check_payload("composite", payload)
    assert endpoints_in("composite", payload)
    assert is_open("composite", payload)
    assert not endpoints_in("math", {})
    assert names_in("composite", payload) == ["math", "ours"]


def test_an_address_that_settings_name_as_a_verifier_is_a_service() -> None:
    address = "https://host/score"
    use_names(Names(endpoints={address: Endpoint(address, address)}))
    check_name(address)
    assert endpoints_in(address, {})
    with pytest.raises(NotAllowedError, match="is not in the settings"):
        check_name("https://host/other")


def test_an_endpoint_cannot_take_the_name_of_a_verifier_of_ours() -> None:
    with pytest.raises(ConfigError, match="math has a meaning of its own: choose another name"):
        use_names(Names(endpoints={"math": Endpoint("math", "http://host")}))
