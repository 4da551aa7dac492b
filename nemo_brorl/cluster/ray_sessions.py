"""Remove the folders that ended Ray sessions left on this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psutil

# Ended sessions that are kept, because their logs may explain a failed run.
KEPT = 10
SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(?P<process>\d+)")


def remove_old_sessions(folder: Path, kept: int = KEPT) -> list[Path]:
    """Remove the folders of ended Ray sessions in `folder`, except for the `kept` youngest.

    Returns the removed folders. A session's name starts with the time of its start and ends with the number of the
    process that started it. The folder stays as long as any process has that number.
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
        # Another run may be removing this folder.
        shutil.rmtree(path, ignore_errors=True)
    return removed
