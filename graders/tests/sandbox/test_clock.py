"""The clock of work in other processes: wall time while they sleep, CPU time while they wait for a CPU."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from brorl_graders.base.settings import CodeLimits
from brorl_graders.sandbox import clock
from brorl_graders.sandbox.clock import Clock
from brorl_graders.verifiers.code import code

STEP_S = 1.0


@pytest.fixture
def wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the wall clock is one second later."""
    numbers = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: STEP_S * next(numbers))


def looks(monkeypatch: pytest.MonkeyPatch, *seen: tuple[float, bool]) -> None:
    """Let the clock see these CPU seconds of the work, and whether it could run."""
    left = iter(seen)
    monkeypatch.setattr(clock, "_look", lambda process: next(left))


def test_wall_time_counts_while_all_processes_sleep(wall_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, (5.0, False), (5.0, False), (5.1, False))
    timer = Clock(1)
    assert [timer.seconds() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_cpu_time_counts_while_one_could_run(wall_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, (5.0, True), (5.5, True), (8.5, True), (9.25, False))
    timer = Clock(1)
    # The first look has nothing to compare with; several processes count no more than the wall time
    assert [timer.seconds() for _ in range(4)] == [1.0, 1.5, 2.5, 3.5]


def test_a_quarter_of_the_wall_time_counts_at_least(wall_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, (5.0, True), (5.0, True), (4.0, True))
    timer = Clock(1)
    assert [timer.seconds() for _ in range(3)] == [1.0, 1.25, 1.5]
    timer.start()
    looks(monkeypatch, (9.0, True))
    assert timer.seconds() == 1.0


def test_a_look_sees_descendants_and_not_the_process_that_looks() -> None:
    spinning = "import os\nif os.fork(): os.wait()\nwhile True: pass"
    with subprocess.Popen(["sleep", "3600"]) as process:
        try:
            assert comes_true(lambda: not clock._look(process.pid)[1])
            assert comes_true(lambda: not clock._look(os.getpid())[1])
        finally:
            process.kill()
    with subprocess.Popen([sys.executable, "-c", spinning], start_new_session=True) as process:
        try:
            assert comes_true(lambda: clock._look(process.pid)[0] > 0.5)  # CPU time of the child of the process
            assert clock._look(os.getpid())[1]
        finally:
            os.killpg(process.pid, 9)
    assert clock._look(process.pid) == (0.0, False)


def comes_true(is_so: Callable[[], bool]) -> bool:
    """Return whether something is so within a minute."""
    ends_at = time.monotonic() + 60
    while not is_so() and time.monotonic() < ends_at:
        time.sleep(0.01)
    return is_so()


@pytest.mark.parametrize(
    ("work", "cpu_share", "score"),
    [
        ("while time.monotonic() < end: pass", 1.0, 0.0),
        ("while time.monotonic() < end: pass", 0.0, 1.0),
        ("time.sleep(1.6)", 0.0, 0.0),
    ],
)
def test_a_program_that_gets_little_cpu_is_not_late_and_one_that_sleeps_is(
    work: str, cpu_share: float, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code.VARIABLE, "")
    code.configure(CodeLimits(test_timeout_s=1.0), 60)
    look = clock._look
    monkeypatch.setattr(clock, "_look", lambda process: (cpu_share * time.monotonic(), look(process)[1]))
    program = f"import time\ndef f(x):\n    end = time.monotonic() + 1.6\n    {work}\n    return x"
    try:
        tests = {"inputs": [[1]], "outputs": [1], "fn_name": "f"}
        assert code.score({"tests": tests}, f"```python\n{program}\n```") == score
    finally:
        code.close()
