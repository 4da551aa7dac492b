"""Namespaces that the fork server enters one after another, without those that the kernel forbids.

With the rights of root (CAP_SYS_ADMIN) the new root file system is built first, since its sources may lie below folders
that only root can enter. The user namespace comes after it and has two users without other processes: one for the fork
server and one for the programs.

Without those rights the user namespace comes first and brings them. It has the caller's own user, and with CAP_SETUID a
second one for the programs.

Where bubblewrap is installed, an ordinary user gets the namespaces from it. This module also builds its command line.
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

# System files that programs may read.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("null", "zero", "full", "random", "urandom")
# Path of the scratch folder inside the sandbox, the only folder that can be written. The second path is used where the
# first would hide files that programs may read.
SCRATCH = "/tmp"
OTHER_SCRATCH = "/scratch"
SHARED = "/dev/shm"  # a link to the scratch folder, since multiprocessing has its locks there
SERVER_ID, PROGRAM_ID = 0, 1000  # user ids in a user namespace with two users
NO_USERS = 77  # exit code: the user namespace allows no users
MAX_REQUEST = 1024  # longest request to the process that assigns users, in bytes
ROOT_OPTIONS = "size=1m,nr_inodes=4096,mode=755"  # mount options of the tmpfs that holds the mount points
NAMESPACE_FLAGS = {
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "net": linux.CLONE_NEWNET,
    "pid": linux.CLONE_NEWPID,
}
BUBBLEWRAP = "bwrap"  # it is set-uid or has an AppArmor profile, so it may make namespaces where this package may not
BUBBLEWRAP_OPTIONS = ("--unshare-all", "--as-pid-1", "--die-with-parent", "--new-session")


def readable_paths(extra: Sequence[str] = ()) -> list[str]:
    """Return the paths that sandboxed programs may read: system libraries, the interpreter with packages, and `extra`.

    The interpreter is that of this process. A symbolic link comes with its target. No returned path lies below another.
    """
    readable: set[str] = set()
    for path in (*SYSTEM, sys.base_prefix, sys.prefix, *extra):
        if os.path.lexists(path):
            readable.update((path, os.path.realpath(path)))
    outermost: list[str] = []
    for path in sorted(readable):
        if not any(str(parent) in readable for parent in Path(path).parents):
            outermost.append(path)
    return outermost


def scratch_path(readable: Sequence[str]) -> str:
    """Return the path of the scratch folder in the sandbox's root, where it hides nothing that programs may read."""
    hides = any(Path(path).is_relative_to(SCRATCH) for path in readable)
    return OTHER_SCRATCH if hides else SCRATCH


def enter_namespaces(settings: dict[str, Any]) -> tuple[Layers, int]:
    """Enter every namespace that this kernel allows, and return (isolation layers, user id of sandboxed programs).

    Namespaces in `without` of the settings are skipped. The pid namespace takes effect for the next child only.
    `folder` is empty and becomes the place of the new root. The process exits with `NO_USERS` when it got a user
    namespace without users, which it cannot leave.
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
    """Mount an empty scratch folder of `mib` MiB for a program in a new mount namespace of this process."""
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
    """Make and enter a read-only root with `readable`, a few devices, an empty scratch folder and no /proc."""
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
    """Enter a user namespace, and with `has_mount` a mount namespace in it, which locks the mounts made by root."""
    linux.unshare(linux.CLONE_NEWUSER | (linux.CLONE_NEWNS if has_mount else 0))
    if not users.map(is_nobody=has_mount):
        os._exit(NO_USERS)
    if users.are_two:
        os.setgroups([])
        os.setresgid(SERVER_ID, SERVER_ID, SERVER_ID)
        os.setresuid(SERVER_ID, SERVER_ID, SERVER_ID)


class _Users:
    """The users of a user namespace, and the process outside that assigns them with its rights and its /proc."""

    def __init__(self, are_two: bool) -> None:
        self.are_two = are_two
        parent = os.getpid()
        self.own_user = os.getuid()
        self.own_group = os.getgid()
        self.free = _find_free_users(parent)
        self.program = self.free + 1 if are_two else self.own_user  # user id as seen from outside
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
        """Assign users to the user namespace of this process, and return False when that is forbidden.

        With `is_nobody` the fork server becomes a user who owns no file, which is possible once its root is built.
        """
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
        """End the helper process that assigns users to the user namespace."""
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
    """Return the first of two user ids that no account has and no other fork server takes.

    They come from the end of the ids that this machine can assign.
    """
    first, size = 0, 0
    with open("/proc/self/uid_map", encoding="ascii") as uid_map:
        for line in uid_map:
            start, _, length = map(int, line.split())
            if length > size:
                first, size = start, length
    num_pairs = max(1, min(size // 4, 2**22))
    return first + min(size, 2**31) - 4 - 2 * (pid % num_pairs)


def may_use_bubblewrap(without: Sequence[str]) -> bool:
    """Return whether bubblewrap is installed and may be tried.

    It may not be tried as root: bubblewrap has no second user for root, so the limit of processes would not work. Nor
    may it be tried when `without` leaves out an isolation layer that bubblewrap always makes.
    """
    if os.getuid() == 0 or shutil.which(BUBBLEWRAP) is None:
        return False
    return not any(layer in without for layer in ("bubblewrap", *NAMESPACES))


def bubblewrap_command(
    command: Sequence[str],
    readable: Sequence[str],
    scratch: str,
    scratch_bytes: int,
) -> list[str]:
    """Return the command line that runs `command` in bubblewrap as process 1 of new namespaces.

    As without bubblewrap, the root is read-only, with a few devices and an empty scratch folder (`_make_root`). The
    process dies with its parent.
    """
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
