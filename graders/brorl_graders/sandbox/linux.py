"""Linux system calls that Python 3.11 does not offer. Each function raises OSError with the kernel's reason.

Landlock (Linux 5.13) limits access to files, and in later versions to network and signals, without any privilege. It is
used where a mount namespace is not allowed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
CAP_SETUID = 7
CAP_SYS_ADMIN = 21
LAST_CAPABILITY = 63

# System calls without a function in the C library. Numbers above 400 are the same on all architectures.
_NUMBERS = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}
_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
_libc.syscall.restype = ctypes.c_long

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # numbers of the Landlock system calls
_VERSION_FLAG, _PATH_BENEATH = 1, 1
# Number of file rights by version of Landlock, the lowest bits of a mask. Later versions count as 5.
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
_OF_FILES = _EXECUTE | 2 | _READ_FILE | 1 << 14 | 1 << 15  # rights that a rule for a single file may have
_TCP = 3  # rights to bind and connect, since version 4
_SCOPES = 3  # scopes for abstract sockets and signals, since version 6


def machine() -> str:
    """Return the processor's architecture, as `uname -m` prints it."""
    return platform.machine()


def _checked(result: int, what: str) -> int:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by its number, with integers passed as 64 bits."""
    wide: list[object] = []
    for argument in arguments:
        wide.append(ctypes.c_long(argument) if isinstance(argument, int) else argument)
    return _checked(_libc.syscall(ctypes.c_long(number), *wide), f"system call {number}")


def prctl(option: int, *arguments: int) -> int:
    """Call `prctl(2)`, which sets or reads an attribute of this process, and return its result."""
    padded = [ctypes.c_ulong(0)] * 4
    for index, argument in enumerate(arguments):
        padded[index] = ctypes.c_ulong(argument)
    return _checked(_libc.prctl(option, *padded), f"prctl {option}")


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` and enter new ones."""
    _checked(_libc.unshare(flags), f"unshare {flags:#x}")


def mount(
    source: str,
    target: str,
    kind: str,
    flags: int,
    options: str = "",
) -> None:
    """Mount `source` on `target`, as `mount(2)` does."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    _checked(result, f"mount {source} on {target}")


def detach(target: str) -> None:
    """Detach a mount and all mounts below it at once."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(folder: str) -> None:
    """Make a mounted folder the root of this mount namespace, and detach the old root."""
    os.chdir(folder)
    here = ctypes.c_char_p(b".")
    syscall(_NUMBERS[machine()]["pivot_root"], here, here)
    detach(".")
    os.chdir("/")


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def restrict_mount(target: str, attributes: int) -> None:
    """Set attributes MOUNT_ATTR_… on a mount and all mounts below it (Linux 5.12)."""
    arguments = _MountAttributes(attr_set=attributes)
    path = ctypes.c_char_p(target.encode())
    syscall(_MOUNT_SETATTR, -100, path, _AT_RECURSIVE, ctypes.byref(arguments), ctypes.sizeof(arguments))


def drop_capabilities() -> None:
    """Give up every capability of this thread for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall(_NUMBERS[machine()]["capset"], header, (ctypes.c_uint32 * 6)())


def drop_bounding_set() -> None:
    """Prevent programs that are started from here on from gaining any capability. Needs CAP_SETPCAP."""
    for capability in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # the kernel knows no further one, or this process may not drop it
            return


def capabilities() -> int:
    """Return the bit mask of this process's effective capabilities, or 0 where /proc does not show it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface, or 0 when it has none or it is switched off."""
    try:
        return syscall(_CREATE, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def landlock_ruleset(readable: Iterable[str], writable: Iterable[str], interface: int) -> int:
    """Return a file descriptor of Landlock rules for what programs may read and write.

    Programs may read and execute below `readable`, do anything below `writable`, and nothing elsewhere. Missing paths
    are skipped. `interface` is the version of the kernel's Landlock.
    """
    rights = (1 << _NUM_RIGHTS.get(interface, 16)) - 1
    arguments = _Ruleset(files=rights)
    size = 8  # size of the fields that this version knows, in bytes
    if interface >= 4:
        arguments.network = _TCP
        size = 16
    if interface >= 6:
        arguments.scoped = _SCOPES
        size = 24
    rules = syscall(_CREATE, ctypes.byref(arguments), size, 0)
    for path in readable:
        _allow(rules, path, _READ)
    for path in writable:
        _allow(rules, path, rights)
    return rules


def landlock_restrict(rules: int) -> None:
    """Apply Landlock rules to this process and all processes that it starts. Needs no_new_privs."""
    syscall(_RESTRICT, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        beneath = _Beneath(rights, parent)
        syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(parent)
