"""Landlock rules (Linux 5.13): confine files, and later network and signals, without any privilege. For where no mount
namespace can be had."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from nemo_brorl.tasks.sandbox import linux

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls
_VERSION_FLAG, _PATH_BENEATH = 1, 1
# File rights by version of the interface, in the lowest bits; later versions as 5.
_NUM_RIGHTS = {
    1: 13,
    2: 14,
    3: 15,
    4: 15,
    5: 16,
}
_EXECUTE = 1
_READ_FILE = 4
_READ_DIR = 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | 2 | _READ_FILE | 1 << 14 | 1 << 15  # rights that a rule about a single file may name
_TCP = 3  # bind and connect, since 4
_SCOPES = 3  # abstract sockets and signals, since 6


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Version of the kernel's interface; 0 when it has none, or it is switched off."""
    try:
        return linux.syscall(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def ruleset(readable: Iterable[str], writable: Iterable[str], interface: int) -> int:
    """A file descriptor of rules: programs may read and execute below `readable`, do anything below `writable`, and
    nothing else. Paths that are not there are passed over."""
    rights = (1 << _NUM_RIGHTS.get(interface, 16)) - 1
    wanted = _Ruleset(files=rights)
    size = 8  # bytes of the fields that this version knows
    if interface >= 4:
        wanted.network = _TCP
        size = 16
    if interface >= 6:
        wanted.scoped = _SCOPES
        size = 24
    rules = linux.syscall(_CREATE, ctypes.byref(wanted), size, 0)
    for path in readable:
        _allow(rules, path, _READ)
    for path in writable:
        _allow(rules, path, rights)
    return rules


def restrict(rules: int) -> None:
    """Put this process and all it starts under the rules. Needs no_new_privs."""
    linux.syscall(_RESTRICT, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        beneath = _Beneath(rights, parent)
        linux.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(parent)
