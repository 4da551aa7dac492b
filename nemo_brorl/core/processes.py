"""Trees of processes: which there are, whether one runs, and how all of them are ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import psutil

# That processes which were killed, or told to end, have for it.
END_S = 10.0


def children_but(before: Collection[psutil.Process]) -> list[psutil.Process]:
    """Return processes below this one that are not among `before`."""
    return [child for child in psutil.Process().children(recursive=True) if child not in before]


def with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those that are still there, and all processes below them."""
    found = set(processes)
    for process in processes:
        try:
            found.update(process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return list(found)


def name_of(process: psutil.Process) -> str:
    """Name of a process; empty when it is gone."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def is_running(process: psutil.Process) -> bool:
    """Say whether a process is there and not just waiting to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_processes(processes: Sequence[psutil.Process], wait_s: float) -> int:
    """Wait until these have ended, and kill those that have not within `wait_s` seconds; returns their number."""
    _, left = psutil.wait_procs(processes, timeout=wait_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=END_S)
    return len(left)
