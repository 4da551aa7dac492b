"""The process of one run: a fork of the warden that gives up every right, then runs the program. Nothing here
returns."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any, NamedTuple

from nemo_brorl.tasks.sandbox import confine, harness, landlock, linux, seccomp
from nemo_brorl.tasks.sandbox.limits import MIB, Layers

REPORT = 3  # file descriptor on which the harness reports
STACK_BYTES = 64 * MIB
COULD_NOT_START = 125  # exit code
MAX_OPEN_FILES = 4096  # of the warden, with room to spare


class Cell(NamedTuple):
    """What every inmate of a warden is put under."""

    layers: Layers
    user: int  # becomes its user where `layers.own_uid`
    scratch: str  # folder
    rules: int | None  # Landlock's, a file descriptor
    filter: bytes | None  # seccomp's
    limits: dict[str, Any]  # of `Limits`
    null: int  # /dev/null


def live(job: dict[str, Any], printed: int, reported: int, cell: Cell) -> None:
    """Run a job in this process, which ends with it. `printed` and `reported` are pipes to the warden."""
    code = COULD_NOT_START
    try:
        _connect(job["stdin"], printed, cell.null)
        _confine(cell, job["seconds"])
        os.dup2(reported, REPORT)
        os.closerange(REPORT + 1, MAX_OPEN_FILES)  # nothing of the warden's stays open
        _filter_calls(cell)
        code = harness.run(job, REPORT)
    finally:
        os._exit(code)


def can_filter() -> bool:
    """Whether the kernel takes seccomp filters: tried in a process of its own, since there is no way back."""
    pid = os.fork()
    if pid == 0:
        code = seccomp.build(guard_signals=False)
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.install(code or b"")
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _connect(stdin: str, printed: int, null: int) -> None:
    """Standard input is a file in memory, so that no amount of it can block; what goes to standard error is dropped."""
    source = os.memfd_create("stdin")
    os.write(source, stdin.encode(errors="surrogateescape"))
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.dup2(printed, 1)
    os.dup2(null, 2)


def _confine(cell: Cell, seconds: float) -> None:
    """Everything but the filter of system calls: in an order in which each step still has the rights it needs."""
    os.setsid()
    if cell.layers.mount and not cell.layers.bubblewrap:
        confine.mount_scratch(cell.limits["scratch_mib"])
    os.chdir(cell.scratch)
    _set_limits(cell.limits, seconds)
    if cell.layers.own_uid:
        os.setgroups([])
        os.setresgid(cell.user, cell.user, cell.user)
        os.setresuid(cell.user, cell.user, cell.user)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if cell.rules is not None:
        landlock.restrict(cell.rules)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _filter_calls(cell: Cell) -> None:
    if cell.filter is not None:
        # With other processes in sight, the filter names the one that may be signalled.
        code = cell.filter if cell.layers.pid else seccomp.build(guard_signals=True, pid=os.getpid())
        seccomp.install(code or cell.filter)


def _set_limits(rights: dict[str, Any], seconds: float) -> None:
    cpu = int(seconds) + 2
    hard = {
        resource.RLIMIT_AS: rights["memory_mib"] * MIB,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_FSIZE: rights["file_mib"] * MIB,
        resource.RLIMIT_NOFILE: rights["open_files"],
        resource.RLIMIT_NPROC: rights["processes"],
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for limit, value in hard.items():
        ceiling = resource.getrlimit(limit)[1]
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(limit, (value, value))
