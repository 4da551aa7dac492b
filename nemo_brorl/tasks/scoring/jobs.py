"""Texts to score, and a child that has some of them, as the crew keeps them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import BroRLError
from nemo_brorl.tasks.verifiers.registry import names_in

PATIENCE_S = 0.25
CODE_PATIENCE_S = 2.0  # a new child would first start a sandbox of its own, and this verifier ends late programs itself


def cpu_time(process: int) -> float:
    """CPU seconds of another process; 0 when it is gone."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # Linux: the clock of a process by its id (clock_getcpuclockid)
    except OSError:
        return 0.0


def wants_to_run(process: int) -> bool:
    """Whether a process is running, waiting for a CPU, or for a page from disk, and not asleep or gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "RD"
    except OSError:
        return False


@dataclass
class Job:
    """Texts to score for one payload."""

    verifier: str
    payload: Mapping[str, Any]
    texts: Sequence[str]
    timeout_s: float  # for each text
    waiting: deque[int] = field(default_factory=deque)  # texts that no child has
    scores: dict[int, float | None] = field(default_factory=dict)  # None: failed
    error: BroRLError | None = None  # why no text of it can be scored
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def patience_s(self) -> float:
        """How long a child may take for a text before it is set aside."""
        return CODE_PATIENCE_S if "code" in names_in(self.verifier, self.payload) else PATIENCE_S

    def settle(self, text: int, score: float | None) -> None:
        self.scores[text] = score
        if len(self.scores) == len(self.texts):
            self.done.set()

    def fail(self, error: BroRLError) -> None:
        self.error = error
        self.done.set()


@dataclass(eq=False)
class Child:
    """A forked process, and the texts of a job that it has, the one being scored first."""

    process: int
    connection: Connection
    job: Job | None = None
    texts: deque[int] = field(default_factory=deque)
    since: float = 0.0  # when it began with the first of them
    cpu_since: float = 0.0  # its CPU time then
    look_at: float = 0.0  # when to see next how long it has taken

    def begin_text(self, look_after: float) -> None:
        self.since = time.monotonic()
        self.cpu_since = cpu_time(self.process)
        self.look_at = self.since + look_after

    def time_taken(self, most: float) -> float:
        """Seconds for the text so far, as the module says; wall time once that is above `most`."""
        wall = time.monotonic() - self.since
        return (
            wall
            if wall > most or not wants_to_run(self.process)
            else min(wall, cpu_time(self.process) - self.cpu_since)
        )
