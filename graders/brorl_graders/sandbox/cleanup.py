"""End of a run: nothing of it is alive, and its files are gone.

A sandbox has a folder on this machine that its owner holds; what owners that were killed have left is removed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from brorl_graders.sandbox.program_process import Confinement

RETRY_S, GIVE_UP_S = 0.002, 10.0
BLOCK = 4096  # bytes that a file takes at least
YES, NO, BROKEN = 0, 1, 2  # exit codes of a copy

PREFIX = "brorl-sandbox-"
MIN_AGE_S = 60.0  # of a folder that is taken for left: a new one is not held at once


def kill_run(pid: int, confinement: Confinement, processes: int) -> int:
    """Kill everything that the program process `pid` has started, and itself, and wait for the end. Its wait status.

    `processes` is /proc. Raises OSError when something will not die: then this fork server is of no more use.
    """
    statuses: dict[int, int] = {}
    give_up_at = time.monotonic() + GIVE_UP_S
    while True:
        _kill(confinement, processes)
        if _wait_for_all(statuses, is_certain=confinement.layers.pid):
            return statuses[pid]
        if time.monotonic() > give_up_at:
            raise OSError(f"processes of run {pid} cannot be ended")
        time.sleep(RETRY_S)


def run_in_copy(work: Callable[[], bool | None]) -> bool:
    """Whether `work` says yes, done in a fork of this process: the names of a program's files stay out of the memory
    that the next program is a copy of."""
    return wait_for_copy(start_copy(work))


def start_copy(work: Callable[[], bool | None]) -> int:
    """Process id of a fork of this process that does `work`."""
    copy = os.fork()
    if copy == 0:
        code = BROKEN
        try:
            code = NO if work() is False else YES
        finally:
            os._exit(code)
    return copy


def wait_for_copy(copy: int) -> bool:
    """Whether `work` says yes in that fork, once it has ended."""
    _, status = os.waitpid(copy, 0)
    if os.waitstatus_to_exitcode(status) not in (YES, NO):
        raise OSError("the scratch folder cannot be counted or cleared")
    return os.waitstatus_to_exitcode(status) == YES


def empty_folder(folder: str) -> None:
    """Remove all that is in the scratch folder, where it is not a mount of its own that went away with the run. Folders
    may lie a thousand deep and have no rights: each is brought up to the top, then its files are removed."""
    prefix = secrets.token_hex(8)
    number = 0
    found = [folder]
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


def has_room_left(folder: str, limit: int) -> bool:
    """Whether what lies in the scratch folder is within `limit` bytes, a block for each file counted. What cannot be
    looked into is not."""
    folders = [folder]
    size = 0
    try:
        while folders and size <= limit:
            size += _add_sizes(folders.pop(), folders)
    except FileNotFoundError:
        return True  # the program is at work: the next look will tell
    except OSError:
        return False
    return size <= limit


def _add_sizes(folder: str, folders: list[str]) -> int:
    """Bytes of what lies right in a folder; the folders among it are appended to `folders`."""
    size = 0
    with os.scandir(folder) as listed:
        for entry in listed:
            size += max(512 * entry.stat(follow_symlinks=False).st_blocks, BLOCK)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return size


def _wait_for_all(statuses: dict[int, int], is_certain: bool) -> bool:
    """Whether no child is left. Adds the wait status of each that has ended; `is_certain` that all will, it waits for
    that."""
    options = 0 if is_certain else os.WNOHANG
    while True:
        try:
            pid, status = os.waitpid(-1, options)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        statuses[pid] = status


def _kill(confinement: Confinement, processes: int) -> None:
    """SIGKILL for every process of the run: in one system call where it has a pid namespace or a user of its own, else
    by the family tree, all of which hangs on this process (PR_SET_CHILD_SUBREAPER)."""
    if confinement.layers.pid:
        assert os.getpid() == 1, "process 1 of its own namespace: -1 reaches nobody else's processes"
        _kill_all()
    elif confinement.layers.own_uid:
        _kill_user(confinement.user)
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


def _kill_user(user: int) -> None:
    """Kill all processes of the programs' user, which is nobody else's. The killer is one of them."""
    killer = os.fork()
    if killer:
        os.waitpid(killer, 0)
        return
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if os.getresuid() == (user, user, user) and user != 0:
        _kill_all()
    os._exit(0)


def find_children(processes: int) -> list[int]:
    """Process ids of this process's children."""
    return _children_by_parent(processes).get(os.getpid(), [])


def _descendants(processes: int) -> list[int]:
    """Process ids of all that descend from this process, parents first."""
    children = _children_by_parent(processes)
    found = children.get(os.getpid(), [])
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def _children_by_parent(processes: int) -> dict[int, list[int]]:
    """Children of every process that has some."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir(processes)):
        parent = _parent(processes, name)
        if parent is not None:
            children.setdefault(parent, []).append(int(name))
    return children


def _parent(processes: int, name: str) -> int | None:
    try:
        file = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)
    except OSError:
        return None
    try:
        after_command = os.read(file, 1024).rpartition(b")")[2]
        return int(after_command.split()[1])
    except (OSError, IndexError):
        return None
    finally:
        os.close(file)


class HeldFolder:
    """A new folder with an empty `root` and an empty `scratch`, locked as long as this process lives. Making it removes
    those of this user that no process holds."""

    def __init__(self) -> None:
        remove_left()
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = _lock_folder(self.path)
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
        lock = _lock_folder(str(path))
        if lock is not None:
            _remove(str(path))
            os.close(lock)


def _lock_folder(path: str) -> int | None:
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
        empty_folder(path)  # also folders without rights
        os.rmdir(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
