"""What Ray leaves behind is removed, but for the youngest and what is in use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from nemo_brorl.cluster.ray_sessions import remove_old_sessions

GONE = 4_194_305  # above the highest number that Linux gives a process


def session(folder: Path, second: int, process: int = GONE) -> Path:
    path = folder / f"session_2026-11-23_01-00-{second:02}_123456_{process}"
    (path / "logs").mkdir(parents=True)
    (path / "logs" / "raylet.out").write_text("a line\n")
    return path


def test_all_but_the_youngest_sessions_that_ended_are_removed(tmp_path: Path) -> None:
    sessions = [session(tmp_path, second) for second in range(4)]
    assert remove_old_sessions(tmp_path, kept=1) == sessions[:3]
    assert list(tmp_path.iterdir()) == sessions[3:]


def test_a_session_whose_process_runs_stays_however_old_it_is(tmp_path: Path) -> None:
    assert not psutil.pid_exists(GONE)
    running = session(tmp_path, 0, os.getpid())
    ended = session(tmp_path, 1)
    assert remove_old_sessions(tmp_path, kept=0) == [ended]
    assert list(tmp_path.iterdir()) == [running]


def test_nothing_but_sessions_is_removed(tmp_path: Path) -> None:
    newest = session(tmp_path, 0)
    (tmp_path / "session_latest").symlink_to(newest)
    (tmp_path / "session_of_mine").mkdir()
    assert remove_old_sessions(tmp_path, kept=0) == [newest]
    assert {path.name for path in tmp_path.iterdir()} == {"session_latest", "session_of_mine"}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert remove_old_sessions(tmp_path / "ray") == []
