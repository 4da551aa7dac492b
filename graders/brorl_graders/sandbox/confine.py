"""Namespaces that the fork server enters, layer by layer: what the kernel forbids is left out and reported.

With the rights of root (CAP_SYS_ADMIN) the new root is built first, since what it shows may lie below folders that only
root can enter, and the user namespace comes after; it has two users that nobody else is: one for the fork server and
one for the programs.

Without those rights the user namespace comes first and brings them; it has the caller's own user, and with CAP_SETUID
one more for the programs.

Where bubblewrap is installed an ordinary user gets them from it: its command line is here too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from brorl_graders.sandbox import linux
from brorl_graders.sandbox.limits import NAMESPACES, Layers

# Files of the system that a program may read.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Places of the scratch folder inside, the only one that can be written: the second where the first would hide files
# that programs may read.
SCRATCH = "/tmp"
OTHER_SCRATCH = "/scratch"
SHARED = "/dev/shm"  # leads to the scratch folder: multiprocessing has its locks there
SERVER_ID, PROGRAM_ID = 0, 1000  # users inside a namespace with two of them
NO_USERS = 77  # exit code
MAX_REQUEST = 1024  # bytes
ROOT_OPTIONS = "size=1m,nr_inodes=4096,mode=755"  # of the tmpfs that holds the mount points
NAMESPACE_FLAGS = {
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "net": linux.CLONE_NEWNET,
    "pid": linux.CLONE_NEWPID,
}
BUBBLEWRAP = "bwrap"  # set-uid, or with a profile of its own, so it may make namespaces where we may not
BUBBLEWRAP_OPTIONS = ("--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session")


def readable_paths(extra: Sequence[str] = ()) -> list[str]:
    """What programs may read: the system's libraries, this interpreter and its packages, and `extra`; a link comes with
    what it leads to. None lies below another."""
    found: set[str] = set()
    for path in (*SYSTEM, sys.base_prefix, sys.prefix, *extra):
        if os.path.lexists(path):
            found.update((path, os.path.realpath(path)))
    outermost: list[str] = []
    for path in sorted(found):
        if not any(str(parent) in found for parent in Path(path).parents):
            outermost.append(path)
    return outermost


def scratch_path(readable: Sequence[str]) -> str:
    """Place of the scratch folder in the new root, where it hides nothing that programs may read."""
    hides = any(Path(path).is_relative_to(SCRATCH) for path in readable)
    return OTHER_SCRATCH if hides else SCRATCH


def enter_namespaces(settings: dict[str, Any]) -> tuple[Layers, int]:
    """Enter every namespace that this kernel gives, except those in `without` of the settings. (Layers, user id of the
    programs).

    The pid namespace holds for the next child only. `folder` is empty, and becomes the new root's place. Ends the
    process with exit code `NO_USERS` when it got a user namespace without users, from which there is no way back.
    """
    without = settings["without"]
    make_root = partial(_make_root, settings["folder"], settings["readable"], settings["mounted_scratch"])
    layers = Layers()
    rights = linux.capabilities()
    can_be_others = bool(rights >> linux.CAP_SETUID & 1)
    users = _Users(can_be_others)
    if rights >> linux.CAP_SYS_ADMIN & 1 and "mount" not in without:
        layers = replace(layers, mount=_succeeds(make_root))
    if "user" not in without:
        layers = replace(layers, user=_succeeds(partial(_enter_user_namespace, users, layers.mount)))
    users.close()
    if layers.user and not layers.mount and "mount" not in without:
        layers = replace(layers, mount=_succeeds(make_root))
    for name, flag in NAMESPACE_FLAGS.items():
        if name not in without:
            entered: dict[str, Any] = {name: _succeeds(partial(linux.unshare, flag))}
            layers = replace(layers, **entered)
    if not layers.user:
        return replace(layers, own_uid=can_be_others and "own_uid" not in without), users.program
    return replace(layers, own_uid=can_be_others), PROGRAM_ID


def mount_scratch(scratch: str, mib: int) -> None:
    """An empty scratch folder of this size, in a mount namespace of this process."""
    linux.unshare(linux.CLONE_NEWNS)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", scratch, "tmpfs", flags, f"size={mib}m,nr_inodes=2048,mode=1777")


def _succeeds(step: Callable[[], None]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _make_root(folder: str, readable: Sequence[str], scratch: str) -> None:
    """A root of its own, read-only: `readable`, a few devices, an empty scratch folder, and no /proc."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, ROOT_OPTIONS)
    for path in readable:
        if os.path.islink(path):
            os.makedirs(os.path.dirname(folder + path), exist_ok=True)
            os.symlink(os.readlink(path), folder + path)
        else:
            _bind(path, folder + path, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    for device in DEVICES:
        _bind(f"/dev/{device}", f"{folder}/dev/{device}", linux.MOUNT_ATTR_NOSUID)
    os.makedirs(folder + scratch, exist_ok=True)
    os.symlink(scratch, folder + SHARED)
    linux.restrict_mount(folder, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID)
    linux.pivot_root(folder)


def _bind(source: str, target: str, attributes: int) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    linux.mount(source, target, "", linux.MS_BIND | linux.MS_REC)
    linux.restrict_mount(target, attributes)


def _enter_user_namespace(users: _Users, has_mount: bool) -> None:
    """A user namespace, and with it a mount namespace that belongs to it: what root has mounted is locked in there."""
    linux.unshare(linux.CLONE_NEWUSER | (linux.CLONE_NEWNS if has_mount else 0))
    if not users.map(is_nobody=has_mount):
        os._exit(NO_USERS)
    if users.are_two:
        os.setgroups([])
        os.setresgid(SERVER_ID, SERVER_ID, SERVER_ID)
        os.setresuid(SERVER_ID, SERVER_ID, SERVER_ID)


class _Users:
    """The users of a user namespace, and the process that gives it them: it stays outside, where its rights and its
    /proc are."""

    def __init__(self, are_two: bool) -> None:
        self.are_two = are_two
        parent = os.getpid()
        self.own_user = os.getuid()
        self.own_group = os.getgid()
        self.free = _find_free_users(parent)
        self.program = self.free + 1 if are_two else self.own_user  # as seen from outside
        self._here, self._there = socket.socketpair()
        self._writer = os.fork()
        if self._writer == 0:
            self._here.close()
            while request := self._there.recv(MAX_REQUEST):
                is_done = _write_maps(parent, json.loads(request), are_two)
                self._there.send(b"y" if is_done else b"n")
            os._exit(0)
        self._there.close()

    def map(self, is_nobody: bool) -> bool:
        """Give them to the user namespace that this process is in. False when that is forbidden. `is_nobody` makes the
        fork server a user without a single file, which it can afford once its root is built."""
        if self.are_two:
            server = self.free if is_nobody else self.own_user
            users = f"{SERVER_ID} {server} 1\n{PROGRAM_ID} {self.program} 1\n"
            groups = users
        else:
            users = f"{PROGRAM_ID} {self.own_user} 1\n"
            groups = f"{PROGRAM_ID} {self.own_group} 1\n"
        self._here.send(json.dumps([users, groups]).encode())
        return self._here.recv(1) == b"y"

    def close(self) -> None:
        """Let the other process go."""
        self._here.close()
        os.waitpid(self._writer, 0)


def _write_maps(pid: int, maps: list[str], may_set_groups: bool) -> bool:
    users, groups = maps
    try:
        if not may_set_groups:
            Path(f"/proc/{pid}/setgroups").write_text("deny", encoding="ascii")
        Path(f"/proc/{pid}/gid_map").write_text(groups, encoding="ascii")
        Path(f"/proc/{pid}/uid_map").write_text(users, encoding="ascii")
    except OSError:
        return False
    return True


def _find_free_users(pid: int) -> int:
    """The first of two user ids that no account has and no other fork server takes: from the end of what this machine
    can name."""
    first, size = 0, 0
    with open("/proc/self/uid_map", encoding="ascii") as uid_map:
        for line in uid_map:
            start, _, length = map(int, line.split())
            if length > size:
                first, size = start, length
    num_pairs = max(1, min(size // 4, 2**22))
    return first + min(size, 2**31) - 4 - 2 * (pid % num_pairs)


def may_use_bubblewrap(without: Sequence[str]) -> bool:
    """Whether bubblewrap is installed and may be tried: not as root, for whom it has no second user, so that the limit
    of processes would not act; nor where layers that it always makes are to be left out."""
    if os.getuid() == 0 or shutil.which(BUBBLEWRAP) is None:
        return False
    return not any(layer in without for layer in ("bubblewrap", *NAMESPACES))


def bubblewrap_command(
    command: Sequence[str],
    readable: Sequence[str],
    scratch: str,
    scratch_bytes: int,
) -> list[str]:
    """`command` as process 1 of new namespaces, with the root that `_new_root` makes where it may. It dies with its
    parent."""
    options = [shutil.which(BUBBLEWRAP) or BUBBLEWRAP, *BUBBLEWRAP_OPTIONS]
    for path in readable:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        else:
            options += ["--ro-bind", path, path]
    for device in DEVICES:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    options += ["--symlink", scratch, SHARED]
    options += ["--size", str(scratch_bytes), "--tmpfs", scratch, "--remount-ro", "/", "--chdir", "/"]
    return [*options, "--", *command]
