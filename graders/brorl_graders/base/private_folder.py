"""Make folders on a node's own disk that no other user can enter."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

from brorl_graders.base.errors import ResourceError

log = logging.getLogger(__name__)

TMP = Path("/tmp")

OTHERS = 0o077

SOCKET_BYTES = 107  # longest path of a Unix socket on Linux, in bytes

# Longest end of the path of a Ray socket, after the private folder: Ray's folder in it (`ray`, or one for each node of
# a job), then the part that Ray appends, here with the largest process id of Linux.
RAY_FOLDER_BYTES = len("/0123456789")

RAY_SOCKET_BYTES = len("/session_2026-11-23_01-00-00_123456_4194304/sockets/plasma_store")

MOUNTS = Path("/proc/self/mounts")

# Network file systems. They are slow for logs and kernels, and processes of all nodes would write to one folder.
SHARED = ("afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "panfs", "pvfs2", "smb3", "wekafs")


def make_private(folder: Path, setting: str) -> Path:
    """Make a folder that only this user can enter, or check the one that exists, and return it.

    `setting` is what a user sets to choose another place. Raises ResourceError where another user could write to it.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        wrong = _what_is_wrong(folder)
    except OSError as error:
        raise ResourceError(
            f"{folder} cannot be made: {error.strerror}: set {setting} to a folder of your own"
        ) from error
    if wrong:
        raise ResourceError(
            f"{folder} {wrong}, so what is in it cannot be trusted: remove it, or set {setting} to a folder of your own"
        )
    return folder


def _what_is_wrong(folder: Path) -> str:
    """Say why another user could write to a folder or replace it, or return "" when no other user can."""
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & OTHERS:
        return f"may be entered by others (mode {stat.S_IMODE(status.st_mode):04o}, not 0700)"
    above = folder.parent.stat().st_mode
    if above & stat.S_IWOTH and not above & stat.S_ISVTX:
        return f"lies in {folder.parent}, where everybody may put another one in its place"
    return ""


def scratch_root() -> Path:
    """Return the parent of this user's private folder for temporary files: $TMPDIR, or /tmp.

    $TMPDIR is used where it is a folder on a disk of this machine with a path that Ray's sockets can have. Otherwise
    the log says why it is not.
    """
    named = os.environ.get("TMPDIR", "")
    return _root_of(named) if named else TMP


@cache
def _root_of(named: str) -> Path:
    """Return the folder that $TMPDIR names if private folders can be made in it, otherwise /tmp.

    Warns once a process when $TMPDIR cannot be used.
    """
    room = SOCKET_BYTES - RAY_SOCKET_BYTES - RAY_FOLDER_BYTES - len(f"/{_own_name()}")
    root = Path(named)
    if not root.is_absolute() or not os.access(root, os.W_OK | os.X_OK) or not root.is_dir():
        why = "is no folder that can be written to here"
    elif (kind := file_system(root, MOUNTS.read_text(errors="replace"))) in SHARED:
        why = f"is on {kind}, not on a disk of this machine"
    elif len(os.fsencode(root)) > room:
        why = f"is longer than the {room} bytes that paths of Ray's sockets leave for it"
    elif not named.isascii():
        why = "has letters beyond ASCII, which Ray's paths must not have"
    else:
        return root
    log.warning("TMPDIR=%s %s: private folders are made in %s", named, why, TMP)
    return TMP


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds a folder, or "" when no mount point matches.

    `mounts` is the text of /proc/self/mounts.
    """
    real = folder.resolve()
    nearest, kind = Path(), ""
    for line in mounts.splitlines():
        _, place, mount_kind, *_ = line.split(" ")
        mount = Path(place.replace("\\040", " "))
        if real.is_relative_to(mount) and len(mount.parts) >= len(nearest.parts):
            nearest, kind = mount, mount_kind
    return kind


def private_folder() -> Path:
    """Return the folder for temporary files that only this user can enter, made if need be.

    Raises ResourceError where another user made it.
    """
    return make_private(scratch_root() / _own_name(), "TMPDIR")


def scratch_home() -> Path:
    """Return a home folder for child processes that run other people's code, without the user's files.

    Other users cannot enter it. Raises ResourceError where another user could write to it.
    """
    return make_private(private_folder() / "home", "TMPDIR")


def _own_name() -> str:
    return f"brorl-{os.getuid()}"
