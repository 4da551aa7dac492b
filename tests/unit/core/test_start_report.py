"""The start of a command shows its stages while they run, and a signal ends it in order or by force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_brorl.core.clock import STOP_SIGNALS, StartCut
from nemo_brorl.core.console import Console
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.core.start_report import StartReport

PATIENCE_S = 60.0  # a generous bound


def drawn(report: StartReport) -> str:
    """Return the live line, without the sign that turns."""
    return " ".join(word for word in report.text(time.monotonic()).split() if len(word) > 1 or word in "✓0123456789s")


def test_finished_stages_have_a_tick_and_the_running_one_counts() -> None:
    with StartReport(Console()) as report:
        report.seconds.update(inputs=0.2, ray=3.2)
        with report.measure("engines"):
            assert drawn(report) == "✓ ray 3 s engines 0 s"
        report.seconds["engines"] = 14.6
        assert drawn(report) == "✓ ray 3 s ✓ engines 15 s"
    assert report.summary() == "ray 3 s, engines 15 s"


def test_a_narrow_screen_shows_the_end_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    with StartReport(Console()) as report:
        report.seconds.update(inputs=4.0, ray=6.0, policy=22.0)
        with report.measure("engines"):
            line = report.text(time.monotonic())
    assert len(line) < 30
    assert line.startswith(" …")
    assert line.endswith(" engines 0 s")


def test_in_a_file_a_stage_is_named_when_it_begins_and_again_while_it_lasts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemo_brorl.core.start_report.SAY_S", 0.0)
    until = time.monotonic() + PATIENCE_S
    written = ""
    with StartReport(Console()) as report, report.measure("engines"):
        while "  engines 0 s …\n" not in written and time.monotonic() < until:
            time.sleep(0.05)
            written += capsys.readouterr().err
    assert written.startswith("  engines …\n  engines 0 s …\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 75)], ids=str
)
def test_a_signal_ends_the_start_with_its_stage_in_the_sentence(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(other) for other in STOP_SIGNALS]
    expected = pytest.raises(StartCut, match=rf"stopped by {number.name} in its start \(ray\)")
    with expected as caught, StartReport(Console()) as report, report.measure("ray"):
        os.kill(os.getpid(), number)
    assert caught.value.exit_code == code
    assert [signal.getsignal(other) for other in STOP_SIGNALS] == before


def test_handlers_that_a_library_replaced_are_put_back_after_the_stage() -> None:
    with pytest.raises(StartCut), StartReport(Console()) as report:
        with report.measure("ray"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)


def test_the_exit_of_a_handler_of_ray_is_a_stop_too() -> None:
    expected = pytest.raises(StartCut, match=r"SIGTERM in its start \(ray\)")
    with expected, StartReport(Console()) as report, report.measure("ray"):
        sys.exit(signal.SIGTERM)
    with pytest.raises(SystemExit), StartReport(Console()) as report, report.measure("ray"):
        sys.exit(1)


def test_an_interrupt_that_ray_makes_of_a_signal_keeps_its_name() -> None:
    expected = pytest.raises(StartCut, match=r"SIGTERM in its start \(parity\)")
    with expected, StartReport(Console()) as report, report.measure("parity"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None
    with pytest.raises(KeyboardInterrupt, match="^$"), StartReport(Console()) as report, report.measure("parity"):
        raise KeyboardInterrupt


def test_the_heartbeat_says_what_ended_the_start(tmp_path: Path) -> None:
    expected, stalls = pytest.raises(StartCut), StallWatch(Heartbeat(), tmp_path, 60.0)
    with expected, StartReport(Console()) as report, stalls, report.measure("engines"):
        os.kill(os.getpid(), signal.SIGTERM)
    beat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert beat["state"] == "ended"
    assert "stopped by SIGTERM in its start (engines)" in beat["detail"]


STUCK = """
import signal, sys, time
from pathlib import Path
from nemo_brorl.core import start_report
from nemo_brorl.core.console import Console
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch

start_report.CLOSING_S = 0.2
report = start_report.StartReport(Console())
stalls = StallWatch(Heartbeat(), Path(sys.argv[1]), 60.0)
report.on_cut = stalls.note_cut
with report:
    try:
        with report.measure("engines"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        time.sleep(600)  # a service that does not close
"""


def test_a_start_that_cannot_be_closed_is_ended_with_the_same_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 143
    assert "stopped by SIGTERM in its start (engines): nothing is lost." in done.stderr
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "ended"
