"""After a run: nothing of it is alive, and its files are gone."""

from __future__ import annotations

import os
import secrets
import signal
import time

from nemo_brorl.tasks.sandbox.program_process import Cell

RETRY_S, GIVE_UP_S = 0.002, 10.0
BLOCK = 4096  # bytes that a file takes at least


def end_all(pid: int, cell: Cell, processes: int) -> int:
    """Kill everything that the inmate `pid` has started, and itself, and wait for the end. Its wait status.

    `processes` is /proc. Raises OSError when something will not die: then this warden is of no more use.
    """
    statuses: dict[int, int] = {}
    give_up_at = time.monotonic() + GIVE_UP_S
    while True:
        _kill(cell, processes)
        if _wait_for_all(statuses, is_certain=cell.layers.pid):
            return statuses[pid]
        if time.monotonic() > give_up_at:
            raise OSError(f"processes of run {pid} cannot be ended")
        time.sleep(RETRY_S)


def _wait_for_all(statuses: dict[int, int], is_certain: bool) -> bool:
    """Whether no child is left. Adds the wait status of each that has ended; `is_certain` that all will, it waits for
    that."""
    try:
        while (ended := os.waitpid(-1, 0 if is_certain else os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        return True
    return False


def empty(folder: str) -> None:
    """Remove all that is in the scratch folder, where it is not a mount of its own that went away with the run. Folders
    may lie a thousand deep and have no rights: each is brought up to the top, then its files are removed."""
    prefix, number, found = secrets.token_hex(8), 0, [folder]
    while found:
        here = found.pop()
        os.chmod(here, 0o700)
        with os.scandir(here) as listed:
            entries = list(listed)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            number += 1
            found.append(os.path.join(folder, f"{prefix}.{number}"))
            os.rename(entry.path, found[-1])
        if here != folder:
            os.rmdir(here)


def is_within(folder: str, limit: int) -> bool:
    """Whether what lies in the scratch folder is within `limit` bytes, a block for each file counted. What cannot be
    looked into is not."""
    found, left = [folder], limit
    try:
        while found and left >= 0:
            size, below = _contents(found.pop())
            left, found = left - size, [*found, *below]
    except FileNotFoundError:
        return True  # the program is at work: the next look will tell
    except OSError:
        return False
    return left >= 0


def _contents(folder: str) -> tuple[int, list[str]]:
    """(bytes of what lies right in a folder, the folders among it)."""
    size, below = 0, []
    with os.scandir(folder) as listed:
        for entry in listed:
            size += max(512 * entry.stat(follow_symlinks=False).st_blocks, BLOCK)
            below += [entry.path] if entry.is_dir(follow_symlinks=False) else []
    return size, below


def _kill(cell: Cell, processes: int) -> None:
    """SIGKILL for every process of the run: in one system call where it has a pid namespace or a user of its own, else
    by the family tree, all of which hangs on this process (PR_SET_CHILD_SUBREAPER)."""
    if cell.layers.pid:
        assert os.getpid() == 1, "process 1 of its own namespace: -1 reaches nobody else's processes"
        _kill_all()
    elif cell.layers.own_uid:
        _kill_as(cell.user)
    else:
        for pid in _descendants(processes):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def _kill_as(user: int) -> None:
    """Kill all processes of the inmates' user, which is nobody else's. The killer is one of them."""
    killer = os.fork()
    if killer:
        os.waitpid(killer, 0)
        return
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if os.getresuid() == (user, user, user) and user != 0:
        _kill_all()
    os._exit(0)


def _descendants(processes: int) -> list[int]:
    """Process ids of all that descend from this process, parents first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(processes):
        if name.isdigit() and (parent := _parent(processes, name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def _parent(processes: int, name: str) -> int | None:
    try:
        file = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)
    except OSError:
        return None
    try:
        return int(os.read(file, 1024).rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return None
    finally:
        os.close(file)
