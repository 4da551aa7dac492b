"""Walls around a process that scores: no network, no files beside libraries, no other process.

For verifiers that need none of these. A response that takes such a process over reaches nothing but the score that it
returns. Landlock keeps files, seccomp keeps the network, other processes and new ones; where the kernel lacks one of
them, the other holds alone.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from nemo_brorl.tasks.sandbox import landlock, linux, program_process, seccomp
from nemo_brorl.tasks.sandbox.confine import readable_paths

PACKAGE = Path(__file__).parents[2]
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
FIRST_LANDLOCK = "Linux 5.13"


class Walls(NamedTuple):
    """What this kernel has to build them of; made once, for all processes that a fork server starts."""

    rules: int | None  # Landlock's, a file descriptor
    can_filter: bool  # by seccomp

    def gaps(self) -> list[str]:
        """What a process behind them could do that it must not."""
        found = []
        if self.rules is None:
            found.append(f"read this user's files, and write them (needs Landlock, {FIRST_LANDLOCK})")
        if not self.can_filter:
            found.append("use the network and start processes (needs seccomp)")
        return found


def measure() -> Walls:
    """Try what the kernel has. Forks once: the caller has a single thread."""
    interface = landlock.version()
    rules = None
    if interface:
        rules = landlock.ruleset(_libraries(), [], interface)
    return Walls(rules, program_process.can_filter())


def enter(walls: Walls) -> None:
    """Put this process behind them, for good. Its environment, which may hold keys, is emptied."""
    os.environ.clear()
    os.chdir("/")
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if walls.rules is not None:
        landlock.restrict(walls.rules)
    if walls.can_filter:
        code = seccomp.build(True, os.getpid(), guard_files=True, guard_starts=True)
        assert code is not None, "the filter was tried"
        seccomp.install(code)


def _libraries() -> list[str]:
    """Folders that a library may read as it is imported: Python's, those of packages, and this package."""
    folders = [str(PACKAGE)]
    for folder in sys.path:
        if Path(folder).name in LIBRARY_FOLDERS:
            folders.append(folder)
    return readable_paths(folders)
