"""Folder of a sandbox on this machine: its owner holds it, and what owners that were killed have left is removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from nemo_brorl.tasks.sandbox import cleanup

PREFIX = "brorl-sandbox-"
MIN_AGE_S = 60.0  # of a folder that is taken for left: a new one is not held at once


class HeldFolder:
    """A new folder with an empty `root` and an empty `scratch`, locked as long as this process lives. Making it removes
    those of this user that no process holds."""

    def __init__(self) -> None:
        remove_left()
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = _locked(self.path)
        os.chmod(self.path, 0o711)  # programs of another user reach the scratch folder, by its name alone
        for name in ("root", "scratch"):
            os.mkdir(os.path.join(self.path, name))

    def remove(self) -> None:
        """Remove it with all that is in it. Does nothing the second time."""
        if self._lock is None:
            return
        _remove(self.path)
        os.close(self._lock)
        self._lock = None


def remove_left() -> None:
    """Remove the folders of this user that no process holds."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            state = path.lstat()
        except OSError:  # another process has removed it
            continue
        is_young = time.time() - state.st_mtime < MIN_AGE_S
        if state.st_uid != os.getuid() or path.is_symlink() or is_young:
            continue
        lock = _locked(str(path))
        if lock is not None:
            _remove(str(path))
            os.close(lock)


def _locked(path: str) -> int | None:
    """The folder as a file that this process has locked; None where another has, or it is gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def _remove(path: str) -> None:
    try:
        cleanup.empty(path)  # also folders without rights
        os.rmdir(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
