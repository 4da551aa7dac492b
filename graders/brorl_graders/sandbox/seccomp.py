"""A seccomp filter of system calls, built without a library, that refuses calls which no solution of an exercise needs.

A refused call does one of these:

- it reaches beyond the program: other processes, the network, the kernel's interfaces,
- it takes memory that the limits do not count: memory files, shared memory, message queues,
- it undoes the isolation: new namespaces, mounts, keys.

Refused calls return EPERM, so a library that only tries one can continue. `clone3` returns ENOSYS: then the C library
calls `clone`, whose flags the filter can see. A call of a foreign architecture kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Mapping

from brorl_graders.sandbox import linux

# Call numbers by name: (x86_64, aarch64). None where the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # calls on other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    # calls that undo the isolation
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # calls on the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "fanotify_init": (300, 262),
    # memory, and open files in flight, that the limits do not count
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "mlock": (149, 228),
    "mlock2": (325, 284),
    "mlockall": (151, 230),
    "vmsplice": (278, 75),
}
SOCKET = (41, 198)  # always refused: it could reach this machine, and is useless in a network namespace
# Calls that signal other processes where these are visible. `tgkill` may name this process, as `abort` does.
SIGNALS: dict[str, tuple[int, int]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
TGKILL = (234, 131)
# Operations on a file that choose a process and a signal for it when the file becomes ready: F_SETOWN, F_SETSIG,
# F_SETOWN_EX; FIOSETOWN, SIOCSPGRP.
FCNTL = (72, 25)
FCNTL_SIGNALS = (8, 10, 15)
IOCTL = (16, 29)
IOCTL_SIGNALS = (0x8901, 0x8902)
# Calls that change a file by its name and that Landlock allows (`truncate` before its version 3). They are refused
# where programs run as a user who has files.
ATTRIBUTES: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
# Calls that make folders and other entries. Thousands of these are slow to count and to remove.
FOLDERS: dict[str, tuple[int | None, int | None]] = {
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
CLONE, CLONE3 = (56, 220), 435
CLONE_THREAD = 0x00010000  # the call starts a thread and no process
# Other calls that start a process or a program.
STARTS: dict[str, tuple[int, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}
PRLIMIT = (302, 261)
NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW… flags that `clone` takes

_ARCHITECTURE = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # index in the tables above, AUDIT_ARCH
_X32 = 0x40000000  # bit in the numbers of x86_64's x32 calls

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # opcodes of classic BPF
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, (16, 24)  # offsets in struct seccomp_data
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def build_filter(
    guard_signals: bool,
    pid: int = 0,
    guard_files: bool = False,
    guard_starts: bool = False,
    guard_folders: bool = False,
) -> bytes | None:
    """Return the instructions of a seccomp filter, or None for an unknown architecture.

    - `guard_signals`: a process may signal only `pid`, itself. For sandboxes in which other processes are visible.
    - `guard_files`: it may not change file attributes that Landlock does not protect. For programs that see files
      of the user that they run as.
    - `guard_starts`: it may start no process and no other program.
    - `guard_folders`: it may make files and nothing else.
    """
    if linux.machine() not in _ARCHITECTURE:
        return None
    column, architecture = _ARCHITECTURE[linux.machine()]
    kill = _instruction(_RETURN, _KILL)
    code = [_instruction(_LOAD, _ARCH), _instruction(_EQUAL, architecture, 1, 0), kill]
    code.append(_instruction(_LOAD, _NUMBER))
    if column == 0:
        code += [_instruction(_AT_LEAST, _X32, 0, 1), kill]
    code += _refuse(CLONE3, errno.ENOSYS)
    code += _inspect(CLONE[column], _instruction(_ANY_BIT, NEW_NAMESPACES, 0, 1))
    code += _inspect(PRLIMIT[column], _instruction(_EQUAL, 0, 1, 0))  # a process may set its own limits
    groups: list[tuple[Mapping[str, tuple[int | None, int | None]], bool]] = [
        (REFUSED, True),
        (ATTRIBUTES, guard_files),
        (FOLDERS, guard_folders),
        (SIGNALS, guard_signals),
        (STARTS, guard_starts),
    ]
    refused: list[int | None] = [SOCKET[column]]
    for calls, is_refused in groups:
        if is_refused:
            refused += [call[column] for call in calls.values()]
    if guard_signals:
        code += _refuse_signals_to_others(column, pid)
    if guard_starts:
        code += _inspect(CLONE[column], _instruction(_ANY_BIT, CLONE_THREAD, 1, 0))
    for number in refused:
        if number is not None:
            code += _refuse(number)
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _refuse_signals_to_others(column: int, pid: int) -> list[bytes]:
    """Return seccomp instructions that refuse a signal to a process other than `pid`."""
    code = _inspect(TGKILL[column], _instruction(_EQUAL, pid, 1, 0))
    for operation in FCNTL_SIGNALS:
        code += _inspect(FCNTL[column], _instruction(_EQUAL, operation, 0, 1), argument=1)
    for operation in IOCTL_SIGNALS:
        code += _inspect(IOCTL[column], _instruction(_EQUAL, operation, 0, 1), argument=1)
    return code


def install_filter(code: bytes) -> None:
    """Apply a seccomp filter to this thread and all that it starts. Needs no_new_privs.

    Raises OSError where the kernel has no seccomp.
    """
    program = ctypes.create_string_buffer(code, len(code))
    packed = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(program))
    head = ctypes.create_string_buffer(packed)
    linux.prctl(linux.PR_SET_SECCOMP, linux.SECCOMP_MODE_FILTER, ctypes.addressof(head))


def _instruction(
    opcode: int,
    operand: int,
    if_true: int = 0,
    if_false: int = 0,
) -> bytes:
    return struct.pack("HBBI", opcode, if_true, if_false, operand)


def _refuse(number: int, error: int = errno.EPERM) -> list[bytes]:
    return [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _ERROR | error)]


def _inspect(number: int, refuse_if_next: bytes, argument: int = 0) -> list[bytes]:
    """Return seccomp instructions that refuse a system call depending on one of its arguments.

    `refuse_if_next` tests the argument: it continues to the refusal or jumps over it.
    """
    body = [
        _instruction(_LOAD, _ARGUMENTS[argument]),
        refuse_if_next,
        _instruction(_RETURN, _ERROR | errno.EPERM),
        _instruction(_LOAD, _NUMBER),
    ]
    return [_instruction(_EQUAL, number, 0, len(body)), *body]
