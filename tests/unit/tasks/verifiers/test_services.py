"""What verifiers behind a network are asked, and how a reply is read."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.tasks.verifiers.registry import check_name, check_payload, is_open, is_remote, remote_parts
from nemo_brorl.tasks.verifiers.services import (
    ReplyError,
    judge_request,
    read_judge_reply,
    read_service_reply,
    seen,
    service_request,
)
from tests.support.scoring_service import completion

JUDGE = {"url": "http://host/v1", "model": "m"}


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
    assert seen({"sees": sees}, response) == text


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
    assert read_judge_reply({**JUDGE, **options}, completion(text)).scores == [score]


@pytest.mark.parametrize("text", ["I cannot say", "Score: 12", "Score: nan", ""])
def test_a_judge_without_a_score_in_range_has_not_answered(text: str) -> None:
    with pytest.raises(ReplyError):
        read_judge_reply(JUDGE, completion(text))


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
    with pytest.raises(ReplyError):
        read_service_reply({}, 2, reply)


def test_a_template_takes_fields_of_the_payload_and_a_response_cannot_name_any() -> None:
    payload = {
        **JUDGE,
        "template": "{rubric} | {prompt} | {response} | {other}",
        "rubric": ["a"],
        "request": {"top_p": 1},
    }
    body = judge_request(payload, ({"role": "user", "content": "q"},), "{rubric}")
    assert body["messages"][0]["content"] == '["a"] | q | {rubric} | {other}'
    assert body["temperature"] == 0
    assert body["top_p"] == 1


def test_options_of_ours_are_not_sent() -> None:
    body = service_request({"answer": 4, "sees": "answer", "api_key_variable": "KEY"}, (), ["4"])
    assert body == {"version": 1, "items": [{"prompt": [], "payload": {"answer": 4}, "response": "4"}]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": None}, "write verifier_options: {url: https://HOST/v1, model: NAME}"),
        ({"url": "host:80"}, "is no address"),
        ({"url": "https://me:secret@host/v1"}, "the address of host holds a name or a password"),
        ({"template": "{rubric}"}, "asks for {rubric}, which the payload lacks"),
        ({"score_pattern": r"\d"}, "with one group"),
        ({"request": "top_p=0.9"}, "'request' is 'top_p=0.9'; write further fields"),
        ({"range": [1, 0]}, "write the lowest and the highest score"),
        ({"threshold": 2}, "'threshold' is 2"),
        ({"sees": "all"}, "choose shown, response, answer"),
    ],
)
def test_a_wrong_option_of_a_judge_is_named_before_anything_is_sampled(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        check_payload("judge", {**JUDGE, **options})
    assert "secret" not in str(error.value)


def test_services_are_known_by_their_address_also_in_a_composition() -> None:
    check_name("https://host/score")
    with pytest.raises(ConfigError, match="is no address"):
        check_name("https://")
    parts = [{"verifier": "math"}, {"verifier": "https://host/score", "options": {"range": [0, 2]}}]
    payload = {"parts": parts, "answer": "4"}
    check_payload("composite", payload)
    assert is_remote("composite", payload)
    assert is_open("composite", payload)
    assert not is_remote("math", {})
    assert remote_parts("composite", payload) == [("https://host/score", {"answer": "4", "range": [0, 2]})]
