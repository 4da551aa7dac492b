"""Requests to stop: which signal means what, and when a step has no time left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from nemo_brorl.core.clock import StepCut, StopRequest, grace_s

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def installed(seconds: float | None = None) -> StopRequest:
    stop = StopRequest(None, seconds)
    stop.install()
    return stop


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_usr1_means_to_go_on_later_and_leaves_what_is_being_saved_alone() -> None:
    stop = installed()
    send(signal.SIGUSR1)
    assert (stop.reason, stop.will_resume) == ("SIGUSR1", True)
    send(signal.SIGUSR1)
    send(signal.SIGTERM)  # the end of Slurm's patience: not a second request
    assert stop.reason == "SIGUSR1" and stop.should_stop()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_sigterm_ends_the_run_for_good_and_a_second_one_at_once() -> None:
    stop = installed()
    send(signal.SIGTERM)
    assert (stop.reason, stop.will_resume) == ("SIGTERM", False)
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)


def test_a_step_is_cut_when_it_would_not_be_through_in_half_of_the_time_that_is_left() -> None:
    stop = installed(1000.0)
    stop.step_began = time.monotonic() - 100
    stop.longest_step_s = 590.0  # 490 s to go
    stop.check()
    send(signal.SIGUSR1)
    stop.check()  # 490 < 500
    stop.longest_step_s = 700.0
    with pytest.raises(StepCut):
        stop.check()


def test_without_a_deadline_a_step_is_finished() -> None:
    stop = installed()
    send(signal.SIGUSR1)
    stop.longest_step_s = 1e6
    stop.check()
    assert stop.should_stop()


def test_the_time_limit_is_a_request_to_go_on_later() -> None:
    stop = StopRequest(100.0)
    assert not stop.should_stop()
    stop.longest_step_s = 101.0
    assert stop.should_stop() and stop.will_resume


def test_the_job_says_how_much_time_it_leaves() -> None:
    assert grace_s({"BRORL_GRACE_S": "240"}) == 240.0
    assert grace_s({}) is None
    assert grace_s({"BRORL_GRACE_S": ""}) is None


@pytest.mark.parametrize(
    ("number", "is_over", "code"),
    [
        (None, False, 0),
        (signal.SIGINT, True, 0),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 130),
        (signal.SIGUSR1, False, 75),
        (signal.SIGUSR1, True, 0),
    ],
)
def test_the_exit_code_says_whether_a_stopped_run_has_steps_left(
    number: signal.Signals | None, is_over: bool, code: int
) -> None:
    stop = StopRequest(None)
    if number is not None:
        stop._on_signal(number, None)
    assert stop.exit_code(is_over) == code


def test_an_update_that_would_outlast_the_time_limit_does_not_begin() -> None:
    stop = StopRequest(100.0)
    stop.check_update()  # its time is not known: a job does one update at least
    stop.longest_update_s = 90.0
    stop.check_update()
    assert stop.reason is None
    stop.longest_update_s = 101.0
    with pytest.raises(StepCut):
        stop.check_update()
    assert (stop.reason, stop.will_resume) == ("the time limit is near", True)


def test_after_usr1_an_update_begins_only_if_it_is_known_to_be_over_in_half_of_the_time() -> None:
    stop = installed(1000.0)
    send(signal.SIGUSR1)
    with pytest.raises(StepCut):
        stop.check_update()
    stop.longest_update_s = 490.0
    stop.check_update()
    stop.longest_update_s = 510.0
    with pytest.raises(StepCut):
        stop.check_update()


def test_the_longest_update_counts() -> None:
    stop = StopRequest(None)
    with stop.update():
        pass
    assert stop.longest_update_s is not None
    stop.longest_update_s = 1e6
    with stop.update():
        pass
    assert stop.longest_update_s == 1e6
