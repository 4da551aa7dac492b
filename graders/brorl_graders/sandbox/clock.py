"""A clock for work in other processes, which is fair to work that gets little CPU.

While all processes of the work sleep, wall time counts. While one of them runs or waits for a CPU, their CPU time
counts, but at least a quarter of the wall time. So on a busy machine work may take up to four times its limit.
"""

from __future__ import annotations

import os
import time

STARVED_SHARE = 0.25  # of the wall time, the least that counts
LOOK_S = 0.1  # shortest time between two looks at the processes
CAN_RUN = b"RD"  # states of threads that run, wait for a CPU or wait for a page from disk
TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    """The seconds that a process and its descendants have taken. The process that reads the clock does not count."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.start()

    def start(self) -> None:
        """Restart the clock at 0."""
        self.started_at = time.monotonic()
        self._looked_at = self.started_at
        self._cpu_s: float | None = None  # CPU seconds of the processes at the last look; None: no look yet
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the seconds since the start. Reading often is cheap, since few readings look at the processes."""
        now = time.monotonic()
        step = now - self._looked_at
        if step < LOOK_S:
            return self._seconds + step
        cpu_s, can_run = _look(self.process)
        if can_run and self._cpu_s is not None:
            step = min(step, max(cpu_s - self._cpu_s, STARVED_SHARE * step))
        self._looked_at = now
        self._cpu_s = cpu_s
        self._seconds += step
        return self._seconds


def _look(process: int) -> tuple[float, bool]:
    """Return the CPU seconds of a process and its descendants, and whether one of their threads could run."""
    ticks = 0
    can_run = False
    this_process = b"%d" % os.getpid()
    unseen = [b"%d" % process]
    while unseen:
        name = unseen.pop()
        try:
            threads = os.listdir(b"/proc/%b/task" % name)
            for thread in threads:
                unseen += _read(b"/proc/%b/task/%b/children" % (name, thread)).split()
            if name == this_process:
                continue
            stat = _read_stat(b"/proc/%b/stat" % name)
            ticks += sum(map(int, stat[11:15]))  # spent by the process, and by children that have ended
            can_run |= stat[0] in CAN_RUN
            for thread in set(threads) - {name}:
                can_run |= _read_stat(b"/proc/%b/task/%b/stat" % (name, thread))[0] in CAN_RUN
        except OSError:  # it has ended meanwhile, or the kernel does not tell
            continue
    return ticks / TICKS, can_run


def _read_stat(path: bytes) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, behind a name that may be any bytes."""
    return _read(path).rpartition(b")")[2].split()


def _read(path: bytes) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
