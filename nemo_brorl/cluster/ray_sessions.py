"""Folders of Ray's sessions on this machine: what ended ones left is removed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psutil

# Sessions of processes that are gone, for whoever looks for the logs of a run that failed.
KEPT = 10
SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(?P<process>\d+)")


def remove_old_sessions(folder: Path, kept: int = KEPT) -> list[Path]:
    """Remove what ended sessions left in Ray's `folder`, but for the `kept` youngest. Returns what was removed.

    A session's name begins with the time of its start and ends with the process that started it: while that process
    runs, or another one has its number, the folder stays.
    """
    if not folder.is_dir():
        return []
    ended = []
    for path in sorted(folder.iterdir()):
        name = SESSION.fullmatch(path.name)
        if name and not path.is_symlink() and not psutil.pid_exists(int(name["process"])):
            ended.append(path)
    removed = ended[: max(0, len(ended) - kept)]
    for path in removed:
        # Another run may be removing it.
        shutil.rmtree(path, ignore_errors=True)
    return removed
