"""How the warden confines itself, layer by layer: what the kernel forbids is left out and reported.

With the rights of root (CAP_SYS_ADMIN) the new root is built first, since what it shows may lie below folders that only
root can enter, and the user namespace comes after; it has two users nobody else is, the warden's and the inmates'.
Without those rights the user namespace comes first and brings them; it has the caller's own user, and with CAP_SETUID
one more for the inmates.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nemo_brorl.tasks.sandbox import linux
from nemo_brorl.tasks.sandbox.limits import Layers

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
)  # a program may read these
DEVICES = ("null", "zero", "full", "random", "urandom")
SCRATCH = "/tmp"  # inside; the only place that can be written
WARDEN_ID, INMATE_ID = 0, 1000  # users inside a namespace with two of them
NO_USERS = 77  # exit code
MAX_REQUEST = 1024  # bytes
ROOT_OPTIONS = "size=1m,nr_inodes=4096,mode=755"  # of the tmpfs that holds the mount points
NAMESPACES = {
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "net": linux.CLONE_NEWNET,
    "pid": linux.CLONE_NEWPID,
}


def readable_paths(extra: Sequence[str] = ()) -> list[str]:
    """What programs may read: the system's libraries, this interpreter and its packages, and `extra`. None lies below
    another."""
    found = {path for path in (*SYSTEM, sys.base_prefix, sys.prefix, *extra) if os.path.lexists(path)}
    return sorted(path for path in found if not any(str(parent) in found for parent in Path(path).parents))


def enter_namespaces(folder: str, readable: Sequence[str], without: Sequence[str]) -> tuple[Layers, int]:
    """Enter every namespace that this kernel gives, except `without`. (Layers, user id of the inmates).

    The pid namespace holds for the next child only. `folder` is empty, and becomes the new root's place. Ends the
    process with exit code `NO_USERS` when it got a user namespace without users, from which there is no way back.
    """
    layers, rights = Layers(), linux.capabilities()
    can_build, can_be_others = bool(rights >> linux.CAP_SYS_ADMIN & 1), bool(rights >> linux.CAP_SETUID & 1)
    users = _Users(can_be_others)
    if can_build and "mount" not in without:
        layers = replace(layers, mount=_try(lambda: _new_root(folder, readable)))
    if "user" not in without:
        layers = replace(layers, user=_try(lambda: _new_user(users, layers.mount)))
    users.close()
    if layers.user and not layers.mount and "mount" not in without:
        layers = replace(layers, mount=_try(lambda: _new_root(folder, readable)))
    for name, flag in NAMESPACES.items():
        if name not in without and _try(lambda flag=flag: linux.unshare(flag)):  # type: ignore[misc]
            layers = replace(layers, **{name: True})
    if not layers.user:
        return replace(layers, own_uid=can_be_others and "own_uid" not in without), users.inmate
    return replace(layers, own_uid=can_be_others), INMATE_ID


def mount_scratch(mib: int) -> None:
    """An empty scratch folder of this size, in a mount namespace of this process."""
    linux.unshare(linux.CLONE_NEWNS)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", SCRATCH, "tmpfs", flags, f"size={mib}m,nr_inodes=2048,mode=1777")


def _try(step: Callable[[], None]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _new_root(folder: str, readable: Sequence[str]) -> None:
    """A root of its own, read-only: `readable`, a few devices, an empty scratch folder, and no /proc."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, ROOT_OPTIONS)
    for path in readable:
        if os.path.islink(path):
            os.symlink(os.readlink(path), folder + path)
        else:
            _bind(path, folder + path, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    for device in DEVICES:
        _bind(f"/dev/{device}", f"{folder}/dev/{device}", linux.MOUNT_ATTR_NOSUID)
    os.makedirs(folder + SCRATCH, exist_ok=True)
    linux.restrict_mount(folder, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID)
    linux.pivot_root(folder)


def _bind(source: str, target: str, attributes: int) -> None:
    os.makedirs(target if os.path.isdir(source) else os.path.dirname(target), exist_ok=True)
    if not os.path.isdir(source):
        Path(target).touch()
    linux.mount(source, target, "", linux.MS_BIND | linux.MS_REC)
    linux.restrict_mount(target, attributes)


def _new_user(users: _Users, has_mount: bool) -> None:
    """A user namespace, and with it a mount namespace that belongs to it: what root has mounted is locked in there."""
    linux.unshare(linux.CLONE_NEWUSER | (linux.CLONE_NEWNS if has_mount else 0))
    if not users.map(is_nobody=has_mount):
        os._exit(NO_USERS)
    if users.are_two:
        os.setgroups([])
        os.setresgid(WARDEN_ID, WARDEN_ID, WARDEN_ID)
        os.setresuid(WARDEN_ID, WARDEN_ID, WARDEN_ID)


class _Users:
    """The users of a user namespace, and the process that gives it them: it stays outside, where its rights and its
    /proc are."""

    def __init__(self, are_two: bool) -> None:
        self.are_two = are_two
        self.own_user, self.own_group, self.free = os.getuid(), os.getgid(), _free_user(os.getpid())
        self.inmate = self.free + 1 if are_two else self.own_user  # as seen from outside
        parent, self._here, self._there = os.getpid(), *socket.socketpair()
        self._writer = os.fork()
        if self._writer == 0:
            self._here.close()
            while asked := self._there.recv(MAX_REQUEST):
                self._there.send(b"y" if _write_maps(parent, json.loads(asked), are_two) else b"n")
            os._exit(0)
        self._there.close()

    def map(self, is_nobody: bool) -> bool:
        """Give them to the user namespace that this process is in. False when that is forbidden. `is_nobody` makes the
        warden a user without a single file, which it can afford once its root is built."""
        warden = self.free if is_nobody and self.are_two else self.own_user
        users, groups = f"{WARDEN_ID} {warden} 1\n{INMATE_ID} {self.inmate} 1\n", ""
        if not self.are_two:
            users, groups = f"{INMATE_ID} {warden} 1\n", f"{INMATE_ID} {self.own_group} 1\n"
        self._here.send(json.dumps([users, groups or users]).encode())
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


def _free_user(pid: int) -> int:
    """The first of two user ids that no account has and no other warden takes: from the end of what this machine can
    name."""
    with open("/proc/self/uid_map", encoding="ascii") as uid_map:
        ranges = [tuple(map(int, line.split())) for line in uid_map]
    first, _, size = max(ranges, key=lambda row: row[2])
    return first + min(size, 2**31) - 4 - 2 * (pid % max(1, min(size // 4, 2**22)))
