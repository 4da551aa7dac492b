"""The timeline of a step: stages without gaps, clocks that are aligned, lanes."""

import pytest

from nemo_brorl.core.timeline import ClockOffset, Exchange, Timeline, TimelineSpan, Work, chunk_key, top_stages


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def test_top_stages_and_what_is_between_them_are_the_step() -> None:
    clock = Clock()
    timeline = Timeline(now=clock)
    timeline.begin(3)
    with timeline.stage("collect"):
        clock.wait(2)
    clock.wait(1)
    with timeline.stage("update"):
        clock.wait(1)
        with timeline.stage("wait"):
            clock.wait(3)
    clock.wait(0.5)
    done = timeline.end()
    assert done is not None
    assert (done.step, done.began_at, done.seconds) == (3, 1000.0, 7.5)
    names = [(stage.name, stage.start_s, stage.seconds) for stage in top_stages(done.spans)]
    assert names == [("collect", 0, 2), ("between", 2, 1), ("update", 3, 4), ("between", 7, 0.5)]
    assert TimelineSpan("driver", "stages", "wait", 4, 3) in done.spans


def test_a_clock_that_answers_do_not_contradict_is_taken_to_agree() -> None:
    clock = ClockOffset()
    clock.add_exchange(Exchange(asked_at=10.0, received_at=10.2, answered_at=11.0, known_at=11.1))
    assert clock.seconds == 0
    assert clock.error_s == pytest.approx(0.2)  # ahead by 0.2 s at most, behind by 0.1


def test_a_clock_that_is_ahead_is_found_within_the_bounds_of_its_answers() -> None:
    clock = ClockOffset()
    clock.add_exchange(Exchange(asked_at=10.0, received_at=15.4, answered_at=16.0, known_at=11.2))  # 4.8 … 5.4
    clock.add_exchange(Exchange(asked_at=20.0, received_at=25.2, answered_at=26.0, known_at=21.4))  # 4.6 … 5.2
    assert clock.seconds == pytest.approx(5.0)
    assert clock.error_s == pytest.approx(0.2)


def test_work_of_a_clock_that_is_ahead_lands_where_the_driver_waited_for_it() -> None:
    clock = Clock()
    timeline = Timeline(now=clock)
    timeline.begin(1)
    clock.wait(10)
    work = Work("sample", began_at=1052.0, ended_at=1058.0)  # 50 s ahead
    timeline.record_work("engine 0", [work], Exchange(1001.0, 1051.1, 1058.9, 1009.0))
    done = timeline.end()
    assert done is not None
    assert done.clocks["engine 0"].seconds == pytest.approx(50.0)
    span = done.spans[-1]
    assert (span.process, span.name) == ("engine 0", "sample")
    assert (span.start_s, span.seconds) == (pytest.approx(2.0), pytest.approx(6.0))


def test_chunks_side_by_side_get_lanes_of_their_own_and_share_them_one_after_the_other() -> None:
    timeline = Timeline(now=Clock())
    timeline.begin(1)
    for began_at, ended_at in ((1000.0, 1004.0), (1001.0, 1002.0), (1003.0, 1005.0)):
        timeline.record_work("engine 0", [Work("sample", began_at, ended_at, lane="chunks")])
    done = timeline.end()
    assert done is not None
    lanes = {span.start_s: span.lane for span in done.spans if span.process == "engine 0"}
    assert lanes == {0: "chunks 1", 1: "chunks 2", 3: "chunks 2"}


def test_a_timeline_that_is_off_gives_nothing() -> None:
    timeline = Timeline(is_on=False)
    timeline.begin(1)
    with timeline.stage("collect"):
        pass
    assert timeline.end() is None


def test_a_step_that_was_not_begun_is_none() -> None:
    timeline = Timeline()
    timeline.record_work("engine 0", [Work("sample", 1.0, 2.0)])
    assert timeline.end() is None


def test_a_chunk_is_named_by_its_prompt_and_its_first_rollout() -> None:
    assert chunk_key("train-7", 64) == "train-7/64"
