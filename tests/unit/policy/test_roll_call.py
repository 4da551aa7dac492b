"""Who is late, from answers written by hand; and the track of a rank, read while its thread is held up."""

from __future__ import annotations

import threading

from nemo_brorl.policy.roll_call import Answer, late_ranks
from nemo_brorl.policy.whereabouts import Track, Whereabouts

NOW = 1000.0


def answer(
    place: str, num_marks: int, seconds: float, collective: str | None = None, heard_s_ago: float = 1.0
) -> Answer:
    return Answer(
        Whereabouts(place, num_marks, seconds, is_idle=False, collective=collective, process=1), NOW - heard_s_ago
    )


def test_a_rank_that_does_not_answer_comes_before_one_that_computes_and_those_that_wait() -> None:
    answers = {
        0: answer("update, mini-batch 1 of 4, optimizer", 12, 118, "all_reduce"),
        1: answer("update, mini-batch 1 of 4, micro-batch 3 of 8", 6, 119),
        2: answer("update, mini-batch 1 of 4, micro-batch 2 of 8", 5, 1, heard_s_ago=90),
        3: answer("update, mini-batch 1 of 4, optimizer", 11, 117, "all_reduce"),
    }
    assert late_ranks(answers, NOW, 60) == [
        "policy rank 2 does not answer since 90 s, last heard at update, mini-batch 1 of 4, micro-batch 2 of 8",
        "policy rank 1 at update, mini-batch 1 of 4, micro-batch 3 of 8 since 120 s",
        "policy rank 3 at update, mini-batch 1 of 4, optimizer since 118 s, waiting in all_reduce",
        "policy rank 0 at update, mini-batch 1 of 4, optimizer since 119 s, waiting in all_reduce",
    ]


def test_ranks_that_move_or_have_done_their_part_are_not_late() -> None:
    done = Answer(Whereabouts("idle", 0, 500, is_idle=True, collective=None, process=1), NOW - 1)
    assert late_ranks({0: done, 1: answer("load", 0, 20)}, NOW, 60) == []


def test_many_late_ranks_are_counted() -> None:
    late = late_ranks({number: answer("start", 0, 100) for number in range(64)}, NOW, 60)
    assert len(late) == 9
    assert late[-1] == "and 56 more like these"


def test_a_track_is_read_while_its_thread_is_held_up() -> None:
    track, is_there, may_go = Track(), threading.Event(), threading.Event()

    def work() -> None:
        track.enter("update")
        track.part("mini-batch 1 of 4")
        track.step("micro-batch 1 of 8")
        track.step("micro-batch 2 of 8")
        is_there.set()
        may_go.wait(60)
        track.leave()

    thread = threading.Thread(target=work)
    thread.start()
    is_there.wait(60)
    where = track.read()
    may_go.set()
    thread.join()
    assert (where.place, where.num_marks, where.is_idle, where.collective) == (
        "update, mini-batch 1 of 4, micro-batch 2 of 8",
        3,
        False,
        None,
    )
    assert track.read().is_idle
