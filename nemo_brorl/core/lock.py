"""One driver at a time has a run folder: `driver.lock` in it says whose it is.

Its driver holds a record lock (fcntl) on that file, which the kernel takes back when the process is gone, however it
went, and which no child inherits (and which it gives up when the file is closed: nothing else in a driver opens it).
NFS, Lustre mounted with `flock`, and GPFS pass record locks on to other nodes. For disks that do not, a thread touches
the file every few seconds: whoever finds a file of another machine watches it for a while before it takes the folder
over.

What cannot be seen: a driver on another node, on a disk that passes no locks on, which is stopped (SIGSTOP) or cut off
from that disk for longer than the watch.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import naming

LOCK = "driver.lock"
TOUCH_S = 5.0
WATCH_S = 3 * TOUCH_S
LOOK_S = 0.5
MAX_BYTES = 4096  # of the lock
_IS_HELD = (errno.EACCES, errno.EAGAIN)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of this machine since it was started

log = get_logger(__name__)


@contextlib.contextmanager
def locked(
    folder: Path,
    command: str,
    watch_s: float = WATCH_S,
    touch_s: float = TOUCH_S,
) -> Iterator[None]:
    """Hold a run folder, made where it is missing, for the driver of `command`. An empty folder is left as none.

    Raises CheckpointError that names the other driver where there is one, ResourceError where nothing can be written.
    """
    with naming(folder / LOCK):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder, watch_s)
        _write(descriptor, _owner(command))
    ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(descriptor, touch_s, ended), name="run lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _release(folder, descriptor, is_new)


def _acquire(folder: Path, watch_s: float) -> int:
    """A descriptor of the file that is in the folder, locked. Raises CheckpointError."""
    path = folder / LOCK
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor, folder)
            if _is_there(path, descriptor):
                _check_gone(descriptor, folder, watch_s)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # The file of a driver that ended in order and deleted it meanwhile: the one there now is another.
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock the file, as far as its disk has locks. Raises CheckpointError."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _IS_HELD:
            raise CheckpointError(_in_use(folder, _read(descriptor))) from error
        log.warning(
            "%s: this disk has no locks (%s); another driver is seen by its touches alone", folder, error.strerror
        )


def _check_gone(descriptor: int, folder: Path, watch_s: float) -> None:
    """Raise CheckpointError when a driver of another machine, whose lock cannot be seen here, still touches the
    file."""
    before = _read(descriptor)
    if not before:
        return
    path = folder / LOCK
    if before["boot"] == _boot():
        log.warning("%s was left by %s, which is gone: taken over", path, _named(before))
        return
    log.warning("%s is of %s: watched for %.0f s before it is taken over", path, _named(before), watch_s)
    was = _touched_at(path)
    until = time.monotonic() + watch_s
    while time.monotonic() < until:
        time.sleep(min(LOOK_S, watch_s))
        if _touched_at(path) != was:
            raise CheckpointError(_in_use(folder, before))
    # Every look opened and closed the file, which gave the lock up.
    _lock(descriptor, folder)


def _in_use(folder: Path, owner: Mapping[str, Any]) -> str:
    end = f"`kill {owner['pid']}` on {owner['host']}" if owner else "SIGTERM"
    return (
        f"run folder {folder} is in use by {_named(owner)}: wait until that has ended, end it by {end}, which has it "
        "saved first, or choose another exp_manager.explicit_log_dir"
    )


def _named(owner: Mapping[str, Any]) -> str:
    if not owner:
        return "another driver that has not written its name yet"
    return f"`{owner['command']}` on host {owner['host']}, process {owner['pid']}, since {owner['since']}"


def _owner(command: str) -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return {"host": socket.gethostname(), "pid": os.getpid(), "command": command, "since": since, "boot": _boot()}


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return socket.gethostname()


def _write(descriptor: int, owner: Mapping[str, Any]) -> None:
    text = json.dumps(owner, indent=1) + "\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _read(descriptor: int) -> dict[str, Any]:
    """What the file says; {} where it says nothing that can be read."""
    try:
        owner = json.loads(os.pread(descriptor, MAX_BYTES, 0))
        return {name: owner[name] for name in ("host", "pid", "command", "since", "boot")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _touched_at(path: Path) -> int:
    """Time of the last change in ns as the disk has it: NFS asks again when a file is opened. To close it gives up what
    locks this process has on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _touch(descriptor: int, touch_s: float, ended: threading.Event) -> None:
    while not ended.wait(touch_s):
        # A disk that refuses is named by who writes to it next.
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _release(folder: Path, descriptor: int, is_new: bool) -> None:
    with contextlib.suppress(OSError):
        (folder / LOCK).unlink()
    os.close(descriptor)
    if is_new:
        # Settings were wrong after all, and nothing was written.
        with contextlib.suppress(OSError):
            folder.rmdir()
