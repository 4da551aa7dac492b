"""What the campaign does to a machine, tried on files, ports and processes of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.campaign import machine


def where_allowed(act: Callable[[], object]) -> object:
    """Result of an act; the test is skipped where this user may not do it."""
    try:
        return act()
    except machine.NOT_ALLOWED as error:
        pytest.skip(f"not allowed here: {error}")


def test_a_full_disk_has_the_rest_that_was_drawn_and_all_of_it_again_later(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    disk = machine.own_disk(folder)
    where_allowed(disk.__enter__)
    try:
        filler = machine.fill(folder, 100_000)
        with pytest.raises(OSError, match="No space left"):
            (folder / "checkpoint").write_bytes(bytes(200_000))
        (folder / "checkpoint").unlink()
        filler.unlink()
        (folder / "checkpoint").write_bytes(bytes(200_000))
    finally:
        disk.__exit__(None, None, None)
    assert list(folder.iterdir()) == []


def test_the_disk_of_the_machine_is_never_filled(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="on the machine's own disk"):
        machine.fill(tmp_path, 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_folder_takes_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}")
    freeze = machine.frozen(tmp_path)
    where_allowed(freeze.__enter__)
    try:
        for act in (
            (tmp_path / "new").touch,
            (tmp_path / "metrics.jsonl").unlink,
            lambda: (tmp_path / "metrics.jsonl").write_text(""),
        ):
            with pytest.raises(PermissionError):
                act()
    finally:
        freeze.__exit__(None, None, None)
    (tmp_path / "metrics.jsonl").unlink()


def test_taken_ports_are_refused_and_their_neighbours_are_not() -> None:
    port = machine.RAYS_PORTS[0]
    with machine.taken_ports() as num_taken:
        assert num_taken > 1000
        with socket.socket() as probe, pytest.raises(OSError, match="Address already in use"):
            probe.bind(("127.0.0.1", port))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_the_kernel_kills_one_of_the_processes_that_together_get_no_more_memory() -> None:
    grow = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(b'1' * (1 << 20)))\n    time.sleep(0.01)\n"
    asking = subprocess.Popen([sys.executable, "-c", grow])
    idle = subprocess.Popen(["sleep", "60"])
    try:
        processes = [psutil.Process(asking.pid), psutil.Process(idle.pid)]
        ended = where_allowed(lambda: machine.run_out_of_memory(processes))
        assert ended == [Path(sys.executable).name]
        assert not psutil.pid_exists(asking.pid)
        assert idle.poll() is None
    finally:
        asking.kill()
        idle.kill()
        asking.wait()
        idle.wait()


def test_the_clock_of_a_process_jumps_while_it_runs_and_its_waits_do_not(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    machine.write_settings(settings)
    variables = machine.variables(machine.build(tmp_path), settings)
    program = (
        "import sys, threading, time\n"
        "for line in sys.stdin:\n"
        "    start = time.monotonic()\n"
        "    threading.Event().wait(0.05)\n"
        "    print(time.time(), time.monotonic() - start, flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    for ahead in (0, 86_400, -86_400):
        machine.write_settings(settings, seconds_ahead=ahead)
        child.stdin.write("now\n")
        child.stdin.flush()
        clock, waited = (float(text) for text in child.stdout.readline().split())
        assert clock - time.time() == pytest.approx(ahead, abs=600)
        assert 0.05 <= waited < 600
    child.stdin.close()
    child.wait()
