"""The end of a run: all its processes are killed and its files removed.

Each sandbox has a folder on this machine that its owner locks. Folders of owners that were killed are removed.
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
BLOCK = 4096  # smallest size that is counted for a file, in bytes
YES, NO, BROKEN = 0, 1, 2  # exit codes of a forked copy

PREFIX = "brorl-sandbox-"
MIN_AGE_S = 60.0  # age from which an unlocked folder counts as left behind; a new one is locked a moment later


def kill_run(pid: int, confinement: Confinement, processes: int) -> int:
    """Kill a sandboxed program and all processes that it has started, and return its wait status after they ended.

    `pid` is the process of the program, and `processes` a file descriptor of /proc. Raises OSError when a process does
    not die. Then the fork server cannot be used any more.
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
    """Run the function `work` in a fork of this process, and return its answer.

    So the file names that a program chose stay out of this process's memory, which the next program gets a copy of.
    """
    return wait_for_copy(start_copy(work))


def start_copy(work: Callable[[], bool | None]) -> int:
    """Fork this process, run `work` in the fork, and return its process id."""
    copy = os.fork()
    if copy == 0:
        code = BROKEN
        try:
            code = NO if work() is False else YES
        finally:
            os._exit(code)
    return copy


def wait_for_copy(copy: int) -> bool:
    """Wait for a fork and return the answer of its `work`. Raises OSError when the work failed."""
    _, status = os.waitpid(copy, 0)
    if os.waitstatus_to_exitcode(status) not in (YES, NO):
        raise OSError("the scratch folder cannot be counted or cleared")
    return os.waitstatus_to_exitcode(status) == YES


def empty_folder(folder: str) -> None:
    """Remove everything in the scratch folder of sandboxed programs.

    This is for a folder without a mount of its own that would go with the run. Folders may be nested a thousand deep
    and have no permissions. So each is renamed to the top level, and then its files are removed.
    """
    prefix = secrets.token_hex(8)
    number = 0
    folders = [folder]
    while folders:
        here = folders.pop()
        os.chmod(here, 0o700)
        with os.scandir(here) as listed:
            entries = list(listed)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            number += 1
            folders.append(os.path.join(folder, f"{prefix}.{number}"))
            os.rename(entry.path, folders[-1])
        if here != folder:
            os.rmdir(here)


def has_room_left(folder: str, limit: int) -> bool:
    """Return whether the sandbox's scratch folder holds at most `limit` bytes, with at least one block for each file.

    A folder that cannot be read counts as above the limit.
    """
    folders = [folder]
    size = 0
    try:
        while folders and size <= limit:
            size += _add_sizes(folders.pop(), folders)
    except FileNotFoundError:
        return True  # the program removed it meanwhile; the next count will tell
    except OSError:
        return False
    return size <= limit


def _add_sizes(folder: str, folders: list[str]) -> int:
    """Return the bytes of the files directly in a folder, and append its subfolders to `folders`."""
    size = 0
    with os.scandir(folder) as listed:
        for entry in listed:
            size += max(512 * entry.stat(follow_symlinks=False).st_blocks, BLOCK)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return size


def _wait_for_all(statuses: dict[int, int], is_certain: bool) -> bool:
    """Return whether this process has no child left, and add the wait status of each ended child to `statuses`.

    With `is_certain` all children will end, and the function waits for them.
    """
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
    """Send SIGKILL to every process of a sandboxed program.

    One system call does it where the program has a pid namespace or a user of its own. Otherwise the processes are
    found as descendants of this one, which is their subreaper (PR_SET_CHILD_SUBREAPER).
    """
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
    """Kill all processes of the user that sandboxed programs run as, from a fork that becomes this user.

    This user has no other processes.
    """
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
    """Return the process ids of this process's children, read from the /proc directory.

    `processes` is a file descriptor of /proc.
    """
    return _children_by_parent(processes).get(os.getpid(), [])


def _descendants(processes: int) -> list[int]:
    """Return the process ids of all descendants of this process, parents first."""
    children = _children_by_parent(processes)
    descendants = children.get(os.getpid(), [])
    for pid in descendants:  # the list grows during the loop
        descendants.extend(children.get(pid, []))
    return descendants


def _children_by_parent(processes: int) -> dict[int, list[int]]:
    """Return a mapping of all processes on this machine, from each parent's process id to those of its children."""
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
    """A new folder for a sandbox with an empty `root` and an empty `scratch`, locked while this process lives."""

    def __init__(self) -> None:
        """Make and lock the sandbox's folder, after removing this user's folders that no process locks."""
        remove_left()
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock = _lock_folder(self.path)
        os.chmod(self.path, 0o711)  # programs run as another user and reach the scratch folder by its name
        for name in ("root", "scratch"):
            os.mkdir(os.path.join(self.path, name))

    def remove(self) -> None:
        """Remove the sandbox's folder with all its content. A second call does nothing."""
        if self._lock is None:
            return
        _remove(self.path)
        os.close(self._lock)
        self._lock = None


def remove_left() -> None:
    """Remove this user's sandbox folders that no process locks."""
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
    """Lock a sandbox's folder and return its file descriptor.

    Returns None when the folder is missing or another process has locked it.
    """
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
        empty_folder(path)  # removes folders without permissions too
        os.rmdir(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
