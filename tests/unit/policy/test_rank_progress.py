"""Which ranks stand still, from answers written by hand; and the marks of a rank, read while its thread is held up."""

from __future__ import annotations

import threading
import time
from types import FrameType, SimpleNamespace
from typing import cast

from nemo_brorl.core.timeline import Timeline, Work
from nemo_brorl.policy.driver.stalled_ranks import RankStatus, stalled_ranks, values_of
from nemo_brorl.policy.process.rank_progress import SHORTEST_S, ProgressMarks, RankAnswer, RankProgress, _collective_of

NOW = 1000.0


def answer(
    place: str, num_marks: int, seconds: float, collective: str | None = None, heard_s_ago: float = 1.0
) -> RankStatus:
    return RankStatus(
        RankProgress(place, num_marks, seconds, is_idle=False, collective=collective, process=1), NOW - heard_s_ago
    )


def test_a_rank_that_does_not_answer_comes_before_one_that_computes_and_those_that_wait() -> None:
    answers = {
        0: answer("update, mini-batch 1 of 4, optimizer", 12, 118, "all_reduce"),
        1: answer("update, mini-batch 1 of 4, micro-batch 3 of 8", 6, 119),
        2: answer("update, mini-batch 1 of 4, micro-batch 2 of 8", 5, 1, heard_s_ago=90),
        3: answer("update, mini-batch 1 of 4, optimizer", 11, 117, "all_reduce"),
    }
    assert stalled_ranks(answers, NOW, 60) == [
        "policy rank 2 does not answer since 90 s, last heard at update, mini-batch 1 of 4, micro-batch 2 of 8",
        "policy rank 1 at update, mini-batch 1 of 4, micro-batch 3 of 8 since 120 s",
        "policy rank 3 at update, mini-batch 1 of 4, optimizer since 118 s, waiting in all_reduce",
        "policy rank 0 at update, mini-batch 1 of 4, optimizer since 119 s, waiting in all_reduce",
    ]


def test_ranks_that_move_or_have_done_their_part_are_not_stalled() -> None:
    done = RankStatus(RankProgress("idle", 0, 500, is_idle=True, collective=None, process=1), NOW - 1)
    assert stalled_ranks({0: done, 1: answer("load", 0, 20)}, NOW, 60) == []


def test_many_stalled_ranks_are_counted() -> None:
    stalled = stalled_ranks({number: answer("start", 0, 100) for number in range(64)}, NOW, 60)
    assert len(stalled) == 9
    assert stalled[-1] == "and 56 more like these"


def test_marks_are_read_while_their_thread_is_held_up() -> None:
    marks = ProgressMarks()
    is_there = threading.Event()
    may_go = threading.Event()

    def work() -> None:
        with marks.method("update"):
            marks.mark_part("mini-batch 1 of 4")
            marks.mark_step("micro-batch 1 of 8")
            marks.mark_step("micro-batch 2 of 8")
            is_there.set()
            may_go.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    is_there.wait(60)
    progress = marks.read()
    may_go.set()
    thread.join()
    assert progress.place == "update, mini-batch 1 of 4, micro-batch 2 of 8"
    assert progress.num_marks == 3
    assert not progress.is_idle
    assert progress.collective is None
    assert marks.read().is_idle


def test_the_outermost_function_of_a_collectives_file_is_named() -> None:
    files = ("train.py", "p2p_communication.py", "distributed_c10d.py", "wrapper.py")
    frame: SimpleNamespace | None = None
    for number, file in enumerate(files):
        frame = SimpleNamespace(
            f_code=SimpleNamespace(co_filename=f"/torch/{file}", co_name=f"f{number}"), f_back=frame
        )
    assert _collective_of(cast(FrameType, frame)) == "f1"
    assert _collective_of(None) is None


def test_a_ranks_next_answer_brings_its_methods_and_their_parts_once() -> None:
    marks = ProgressMarks()
    with marks.method("update"):
        marks.mark_part("fetch")
        time.sleep(2 * SHORTEST_S)
        marks.mark_part("nothing")
        marks.mark_part("mini-batch 1 of 1", mini_batch=0, data_rank=3)
        time.sleep(2 * SHORTEST_S)
    answer = marks.answer("report", received_at=5.0)
    fetch, mini_batch, update = answer.work
    assert (fetch.name, mini_batch.name, update.name) == ("fetch", "mini-batch 1 of 1", "update")
    assert mini_batch.details == {"mini_batch": 0, "data_rank": 3}
    assert update.began_at <= fetch.began_at <= fetch.ended_at <= mini_batch.began_at
    assert mini_batch.ended_at <= update.ended_at
    assert marks.answer(None, received_at=6.0).work == ()


def test_the_driver_notes_what_answers_bring_and_keeps_their_values() -> None:
    timeline = Timeline(now=lambda: 20.0)
    timeline.begin(1)
    work = Work("update", began_at=11.0, ended_at=19.0)
    answers = [RankAnswer("first", 10.5, 19.5, (work,)), "plain"]
    assert values_of([(4, None), (5, None)], answers, asked_at=10.0, timeline=timeline) == ["first", "plain"]
    done = timeline.end()
    assert done is not None
    assert [span.name for span in done.spans if span.process == "policy rank 4"] == ["update"]
    assert done.clocks["policy rank 4"].error_s == 0.5
