"""Lock a run folder, so that only one driver at a time uses it. `driver.lock` in the folder names that driver.

The driver holds a record lock (fcntl) on that file. The kernel releases it when the process ends in any way, and no
child process inherits it. Closing the file anywhere in the process would release it too, so nothing else in a driver
opens it. NFS, Lustre mounted with `flock`, and GPFS pass record locks on to other nodes. For other disks, a thread
touches the file every few seconds. A driver that finds the file of another machine watches it for a while before it
takes the folder.

A limit: a driver on another node, on a disk without shared locks, cannot be seen while it is stopped (SIGSTOP) or cut
off from the disk for longer than the watch.
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

from brorl_graders.base.foreign import read_json

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import naming

LOCK = "driver.lock"
TOUCH_S = 5.0
WATCH_S = 3 * TOUCH_S
LOOK_S = 0.5
MAX_BYTES = 4096  # largest size of the lock file
_IS_HELD = (errno.EACCES, errno.EAGAIN)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # identifies this boot of this machine

log = get_logger(__name__)


@contextlib.contextmanager
def locked(
    folder: Path,
    command: str,
    watch_s: float = WATCH_S,
    touch_s: float = TOUCH_S,
) -> Iterator[None]:
    """Lock a run folder for the driver of `command`. The folder is created if missing, and removed again if left empty.

    Raises CheckpointError that names the other driver where there is one, and ResourceError where nothing can be
    written.
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
    """Return a locked file descriptor of the run folder's lock file. Raises CheckpointError."""
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
        # The locked file was deleted meanwhile by a driver that ended normally, so open the new one.
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock the run folder's lock file, if its disk supports locks. Raises CheckpointError."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _IS_HELD:
            raise CheckpointError(_in_use(folder, _read(descriptor))) from error
        log.warning(
            "%s: this disk has no locks (%s), so another driver is noticed only by its changes to the file",
            folder,
            error.strerror,
        )


def _check_gone(descriptor: int, folder: Path, watch_s: float) -> None:
    """Raise CheckpointError when a driver of another machine still touches the run folder's lock file.

    The lock of that driver may not be visible on this machine.
    """
    before = _read(descriptor)
    if not before:
        return
    path = folder / LOCK
    if before["boot"] == _boot():
        log.warning("%s: its driver (%s) is no longer running, so this run takes the lock", path, _named(before))
        return
    log.warning(
        "%s: it belongs to %s, and is watched for %.0f s before this run takes it", path, _named(before), watch_s
    )
    was = _touched_at(path)
    until = time.monotonic() + watch_s
    while time.monotonic() < until:
        time.sleep(min(LOOK_S, watch_s))
        if _touched_at(path) != was:
            raise CheckpointError(_in_use(folder, before))
    # Each check opened and closed the file, which released the lock.
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
    """Return the contents of the run folder's lock file; {} if they cannot be read."""
    try:
        owner = read_json(os.pread(descriptor, MAX_BYTES, 0), most_bytes=MAX_BYTES)
        return {name: owner[name] for name in ("host", "pid", "command", "since", "boot")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _touched_at(path: Path) -> int:
    """Return when the lock file last changed on its disk, in ns.

    NFS asks the server again when a file is opened. Closing it releases the locks that this process has on it.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _touch(descriptor: int, touch_s: float, ended: threading.Event) -> None:
    while not ended.wait(touch_s):
        # The next writer to a failing disk reports the error.
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _release(folder: Path, descriptor: int, is_new: bool) -> None:
    with contextlib.suppress(OSError):
        (folder / LOCK).unlink()
    os.close(descriptor)
    if is_new:
        # The folder is still empty if the settings turned out to be wrong.
        with contextlib.suppress(OSError):
            folder.rmdir()
