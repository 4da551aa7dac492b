"""Verifiers behind a network, tested with a local service that fails in every way."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError, ServiceError
from brorl_graders.base.settings import Endpoint, ServiceLimits
from brorl_graders.services import service_client
from brorl_graders.services.remote_scores import RemoteScores, ServiceCall
from brorl_graders.services.service_client import check_endpoint, is_local
from brorl_graders.verifiers import services

from graders.tests.support.names import allow_also
from graders.tests.support.scoring_service import Compressed, completion, scores_by, serving

pytestmark = pytest.mark.slow

PROMPT = ({"role": "user", "content": "2 + 2?"},)


@pytest.fixture(autouse=True)
def _a_proxy_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)


def settings(**changes: Any) -> ServiceLimits:
    return ServiceLimits(**{"backoff_s": 0.001, "max_attempts": 3, **changes})


def service_at(url: str, **options: Any) -> str:
    """Allow a service at this address, and return its name."""
    allow_also(endpoints=[Endpoint(**{"name": "ours", "url": url, **options})])
    return "ours"


def judge_at(url: str, **options: Any) -> str:
    """Allow a judge at this address, and return its name."""
    return service_at(url, **{"name": "ours", "model": "m", **options})


@pytest.fixture
def made() -> Iterator[list[RemoteScores]]:
    scorers: list[RemoteScores] = []
    yield scorers
    for scorer in scorers:
        scorer.close()


def right_is_four(text: str) -> float:
    return float(text == "4")


def test_equal_texts_are_asked_once_within_and_between_chunks(made: list[RemoteScores]) -> None:
    with serving(scores_by(right_is_four)) as service:
        made.append(RemoteScores(settings(batch_size=2)))
        ours = service_at(service.url)
        first = made[0].judge(ServiceCall(ours, {}, PROMPT), ["4", "5", "4", "6", "4"])
        again = made[0].judge(ServiceCall(ours, {}, PROMPT), ["6", "4"])
        other_prompt = made[0].judge(ServiceCall(ours, {"answer": 1}, PROMPT), ["4"])
    assert first.scores == [1, 0, 1, 0, 1]
    assert again.scores == [0, 1]
    assert other_prompt.scores == [1]
    asked = [[item["response"] for item in request["items"]] for request in service.requests]
    assert sorted(asked) == [["4"], ["4", "5"], ["6"]]
    assert service.requests[0]["version"] == 1
    assert service.requests[0]["items"][0]["prompt"] == list(PROMPT)
    usage = made[0].take_usage()
    assert (usage["asked"], usage["requests"]) == (4, 3)
    assert made[0].take_usage()["asked"] == 0


@pytest.mark.parametrize(
    "failure",
    [
        *("hang", "drip", "close", 500, 429),
        *(
            b"<html>",
            b"\xff",
            b"[" * 200_000,
            b'{"scores": [1' + b"0" * 400 + b"]}",
            b'{"scores": [1' + b"0" * 5000 + b"]}",
        ),
        *({"scores": [1, 1]}, {"scores": [float("nan")]}, {"scores": [7]}),
    ],
)
def test_a_service_that_fails_once_is_asked_again(made: list[RemoteScores], failure: Any) -> None:
    is_silent = failure in ("hang", "drip")
    with serving(failure, {"scores": [1]}) as service:
        made.append(RemoteScores(settings(request_timeout_s=0.5 if is_silent else 60)))
        assert made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"]).scores == [1]
    assert len(service.requests) == 2
    assert made[0].take_usage()["retries"] == 1


def packed(content: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, 31)
    return coder.compress(content) + coder.flush()


def test_a_compressed_reply_is_refused_and_never_unpacked(made: list[RemoteScores]) -> None:
    twice = packed(packed(bytes(2**24)))
    with serving(Compressed(twice), {"scores": [1]}) as service:
        made.append(RemoteScores(settings(max_attempts=1, on_failure="fail")))
        asked = ServiceCall(service_at(service.url), {}, PROMPT)
        first = made[0].judge(asked, ["4"])
        assert made[0].judge(asked, ["4"]).scores == [1]
    assert first.scores == [None]
    assert "compressed" in first.reasons[0]
    assert service.headers[0]["Accept-Encoding"] == "identity"


def test_whatever_the_reading_of_a_reply_raises_is_a_failed_attempt(
    made: list[RemoteScores], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*arguments: Any) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(services, "read_service_reply", read)
    with serving({"scores": [1]}) as service:
        made.append(RemoteScores(settings(on_failure="fail")))
        failed = made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"])
    assert failed.scores == [None]
    assert "OverflowError too large" in failed.reasons[0]
    assert len(service.requests) == 3


def test_recorded_scores_that_no_service_may_give_are_left_out_with_a_count(
    made: list[RemoteScores], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ['"nan"', "NaN", "1e9", "-7", "null", "true", "1" + "0" * 400, "[" * 100_000]
    lines = [f'{{"key": "0{number}", "score": {score}}}' for number, score in enumerate(rows)]
    lines += [
        "[1]",
        "1",
        '{"score": 1}',
        '{"key": "zz", "score": 1}',
        '{"key": 5, "score": 1}',
        '{"key": "a0", "score": 1}',
    ]
    (tmp_path / "worker_0.jsonl").write_text("\n".join(lines) + "\n")
    made.append(RemoteScores(settings(replay=str(tmp_path))))
    assert list(made[0].known.answers) == [b"\xa0"]
    assert "left out 13 damaged lines" in caplog.text


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        *((f"http://{host}:80/v1", True) for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "a.localhost")),
        *((f"http://{host}/v1", True) for host in ("[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "LOCALHOST.")),
        *((f"http://{host}/v1", False) for host in ("judge.example", "10.0.0.1", "localhost.example", "[fe80::1]")),
    ],
)
def test_this_machine_is_asked_without_a_proxy(url: str, is_here: bool) -> None:
    assert is_local(url) is is_here


def test_a_service_that_goes_on_failing_ends_the_run_and_never_gives_0(made: list[RemoteScores]) -> None:
    with serving(500) as service:
        made.append(RemoteScores(settings()))
        with pytest.raises(ServiceError, match="score: status 500. The same command goes on"):
            made[0].judge(ServiceCall(service_at(service.url + "?key=secret"), {}, PROMPT), ["4"])
    assert len(service.requests) == 3


def test_a_service_that_refuses_is_not_asked_again(made: list[RemoteScores]) -> None:
    with serving(404) as service:
        made.append(RemoteScores(settings()))
        with pytest.raises(ServiceError, match="status 404"):
            made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"])
    assert len(service.requests) == 1


def test_failures_may_count_as_failed_responses_and_are_asked_again_later(made: list[RemoteScores]) -> None:
    with serving(500, {"scores": [1]}) as service:
        made.append(RemoteScores(settings(on_failure="fail", max_attempts=1)))
        failed = made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"])
        later = made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"])
    assert failed.scores == [None]
    assert "status 500" in failed.reasons[0]
    assert later.scores == [1]


def test_all_attempts_have_one_deadline(made: list[RemoteScores]) -> None:
    with serving("hang") as service:
        made.append(RemoteScores(settings(deadline_s=0.2, max_attempts=100)))
        with pytest.raises(ServiceError, match="has not ended after 0.2 s"):
            made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"])
    assert len(service.requests) <= 3


def test_a_run_that_is_started_again_asks_nothing_twice_and_another_may_replay_it(
    made: list[RemoteScores], tmp_path: Path
) -> None:
    folder = tmp_path / "service_answers"
    with serving(scores_by(right_is_four)) as service:
        made.append(RemoteScores(settings(), folder))
        made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4", "5"])
        with (folder / "worker_0.jsonl").open("a") as file:
            file.write('{"key": "half')
        made.append(RemoteScores(settings(), folder, worker=1))
        assert made[1].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["5", "4"]).scores == [0, 1]
        assert len(service.requests) == 1
    made.append(RemoteScores(settings(replay=str(tmp_path))))
    assert made[2].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"]).scores == [1]
    with pytest.raises(ServiceError, match="has no answer to what was asked"):
        made[2].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["6"])
    with pytest.raises(ConfigError, match="holds no answers"):
        RemoteScores(settings(replay=str(tmp_path / "absent")))


def test_an_endpoint_with_other_settings_is_asked_anew(made: list[RemoteScores]) -> None:
    with serving(completion("Score: 1")) as service:
        made.append(RemoteScores(settings()))
        for options in ({}, {"range": [0, 2]}, {"model": "n"}, {"template": "{response}?"}, {}):
            asked = ServiceCall(judge_at(service.url, **options), {}, PROMPT)
            assert made[0].judge(asked, ["4"]).scores == [0.5 if "range" in options else 1]
    assert len(service.requests) == 4


def test_the_cache_is_bounded(made: list[RemoteScores]) -> None:
    with serving(scores_by(right_is_four)) as service:
        made.append(RemoteScores(settings(cache_size=2)))
        for text in ("1", "2", "3", "1"):
            made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), [text])
    assert len(made[0].known.answers) == 2
    assert len(service.requests) == 4


def test_a_key_comes_from_the_environment_and_is_nowhere_else(
    made: list[RemoteScores], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({"scores": [1]}) as service:
        made.append(RemoteScores(settings(), tmp_path))
        asked = ServiceCall(service_at(service.url, api_key_variable="SCORING_KEY"), {}, PROMPT)
        with pytest.raises(ConfigError, match="api_key_variable=SCORING_KEY of the endpoint ours: .* no such variable"):
            made[0].judge(asked, ["4"])
        monkeypatch.setenv("SCORING_KEY", "hidden")
        made[0].judge(asked, ["4"])
    assert service.headers[0]["Authorization"] == "Bearer hidden"
    assert "SCORING_KEY" not in json.dumps(service.requests)
    assert "hidden" not in (tmp_path / "worker_0.jsonl").read_text()


def test_a_judge_is_a_chat_completion_whose_tokens_are_counted(made: list[RemoteScores]) -> None:
    with serving(completion("Fine.\nScore: 3\nScore: 7")) as service:
        made.append(RemoteScores(settings()))
        asked = ServiceCall(judge_at(service.url, range=[0, 10]), {"answer": "4"}, PROMPT)
        verdicts = made[0].judge(asked, ["<think>so</think>4", "<think>hm</think> 4"])
    assert verdicts.scores == [0.7, 0.7]
    assert verdicts.reasons == {place: "Fine.\nScore: 3\nScore: 7" for place in (0, 1)}
    (request,) = service.requests  # both show the same answer
    assert request["model"] == "m"
    assert re.search(r"<response-(\w+)>\n4\n</response-\1>", request["messages"][0]["content"])
    usage = made[0].take_usage()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 3)


def test_a_judge_that_writes_no_score_has_cost_its_tokens_all_the_same(made: list[RemoteScores]) -> None:
    with serving(completion("I cannot say"), completion("Score: 1")) as service:
        made.append(RemoteScores(settings()))
        assert made[0].judge(ServiceCall(judge_at(service.url), {}, PROMPT), ["4"]).scores == [1]
    usage = made[0].take_usage()
    assert (usage["requests"], usage["asked"]) == (2, 1)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 6)


@pytest.mark.parametrize("usage", [None, [1], 7, {"prompt_tokens": "many", "completion_tokens": None}])
def test_what_an_endpoint_says_of_its_tokens_may_be_anything(made: list[RemoteScores], usage: Any) -> None:
    with serving({**completion("Score: 1"), "usage": usage}) as service:
        made.append(RemoteScores(settings()))
        assert made[0].judge(ServiceCall(judge_at(service.url), {}, PROMPT), ["4"]).scores == [1]
    assert "prompt_tokens" not in made[0].take_usage()


def test_a_mistake_of_ours_is_raised_to_who_asks_and_leaves_nobody_waiting(made: list[RemoteScores]) -> None:
    made.append(RemoteScores(settings()))
    judge = judge_at("http://127.0.0.1:1/v1", request=7)
    for _ in range(2):
        with pytest.raises(TypeError):
            made[0].judge(ServiceCall(judge, {}, PROMPT), ["4"])


def test_a_service_is_tried_before_a_run(caplog: pytest.LogCaptureFixture) -> None:
    with serving({"scores": []}) as service:
        check_endpoint(Endpoint("ours", service.url))
        check_endpoint(Endpoint("judge", service.url, "m"))
    assert service.requests == [{"version": 1, "items": []}]
    with pytest.raises(ConfigError, match="endpoint ours: .* cannot be reached"):
        check_endpoint(Endpoint("ours", service.url))
    for status in (404, 500, 302, 204):
        with serving(status) as service:
            if status == 204:
                check_endpoint(Endpoint("ours", service.url))
                continue
            with pytest.raises(ConfigError, match=f"replies with status {status} where 2xx is expected"):
                check_endpoint(Endpoint("ours", service.url))
    for status in (429, 503):
        with serving(status) as service:
            check_endpoint(Endpoint("ours", service.url))
        assert f"is busy (status {status})" in caplog.text
    with serving(401) as service, pytest.raises(ConfigError, match="endpoint ours: .* refuses with status 401"):
        check_endpoint(Endpoint("ours", service.url))


@pytest.mark.parametrize("reply", ["hang", "drip header", "continue"])
def test_a_service_whose_reply_does_not_begin_holds_up_no_start(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_client, "REACH_S", 0.5)
    with serving(reply) as service, pytest.raises(ConfigError, match="has not ended after 0.5 s; start the service"):
        check_endpoint(Endpoint("ours", service.url))


def test_what_a_service_asks_to_keep_goes_to_nobody(made: list[RemoteScores]) -> None:
    made.append(RemoteScores(settings()))
    with serving(scores_by(right_is_four)) as service, serving({"scores": [1]}) as other:
        service.given["Set-Cookie"] = "name=value; Path=/"
        for text in ("3", "4"):
            made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), [text])
        made[0].judge(ServiceCall(service_at(other.url), {}, PROMPT), ["4"])
    assert not any("Cookie" in headers for headers in [*service.headers, *other.headers])


@pytest.mark.parametrize("wait", ["nan", "-inf", "-1", "tomorrow"])
def test_a_wait_that_is_no_number_of_seconds_is_none(made: list[RemoteScores], wait: str) -> None:
    with serving(429, {"scores": [1]}) as service:
        service.given["Retry-After"] = wait
        made.append(RemoteScores(settings()))
        assert made[0].judge(ServiceCall(service_at(service.url), {}, PROMPT), ["4"]).scores == [1]
