"""Limits, layers and endings of a run, which both sides of the sandbox know, and the reading of a program's output."""

from __future__ import annotations

import dataclasses
import math
import os
import select
import socket
from dataclasses import dataclass, field

from brorl_graders.sandbox.clock import Clock

MIB = 2**20
MAX_MESSAGE = 4096  # longest message between owner and fork server, in bytes
STOP = b"stop"  # message of the owner that a program must end now
MARK = "__assertion__"  # function that a test script calls before each assertion
COPY = "__copy_of__"  # function that copies a test script's starred arguments

# What a program must not be able to do.
GAPS = {
    "files": "read and write this machine's files (needs a mount namespace or Landlock)",
    "attributes": "change rights and times of files (needs a mount namespace, a user of its own or seccomp)",
    "network": "use the network (needs a network namespace or seccomp)",
    "signals": "stop other processes (needs a pid namespace, a user of its own or seccomp)",
    "look": "look into other processes (needs a pid namespace, a user of its own or seccomp)",
    "memory": "use memory without end, in memory files and namespaces of its own (needs seccomp)",
    "processes": "start processes without end (needs a user that is not root)",
    "rights": "gain rights by set-uid programs (needs no_new_privs)",
}
NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts")

# Endings of a run, the values of `SandboxResult.ending`.
FINISHED = "finished"  # the program exited with code 0
FAILED = "failed"  # the program raised, or exited with another code
TIMED_OUT = "timed out"
TOO_MUCH_OUTPUT = "too much output"
KILLED = "killed"  # a signal ended it: a limit of memory, CPU time or files, a forbidden system call, a crash
LOST = "lost"  # the fork server was lost during the run

READ_BYTES = 65536
LOOK_AGAIN_S = 0.25  # longest time between two readings of a running program's clock


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one run of a program. Exceeding one ends the run, and each run has the full limits."""

    seconds: float = 5.0  # time for the program itself, and again for each test (`clock.py`)
    memory_mib: int = 512  # address space of each process
    scratch_mib: int = 16  # size of all files together
    file_mib: int = 16  # size of one file
    output_kib: int = 1024  # size of the printed text, and as much again for results
    processes: int = 8  # processes and threads together
    open_files: int = 64


@dataclass(frozen=True)
class Layers:
    """The layers that isolate programs on this machine."""

    user: bool = False  # the first six are kernel namespaces
    mount: bool = False
    pid: bool = False
    net: bool = False
    ipc: bool = False
    uts: bool = False
    own_uid: bool = False  # programs run as a user without other processes
    landlock: int = 0  # version of the kernel's Landlock, 0: unused
    seccomp: bool = False
    no_new_privs: bool = False
    bubblewrap: bool = False
    reached: tuple[str, ...] = ()  # names in GAPS of what the trial program could do

    @property
    def shows_own_files(self) -> bool:
        """True when sandboxed programs run as the owner's user and only Landlock keeps them from this user's files."""
        return not self.mount and not self.own_uid

    def gaps(self) -> list[str]:
        """Return what a sandboxed program could do that it must not, one text each.

        The list is empty when the sandbox holds.
        """
        return [meaning for name, meaning in GAPS.items() if name in self.reached]

    def __str__(self) -> str:
        """Return the isolation layers of the sandbox as one line of text.

        An example is `sandbox: user+mount+pid+net+ipc+uts namespaces, own uid, no_new_privs, seccomp, rlimits`.
        """
        spaces = "+".join(name for name in NAMESPACES if getattr(self, name))
        named = {
            "bubblewrap": self.bubblewrap,
            f"{spaces} namespaces": bool(spaces),
            "own uid": self.own_uid,
            "no_new_privs": self.no_new_privs,
            "seccomp": self.seccomp,
            f"Landlock {self.landlock}": bool(self.landlock),
            "rlimits": True,
        }
        return "sandbox: " + ", ".join(name for name, is_on in named.items() if is_on)


ALL_LAYERS = tuple(field.name for field in dataclasses.fields(Layers))


@dataclass
class OutputPipe:
    """A pipe that a program writes to, with the text that has been read from it."""

    max_bytes: int
    text: bytearray = field(default_factory=bytearray)
    is_at_end: bool = False

    def __post_init__(self) -> None:
        self.file, self.their_file = os.pipe()
        os.set_blocking(self.file, False)

    @property
    def is_within_limit(self) -> bool:
        """True while the sandboxed program has written no more output than it may."""
        return len(self.text) <= self.max_bytes

    def read(self) -> bytes:
        """Read and return at most READ_BYTES that are in a program's output pipe now, which may be none."""
        try:
            data = os.read(self.file, READ_BYTES)
        except BlockingIOError:
            return b""
        self.is_at_end = not data
        self.text += data
        return data

    def read_rest(self) -> None:
        """Read what is left in a sandboxed program's output pipe after all writers of the pipe have exited."""
        while self.is_within_limit and self.read():
            continue

    def close_their_end(self) -> None:
        """Close this process's copy of the end of an output pipe that the sandboxed program writes to."""
        if self.their_file >= 0:
            os.close(self.their_file)
        self.their_file = -1

    def close(self) -> None:
        """Close both ends of a sandboxed program's output pipe in this process."""
        self.close_their_end()
        os.close(self.file)


@dataclass(frozen=True)
class TimeLimits:
    """Limits of one run of a program in seconds, by a clock that is fair to programs that get little CPU."""

    clock: Clock
    period: float  # time for the program itself, and again for each test
    total: float
    num_periods: int


def watch_output(
    printed: OutputPipe,
    reported: OutputPipe,
    fork_server: socket.socket,
    times: TimeLimits,
    last_report: bytes = b"",
) -> str | None:
    """Read both output pipes of a running program until it ends, must end, or has reported the line `last_report`.

    Returns TIMED_OUT or TOO_MUCH_OUTPUT when the program must end. Returns None after `last_report`, and when the fork
    server has a message, which means that the program has ended.
    """
    clock = times.clock
    last_deadline = clock.seconds() + times.total
    deadline = min(clock.seconds() + times.period, last_deadline)
    periods_left = times.num_periods
    poll = select.poll()
    poll.register(fork_server, select.POLLIN)
    for pipe in (printed, reported):
        poll.register(pipe.file, select.POLLIN)
    while True:
        seconds_left = deadline - clock.seconds()
        if seconds_left <= 0:
            return TIMED_OUT
        seconds_to_look = min(seconds_left, LOOK_AGAIN_S)
        ready = {file for file, _ in poll.poll(math.ceil(seconds_to_look * 1000))}
        num_reported = len(reported.text)
        for pipe in (printed, reported):
            if pipe.file not in ready:
                continue
            pipe.read()
            if pipe.is_at_end:
                poll.unregister(pipe.file)
            if not pipe.is_within_limit:
                return TOO_MUCH_OUTPUT
        # a report ends one test and starts the next
        if periods_left > 0 and reported.text.find(b"\n", num_reported) >= 0:
            periods_left -= 1
            deadline = min(clock.seconds() + times.period, last_deadline)
        is_last = bool(last_report) and reported.text.endswith(last_report)
        if is_last or fork_server.fileno() in ready:
            return None
