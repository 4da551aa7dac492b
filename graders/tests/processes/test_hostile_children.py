"""A child process that was taken over changes no other response's grade, and holds up nobody."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator

import pytest
from brorl_graders.base.payload import Deadlines
from brorl_graders.processes import child_process
from brorl_graders.processes.channel import PART, Channel, ChildReplyError, receive_request, send_reply
from brorl_graders.processes.child import MAX_WORDS, read_reply
from brorl_graders.processes.child_process import BATCH, MAX_ASIDE, Isolation, ScoringTask
from brorl_graders.processes.process_pool import ProcessPool

from graders.tests.support.bad_verifiers import MISBEHAVE, SLOW
from graders.tests.support.hostile_replies import REPLY
from graders.tests.support.names import allow_also

pytestmark = pytest.mark.slow

HONEST = ["right 1", "zero 0", "half 0.5"]
HONEST_SCORES = [1.0, 0.0, 0.5]


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    allow_also(verifiers=[REPLY, MISBEHAVE, SLOW])
    made = ProcessPool(Deadlines(1.0))
    yield made
    made.close()


@pytest.mark.parametrize(
    "hostile",
    [
        "hang +[1.0",
        "hang .[1.0",
        "hang \x00\x00\x13\x88[1.0",
        "write +[1.0",
        'write .[7, 1.0, "", null]',
        'write .[null, 1.0, "", null]',
        "whole 1e300",
        "whole -3.3e38",
        "write . ",
        "forge twice",
        "flood all",
    ],
)
def test_what_a_taken_over_process_sends_costs_no_other_response(pool: ProcessPool, hostile: str) -> None:
    scores = pool.score(REPLY, {}, [HONEST[0], hostile, *HONEST])
    assert scores[:1] + scores[2:] == [1.0, *HONEST_SCORES]
    assert pool.score(REPLY, {}, HONEST) == HONEST_SCORES


def test_a_second_reply_is_no_reward_of_the_next_response(monkeypatch: pytest.MonkeyPatch, pool: ProcessPool) -> None:
    monkeypatch.setattr(child_process.Isolation, "batch", BATCH)  # also where all texts are in the same process
    texts = ["forge once", *["zero 0"] * 5] * 3
    scores = pool.score(REPLY, {}, texts)
    assert [score for text, score in zip(texts, scores, strict=True) if text == "zero 0"] == [0.0] * 15


def test_a_response_that_always_sends_too_much_fails_in_the_end(pool: ProcessPool) -> None:
    verdicts = pool.judge(REPLY, {}, ['write .[1, 1.0, "", null]', "write +"])
    assert verdicts.scores[0] is None
    assert verdicts.reasons[0] == "its process sent a reply too many"


def test_a_score_that_no_reward_holds_is_no_score_whoever_sends_it() -> None:
    assert read_reply(b'[1, -3e38, "", null, false]').score == -3e38
    for score in ("3.1e38", "-1e300", "1e999", "NaN"):
        with pytest.raises(ChildReplyError, match="no score"):
            read_reply(f'[1, {score}, "", null, false]'.encode())


def test_the_words_of_a_taken_over_process_are_cut_as_those_of_others_are() -> None:
    reply = read_reply(json.dumps([1, None, "x" * 9999, "y" * 9999, False]).encode())
    assert (reply.reason, reply.error) == ("x" * MAX_WORDS, "y" * MAX_WORDS)


def test_a_process_that_reads_nothing_is_given_up() -> None:
    channel = Channel(10)
    with channel.theirs, pytest.raises(BlockingIOError):
        for _ in range(100_000):
            channel.send("x" * 10)
    channel.close()


def test_requests_and_replies_arrive_whole_whatever_their_length() -> None:
    channel = Channel(10 * PART)
    with channel.theirs:
        request = {"texts": ["x" * 3_000_000]}
        channel.send(request)
        assert receive_request(channel.theirs) == request
        for length in (0, 1, PART, PART + 1):
            send_reply(channel.theirs, b"y" * length)
            received = None
            while received is None:
                received = channel.receive()
            assert received == b"y" * length
        assert channel.receive() is None
    with pytest.raises(EOFError):
        channel.receive()
    channel.close()


def test_a_child_learns_that_its_owner_is_gone() -> None:
    channel = Channel(10)
    channel.close()
    with channel.theirs, pytest.raises(EOFError):
        receive_request(channel.theirs)


@pytest.mark.parametrize("packets", [[b"." + b"x" * 11], [b"+123456", b"+12345"], [b"+" + b"x" * (PART + 1)]])
def test_a_reply_without_end_is_not_read(packets: list[bytes]) -> None:
    channel = Channel(10)
    with channel.theirs:
        for packet in packets:
            channel.theirs.send(packet)
        with pytest.raises(ChildReplyError, match="longer than 10 bytes"):
            for _ in packets:
                channel.receive()
    channel.close()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("raise Mine", "Mine: told to"),
        ("speechless Mine", "Mine"),
        ("leave 0", "SystemExit: 0"),
        ("no number", "ValueError: could not convert string to float: 'number'"),
    ],
)
def test_the_error_of_a_verifier_is_named(pool: ProcessPool, response: str, reason: str) -> None:
    verdicts = pool.judge(REPLY, {}, [response, "right 1"])
    assert verdicts.scores == [None, 1.0]
    words, _, line = verdicts.reasons[0].rpartition(" (")
    assert (words, line.partition(":")[0]) == (reason, "hostile_replies.py")


def test_an_error_on_many_responses_is_logged_once_and_prints_no_traceback(
    pool: ProcessPool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("brorl_graders").propagate = True
    assert pool.score(REPLY, {}, ["leave 0"] * 4 + ["no number"]) == [None] * 5
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"verifier {REPLY}: SystemExit: 0",
        f"verifier {REPLY}: ValueError: could not convert string to float: 'number'",
    ]
    assert "Traceback" not in capfd.readouterr().err


def test_only_processes_with_code_of_this_package_have_many_texts_at_once() -> None:
    gym = {"dataset": "gcd", "config": {}, "question": "?", "answer": "1", "metadata": {}}
    assert ScoringTask("math", {"answer": "1"}, (), 1.0).isolation.batch == BATCH
    assert ScoringTask("reasoning_gym", gym, (), 1.0).isolation.batch == 1
    assert Isolation(is_closed=False).batch == 1


def test_patience_halves_with_each_text_that_outlasts_it() -> None:
    task = ScoringTask("math", {"answer": "1"}, (), 5.0)
    patiences = []
    for number in (0, 1, 2, 10, 5000):
        task.num_set_aside = number
        patiences.append(task.patience_s)
    assert patiences == [0.25, 0.125, 0.0625, 0.02, 0.02]
    programs = ScoringTask("code", {"tests": []}, (), 20.0)
    assert programs.patience_s == 2.0
    programs.num_set_aside = 100
    assert programs.patience_s == 0.25
    assert ScoringTask("math", {"answer": "1"}, (), 0.1).patience_s == 0.1


def test_hanging_responses_are_ended_many_at_a_time_and_cost_no_other_grade(pool: ProcessPool) -> None:
    texts = ["hang"] * 100 + ["0 right"] * 20
    random.Random(5).shuffle(texts)
    log = os.devnull
    scores = pool.score(MISBEHAVE, {"log": log}, texts)
    assert scores == [None if text == "hang" else 1.0 for text in texts]
    late_s = pool.take_late_s()
    assert late_s >= 100.0  # each has had its second
    assert pool.take_late_s() == 0.0


def test_as_many_processes_as_cores_score_at_once() -> None:
    allow_also(verifiers=[SLOW])
    pool = ProcessPool(Deadlines(60.0), num_at_once=3)
    try:
        assert pool.score(SLOW, {}, ["0.2"] * 6) == [1.0] * 6
        assert len(pool.child_pids()) == 3
    finally:
        pool.close()


def test_a_process_whose_other_texts_moved_is_ended_after_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process.Isolation, "batch", BATCH)
    allow_also(verifiers=[SLOW])
    pool = ProcessPool(Deadlines(60.0), num_at_once=4)
    try:
        assert pool.score(SLOW, {}, ["0.5", "0.4", "0.4", "0"]) == [1.0] * 4
        assert pool.score(SLOW, {}, ["0"] * 4) == [1.0] * 4
        assert len(pool.child_pids()) == 1
    finally:
        pool.close()


def test_a_process_that_was_set_aside_serves_again() -> None:
    allow_also(verifiers=[SLOW])
    pool = ProcessPool(Deadlines(60.0), num_at_once=1)
    try:
        assert pool.score(SLOW, {}, ["0.6", *["0"] * 3, "0.6", *["0"] * 3]) == [1.0] * 8
        assert 1 <= len(pool.child_pids()) <= 2 < MAX_ASIDE
    finally:
        pool.close()
