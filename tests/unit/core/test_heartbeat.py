"""Heartbeats and the stall watch, looked at by hand: no thread runs, and time is moved by the test."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_brorl.commands.wiring import Actors, wait_ready
from nemo_brorl.core import stall_watch as module
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.errors import StallError
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_innermost_stage_counts_and_every_beat_ends_the_silence(clock: Clock) -> None:
    heartbeat = Heartbeat()
    with heartbeat.stage("collect"):
        clock.now += 10
        with heartbeat.stage("policy update"):
            clock.now += 3
            heartbeat.beat("rank 0 at update")
            clock.now += 4
            assert heartbeat.standing() == ("policy update", "rank 0 at update", 7, 4)
        clock.now += 5
        assert heartbeat.standing() == ("collect", "", 22, 5)
    assert heartbeat.standing().stage == "driver"


def test_a_silence_is_warned_of_once_and_again_when_it_has_doubled(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    warnings: list[tuple[str, float]] = []
    heartbeat.on_stall = lambda text, seconds: warnings.append((text, seconds))
    watch = StallWatch(heartbeat, tmp_path, warning_s=120)
    with heartbeat.stage("generate", lambda seconds: [f"engine 3 ({seconds:.0f})"], lambda seconds: ["verifier 0"]):
        heartbeat.beat("512 of 4,096 rollouts")
        for _ in range(10):
            clock.now += 30
            watch.look()
    assert warnings == [
        ("generate (512 of 4,096 rollouts): nothing has moved for 120 s; late: engine 3 (60), verifier 0", 120),
        ("generate (512 of 4,096 rollouts): nothing has moved for 240 s; late: engine 3 (120), verifier 0", 240),
    ]
    heartbeat.check()


def test_the_file_says_where_the_run_stands_and_who_is_late(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=100)
    with heartbeat.stage("sync", lambda seconds: ["engine 1"]):
        clock.now += 99
        watch.look()
        row = json.loads((tmp_path / "heartbeat.json").read_text())
        assert (row["state"], row["stage"], row["silent_s"], row["late"]) == ("running", "sync", 99, [])
        clock.now += 1
        watch.look()
        row = json.loads((tmp_path / "heartbeat.json").read_text())
        assert (row["state"], row["silent_s"], row["late"]) == ("stalled", 100, ["engine 1"])
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


def test_after_the_timeout_every_check_raises_and_says_who_was_late(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=100, timeout_s=150)
    with heartbeat.stage("policy update", lambda seconds: ["policy rank 1 does not answer"]):
        clock.now += 149
        watch.look()
        heartbeat.check()
        clock.now += 1
        watch.look()
        with pytest.raises(
            StallError, match=r"policy update: nothing has moved for 150 s; late: policy rank 1 does not answer.*=150 s"
        ):
            heartbeat.check()


def test_a_run_that_moved_before_anybody_looked_goes_on(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=100, timeout_s=150)
    clock.now += 150
    watch.look()
    heartbeat.beat()
    watch.look()
    heartbeat.check()
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "running"


def test_the_thread_writes_and_ends_with_its_context(tmp_path: Path) -> None:
    with StallWatch(Heartbeat(), tmp_path, warning_s=100) as watch:
        pass
    assert not watch._thread.is_alive()
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "ended"


def test_engines_that_start_slowly_are_named_while_the_run_waits_for_them() -> None:
    heartbeat, seen = Heartbeat(), []

    def look() -> None:
        seen.append((heartbeat.standing().stage, heartbeat.stalled(5.0)))

    generator: Any = SimpleNamespace(
        wait_ready=look, stalled=lambda seconds: [f"engine 1 is starting, last heard of {2 * seconds:.0f} s ago"]
    )
    verifier: Any = SimpleNamespace(wait_ready=lambda: None)
    wait_ready(Actors(None, generator, verifier), Stopwatch(), heartbeat)
    assert seen == [("engines start", ["engine 1 is starting, last heard of 10 s ago"])]
    assert heartbeat.standing().stage == "driver"


def test_a_start_that_takes_too_long_is_given_up_although_something_moves(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=120, start_timeout_s=600)
    with heartbeat.stage("engines start", lambda seconds: ["engine 3 is starting"]):
        for _ in range(6):
            clock.now += 99
            heartbeat.beat("loading")
            watch.look()
            heartbeat.check()
        clock.now += 6
        watch.look()
        with pytest.raises(StallError, match=r"start_timeout_s=600 s: engines start \(loading\).*engine 3 is starting"):
            heartbeat.check()


def test_a_start_in_silence_is_not_a_stall_and_the_same_silence_later_is(clock: Clock, tmp_path: Path) -> None:
    """A large model loads for longer than a step may stand still."""
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=120, timeout_s=900, start_timeout_s=3600)
    clock.now += 3000
    watch.look()
    heartbeat.check()
    watch.mark_started()
    watch.look()
    heartbeat.check()
    clock.now += 900
    watch.look()
    with pytest.raises(StallError, match="trainer.stall_timeout_s=900 s"):
        heartbeat.check()


def test_a_sign_of_life_keeps_what_the_stage_says_of_itself(clock: Clock) -> None:
    heartbeat = Heartbeat()
    with heartbeat.stage("validate"):
        heartbeat.beat("0 of 8,192 rollouts")
        clock.now += 60
        heartbeat.beat()
        assert heartbeat.standing() == ("validate", "0 of 8,192 rollouts", 60, 0)


def test_the_limit_of_the_start_ends_with_it(clock: Clock, tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    watch = StallWatch(heartbeat, tmp_path, warning_s=120, start_timeout_s=600)
    clock.now += 599
    watch.mark_started()
    clock.now += 2
    heartbeat.beat()
    watch.look()
    heartbeat.check()
    assert watch.given_up_at is None


def test_a_run_that_ends_with_an_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), StallWatch(Heartbeat(), tmp_path, warning_s=100):
        raise ValueError("broken")
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "failed"
    with pytest.raises(KeyboardInterrupt), StallWatch(Heartbeat(), tmp_path, warning_s=100):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "ended"
