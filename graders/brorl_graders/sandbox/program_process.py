"""The process of one run: a fork of the fork server that gives up all rights and then runs the program.

Control never returns to the fork server's code.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

from brorl_graders.sandbox import confine, harness, linux, seccomp
from brorl_graders.sandbox.limits import MIB, Layers

REPORT = 3  # file descriptor for the harness's reports
FREE = 128  # file descriptors from here on are free while a run is set up
STACK_BYTES = 64 * MIB
COULD_NOT_START = 125  # exit code of a run that could not start
MAX_OPEN_FILES = 4096  # upper bound on the fork server's file descriptors


class Confinement(NamedTuple):
    """The isolation and limits that a fork server applies to each of its programs."""

    layers: Layers
    user: int  # user id of the program where `layers.own_uid`
    scratch: str  # path of the scratch folder
    rules: int | None  # file descriptor of Landlock's rules; None: no Landlock
    filter: bytes | None  # seccomp filter; None: no filter
    limits: dict[str, Any]  # fields of `SandboxLimits`
    null: int  # file descriptor of /dev/null

    @property
    def has_own_scratch(self) -> bool:
        """True when each run of a program mounts a scratch folder of its own, which disappears with the run."""
        return self.layers.mount and not self.layers.bubblewrap


def run_program(files: Sequence[int], seconds: float, confinement: Confinement) -> None:
    """Run a sandboxed program in this process and exit.

    `files` are file descriptors: of the program, of the pipes for what it prints and reports, and of the pipes between
    program and judge.
    """
    code = COULD_NOT_START
    try:
        program_file, printed, *outer = [fcntl.fcntl(file, fcntl.F_DUPFD, FREE) for file in files]
        with open(program_file, "rb", closefd=False) as reader:
            program = json.load(reader)
        _connect(program["stdin"], printed, confinement.null)
        _confine(confinement, seconds)
        for number, file in enumerate(outer, REPORT):
            os.dup2(file, number)
        os.closerange(REPORT + len(outer), MAX_OPEN_FILES)  # closes the fork server's files
        _filter_calls(confinement)
        max_line = confinement.limits["output_kib"] * 1024
        channels = range(REPORT + 1, REPORT + len(outer))
        code = harness.run(program, REPORT, channels, max_line)
    finally:
        os._exit(code)


def can_filter() -> bool:
    """Return whether the kernel takes seccomp filters, tried in a child process since a filter cannot be removed."""
    pid = os.fork()
    if pid == 0:
        code = seccomp.build_filter(guard_signals=False)
        try:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            seccomp.install_filter(code or b"")
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _connect(stdin: str, printed: int, null: int) -> None:
    """Connect the program's standard streams: input from a file in memory, and errors to /dev/null.

    A file in memory never blocks, however long the input is.
    """
    source = os.memfd_create("stdin")
    os.write(source, stdin.encode(errors="surrogateescape"))
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.dup2(printed, 1)
    os.dup2(null, 2)


def _confine(confinement: Confinement, seconds: float) -> None:
    """Isolate this process, apart from the system-call filter.

    The order of the steps is one in which each step still has the rights that it needs.
    """
    os.setsid()
    if confinement.has_own_scratch:
        confine.mount_scratch(confinement.scratch, confinement.limits["scratch_mib"])
    os.chdir(confinement.scratch)
    _set_limits(confinement.limits, seconds)
    if confinement.layers.own_uid:
        os.setgroups([])
        os.setresgid(confinement.user, confinement.user, confinement.user)
        os.setresuid(confinement.user, confinement.user, confinement.user)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if confinement.rules is not None:
        linux.landlock_restrict(confinement.rules)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _filter_calls(confinement: Confinement) -> None:
    code = confinement.filter
    if (
        code is not None and not confinement.layers.pid
    ):  # other processes are visible, so the filter names the one that may be signalled
        code = seccomp.build_filter(
            guard_signals=True,
            pid=os.getpid(),
            guard_files=confinement.layers.shows_own_files,
            guard_folders=not confinement.layers.mount,
        )
    if code is not None:
        seccomp.install_filter(code)


def _set_limits(limits: dict[str, Any], seconds: float) -> None:
    hard = {
        resource.RLIMIT_AS: limits["memory_mib"] * MIB,
        resource.RLIMIT_CPU: int(seconds) + 2,
        resource.RLIMIT_FSIZE: limits["file_mib"] * MIB,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for limit, value in hard.items():
        _, ceiling = resource.getrlimit(limit)
        if ceiling != resource.RLIM_INFINITY and ceiling < value:
            value = ceiling
        resource.setrlimit(limit, (value, value))
