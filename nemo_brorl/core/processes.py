"""List process trees, check whether processes run, and end them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence

import psutil

# Seconds that a killed or terminated process has to exit.
END_S = 10.0
# Seconds between two looks for zombies.
POLL_S = 0.1


def children_but(before: Collection[psutil.Process]) -> list[psutil.Process]:
    """Return all child processes of the current process, at any depth, except those in `before`."""
    return [child for child in psutil.Process().children(recursive=True) if child not in before]


def with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the given processes that still exist, and all processes below them."""
    tree = set(processes)
    for process in processes:
        try:
            tree.update(process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return list(tree)


def name_of(process: psutil.Process) -> str:
    """Return the name of a process, or "" if it has exited."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def is_running(process: psutil.Process) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_processes(processes: Sequence[psutil.Process], wait_s: float) -> int:
    """Wait up to `wait_s` seconds for processes to end, kill the rest, and return how many were killed."""
    left = running_after(processes, wait_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    running_after(left, END_S)
    return len(left)


def running_after(processes: Sequence[psutil.Process], wait_s: float) -> list[psutil.Process]:
    """Wait up to `wait_s` seconds for processes to end, and return those that still run.

    A zombie counts as ended. The first process of a container often leaves orphans as zombies for ever.
    """
    deadline = time.monotonic() + wait_s
    left = list(processes)
    while True:
        remaining_s = max(deadline - time.monotonic(), 0.0)
        _, alive = psutil.wait_procs(left, timeout=min(remaining_s, POLL_S))
        left = [process for process in alive if is_running(process)]
        if not left or not remaining_s:
            return left
