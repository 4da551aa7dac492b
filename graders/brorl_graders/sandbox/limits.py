"""Limits, layers and endings of a run: the words that both sides of the wall share.

The output of a program is read outside until it ends, is late, or has written too much.
"""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import time
from dataclasses import dataclass, field

MIB = 2**20
MAX_MESSAGE = 4096  # bytes, between owner and fork server
STOP = b"stop"  # the owner's word that a program must end now
MARK = "__assertion__"  # name of the function that a test script calls before each assertion
COPY = "__copy_of__"  # function that a test script's arguments behind a star go through

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

# How a run ended, `SandboxResult.ending`.
FINISHED = "finished"  # the program ended by itself with exit code 0
FAILED = "failed"  # it raised, or ended with another exit code
TIMED_OUT = "timed out"
TOO_MUCH_OUTPUT = "too much output"
KILLED = "killed"  # by a signal: a limit of memory, processor time or files, a forbidden system call, a crash
LOST = "lost"  # the sandbox went away with it

READ_BYTES = 65536


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one run. Exceeding one ends the run; none of them is shared with the next."""

    seconds: float = 5.0  # wall clock, for the program itself and again for each of its tests
    memory_mib: int = 512  # address space, for each process
    scratch_mib: int = 16  # all files together
    file_mib: int = 16  # one file
    output_kib: int = 1024  # what is printed, and as much again for results
    processes: int = 8  # threads count as well
    open_files: int = 64


@dataclass(frozen=True)
class Layers:
    """What holds programs on this machine."""

    user: bool = False  # namespaces ...
    mount: bool = False
    pid: bool = False
    net: bool = False
    ipc: bool = False
    uts: bool = False
    own_uid: bool = False  # programs run as a user that nothing else runs as
    landlock: int = 0  # version of the kernel's interface, 0: not used
    seccomp: bool = False
    no_new_privs: bool = False
    bubblewrap: bool = False
    reached: tuple[str, ...] = ()  # of GAPS, by a program that tried

    @property
    def shows_own_files(self) -> bool:
        """Whether programs see files of the user that they run as, kept from them by Landlock alone."""
        return not self.mount and not self.own_uid

    def gaps(self) -> list[str]:
        """What a program could do that it must not; empty for a sandbox."""
        return [meaning for name, meaning in GAPS.items() if name in self.reached]

    def __str__(self) -> str:
        """As in `sandbox: user+mount+pid+net+ipc+uts namespaces, own uid, no_new_privs, seccomp, rlimits`."""
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
    """A pipe that a program writes to, and what has come out of it."""

    max_bytes: int
    text: bytearray = field(default_factory=bytearray)
    is_at_end: bool = False

    def __post_init__(self) -> None:
        self.file, self.their_file = os.pipe()
        os.set_blocking(self.file, False)

    @property
    def is_within_limit(self) -> bool:
        """Whether the program has written no more than it may."""
        return len(self.text) <= self.max_bytes

    def read(self) -> bytes:
        """What is there now, at most READ_BYTES of it; nothing at the end."""
        try:
            data = os.read(self.file, READ_BYTES)
        except BlockingIOError:
            return b""
        self.is_at_end = not data
        self.text += data
        return data

    def read_rest(self) -> None:
        """Read what its writers, who are gone, have left in it."""
        while self.is_within_limit and self.read():
            continue

    def close_their_end(self) -> None:
        """Close this process's copy of the program's end."""
        if self.their_file >= 0:
            os.close(self.their_file)
        self.their_file = -1

    def close(self) -> None:
        """Close what is open of it."""
        self.close_their_end()
        os.close(self.file)


@dataclass(frozen=True)
class TimeLimits:
    """Seconds for a run by the wall clock."""

    period: float  # for the program itself, and again for each of its tests
    total: float
    num_periods: int


def watch_output(
    printed: OutputPipe,
    reported: OutputPipe,
    fork_server: socket.socket,
    times: TimeLimits,
    last_report: bytes = b"",
) -> str | None:
    """Read both pipes while a program runs. Why it must end, TIMED_OUT or TOO_MUCH_OUTPUT; None when the fork server
    has something to say: that it has ended, and when it has reported the line `last_report`."""
    last_deadline = time.monotonic() + times.total
    deadline = min(time.monotonic() + times.period, last_deadline)
    periods_left = times.num_periods
    poll = select.poll()
    poll.register(fork_server, select.POLLIN)
    for pipe in (printed, reported):
        poll.register(pipe.file, select.POLLIN)
    while True:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0:
            return TIMED_OUT
        ready = {file for file, _ in poll.poll(seconds_left * 1000)}
        num_reported = len(reported.text)
        for pipe in (printed, reported):
            if pipe.file not in ready:
                continue
            pipe.read()
            if pipe.is_at_end:
                poll.unregister(pipe.file)
            if not pipe.is_within_limit:
                return TOO_MUCH_OUTPUT
        # a report ends a test, and the next one begins
        if periods_left > 0 and reported.text.find(b"\n", num_reported) >= 0:
            periods_left -= 1
            deadline = min(time.monotonic() + times.period, last_deadline)
        is_last = bool(last_report) and reported.text.endswith(last_report)
        if is_last or fork_server.fileno() in ready:
            return None
