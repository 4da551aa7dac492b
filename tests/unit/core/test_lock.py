"""A run folder has one driver: the second is told who the first is, and one that is gone is in nobody's way."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_brorl.core.errors import CheckpointError, ResourceError
from nemo_brorl.core.lock import LOCK, locked

PROGRAM = """
import sys, time
from pathlib import Path
from nemo_brorl.core.lock import locked
with locked(Path(sys.argv[1]), "brorl train"):
    print("holds it", flush=True)
    time.sleep(60)
"""
ELSEWHERE = {
    "host": "node7",
    "pid": 4711,
    "command": "brorl train",
    "since": "2026-01-01 00:00:00 UTC",
    "boot": "other",
}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds it\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_driver_is_told_host_and_process_of_the_first_and_what_to_do(
    tmp_path: Path, driver: subprocess.Popen[str]
) -> None:
    with pytest.raises(CheckpointError) as raised, locked(tmp_path, "brorl train"):
        pass
    message = str(raised.value)
    assert f"`brorl train` on host {os.uname().nodename}, process {driver.pid}, since " in message
    assert f"end it by `kill {driver.pid}`" in message
    assert "choose another exp_manager.explicit_log_dir" in message
    assert (tmp_path / LOCK).exists(), "the second one leaves the lock of the first alone"


def test_a_driver_that_was_killed_is_in_nobodys_way(
    tmp_path: Path, driver: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    with locked(tmp_path, "brorl train"):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert f"process {driver.pid}" in caplog.text and "no longer running, so this run takes the lock" in caplog.text


def test_a_driver_that_is_stopped_still_holds_its_folder(tmp_path: Path, driver: subprocess.Popen[str]) -> None:
    driver.send_signal(signal.SIGSTOP)
    with pytest.raises(CheckpointError, match=f"process {driver.pid}"), locked(tmp_path, "brorl train"):
        pass


def test_nothing_is_left_of_a_lock_nor_of_a_folder_that_stayed_empty(tmp_path: Path) -> None:
    with locked(tmp_path / "runs" / "new", "brorl train"):
        assert (tmp_path / "runs" / "new" / LOCK).exists()
    assert not (tmp_path / "runs" / "new").exists()
    (tmp_path / "config.yaml").touch()
    with locked(tmp_path, "brorl train"):
        pass
    assert not (tmp_path / LOCK).exists()
    assert (tmp_path / "config.yaml").exists()


def test_a_driver_of_another_machine_whose_lock_cannot_be_seen_is_known_by_its_touches(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    path.write_text(json.dumps(ELSEWHERE))
    ended = threading.Event()

    def touch() -> None:
        while not ended.wait(0.05):
            os.utime(path)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(CheckpointError, match="host node7, process 4711"), locked(tmp_path, "brorl train", 30.0):
            pass
    finally:
        ended.set()
        thread.join()
    assert json.loads(path.read_text()) == ELSEWHERE


def test_what_a_crashed_machine_left_is_taken_over_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / LOCK).write_text(json.dumps(ELSEWHERE))
    with locked(tmp_path, "brorl train", watch_s=0.1):
        assert is_held(tmp_path), "the watch gives the lock up, and it is taken again"
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert "host node7" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": 3}'])
def test_a_damaged_lock_that_nobody_holds_is_taken(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    with locked(tmp_path, "brorl train"):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_the_lock_is_touched_while_it_is_held(tmp_path: Path) -> None:
    with locked(tmp_path, "brorl train", touch_s=0.01):
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 30
        while (tmp_path / LOCK).stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_disk_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with locked(tmp_path, "brorl train"):
        assert (tmp_path / LOCK).exists()
    assert "this disk has no locks (No locks available)" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"file/run/driver.lock cannot be written \(Not a directory\)"
    with pytest.raises(ResourceError, match=message), locked(tmp_path / "file" / "run", "brorl train"):
        pass


def is_held(folder: Path) -> bool:
    """Whether another process finds the folder in use."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=30)
    return "is in use by" in done.stderr
