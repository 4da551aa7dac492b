"""Output of one program, read outside: until it ends, is late, or has written too much."""

from __future__ import annotations

import os
import select
import socket
import time
from dataclasses import dataclass, field

from nemo_brorl.tasks.sandbox.limits import TIMED_OUT, TOO_MUCH_OUTPUT

READ_BYTES = 65536


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

    def close_theirs(self) -> None:
        """Close this process's copy of the program's end."""
        if self.their_file >= 0:
            os.close(self.their_file)
        self.their_file = -1

    def close(self) -> None:
        """Close what is open of it."""
        self.close_theirs()
        os.close(self.file)


@dataclass(frozen=True)
class TimeLimits:
    """Seconds for a run by the wall clock."""

    part: float  # for the program, and again for each part of the job
    total: float
    num_parts: int


def watch(
    printed: OutputPipe,
    reported: OutputPipe,
    fork_server: socket.socket,
    times: TimeLimits,
    last_report: bytes = b"",
) -> str | None:
    """Read both pipes while a program runs. Why it must end, TIMED_OUT or TOO_MUCH_OUTPUT; None when the fork server
    has something to say: that it has ended, and when it has reported the line `last_report`."""
    last_deadline = time.monotonic() + times.total
    deadline = min(time.monotonic() + times.part, last_deadline)
    parts_left = times.num_parts
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
        # a report ends a part, and the next one begins
        if parts_left > 0 and reported.text.find(b"\n", num_reported) >= 0:
            parts_left -= 1
            deadline = min(time.monotonic() + times.part, last_deadline)
        is_last = bool(last_report) and reported.text.endswith(last_report)
        if is_last or fork_server.fileno() in ready:
            return None
