"""Heartbeat of a run and the watch over it: what the run is doing, whom it waits for, when anything last moved, and a
warning when it stands still.

The driver's main thread says where it is, a thread reads it. Whoever waits for others gives `stage` a function that
names the late ones; the watch calls it only once nothing has moved for a while. Ending a run that stands still is the
main thread's own doing (`Heartbeat.check` in its waits), so that every process is closed in order; should it be stuck
where nobody checks, the watch ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError, StallError
from nemo_brorl.core.files import cannot_write, write_atomically
from nemo_brorl.core.timeline import Timeline

log = get_logger(__name__)

Stalled = Callable[[float], Sequence[str]]  # who has not moved for longer than so many seconds, as a message names them
OnStall = Callable[[str, float], None]  # told of every warning: what stands still, seconds

WRITE_INTERVAL_S = 5.0
LOOKS_PER_WARNING = 4  # the watch looks this often within the time after which it warns
CLOSING_S = 120.0  # from the end of a stalled run until the process is ended whatever it does
EXIT_STALLED = 3
STACKS_NAME = "stalled_stacks.txt"


class Standing(NamedTuple):
    """Where the run stands, at one moment."""

    stage: str
    detail: str
    stage_s: float  # since the stage began
    silent_s: float  # since anything moved


class _Stage(NamedTuple):
    name: str
    began_at: float  # time.monotonic()
    stalled: tuple[Stalled, ...]


class Heartbeat:
    """Stages and signs of life.

    with heartbeat.stage("generate", engines.stalled, verifiers.stalled):  # stages nest, the innermost one counts
        heartbeat.beat("1,024 of 4,096 rollouts")                    # something moved
        heartbeat.check()                                            # raises StallError once the watch has given up
    """

    def __init__(self, timeline: Timeline | None = None) -> None:
        """`timeline` is told of work by those who have the heartbeat; None: by nobody."""
        self.timeline = timeline or Timeline(is_on=False)
        self._lock = threading.Lock()
        now = time.monotonic()
        self._stages = [_Stage("driver", now, ())]  # its own work between all others
        self._detail = ""
        self._moved_at = now
        self._verdict: str | None = None
        self.is_ending = False  # the main thread has been told that the run was given up
        self.on_stall: OnStall | None = None

    @contextlib.contextmanager
    def stage(self, name: str, *stalled: Stalled) -> Iterator[None]:
        """Inside, the run is at `name`, and waits for those that the functions name. May be entered by the main thread
        only."""
        stage = _Stage(name, time.monotonic(), stalled)
        with self._lock:
            self._stages.append(stage)
        self.beat()
        try:
            yield
        finally:
            with self._lock:  # a generator may leave its stage before one that was entered later
                self._stages = [other for other in self._stages if other is not stage]
            self.beat()

    def beat(self, detail: str = "") -> None:
        """Something moved; `detail` says how far the stage is."""
        with self._lock:
            self._detail = detail
            self._moved_at = time.monotonic()

    def standing(self) -> Standing:
        """Where the run stands."""
        with self._lock:
            now = time.monotonic()
            stage = self._stages[-1]
            return Standing(
                stage=stage.name,
                detail=self._detail,
                stage_s=now - stage.began_at,
                silent_s=now - self._moved_at,
            )

    def stalled(self, seconds: float) -> list[str]:
        """Names of those that have not moved for longer than this, in the words of those who wait for them."""
        names: list[str] = []
        for stalled in self._stages[-1].stalled:
            names += stalled(seconds)
        return names

    def give_up(self, message: str | None) -> None:
        """Have `check` raise from now on; None: no longer, should it not have yet."""
        self._verdict = message

    def check(self) -> None:
        """Raise StallError when the watch has given the run up. Called in every wait of the main thread, every few
        seconds."""
        if self._verdict is not None:
            self.is_ending = True
            raise StallError(self._verdict)


class StallWatch:
    """A thread that writes `heartbeat.json` and notices when nothing moves. A context; leave it last, after all is
    closed.

    After `warning_s` without a beat it warns, names who is late, and warns again whenever the silence has doubled;
    after `timeout_s` (None: never) the run is given up. The heartbeat's `on_stall` is called from the thread with every
    warning. The start of a run has a limit of its own, whether anything moves or not: `start_timeout_s` until
    `note_started`.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        folder: Path,
        warning_s: float,
        timeout_s: float | None = None,
        start_timeout_s: float | None = None,
    ) -> None:
        self.heartbeat = heartbeat
        self.path = folder / "heartbeat.json"
        self.warning_s = warning_s
        self.timeout_s = timeout_s
        self.start_timeout_s = start_timeout_s  # None: no limit, or the run has started
        self.is_refused = False  # whether the disk refused the file when it was last written
        self._began_at = time.monotonic()
        self.next_warning_s = warning_s
        self.given_up_at: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch", daemon=True)

    def __enter__(self) -> StallWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        is_order = kind is None or issubclass(kind, KeyboardInterrupt)
        self._write("ended" if is_order else "failed", [])

    def look(self) -> None:
        """One look: write the file, warn, give up. The thread does nothing else."""
        standing = self.heartbeat.standing()
        if self._start_is_late(standing):
            return
        is_silent = standing.silent_s >= min(self.warning_s, self.timeout_s or self.warning_s)
        late = self.heartbeat.stalled(standing.silent_s / 2) if is_silent else []
        self._write("stalled" if is_silent else "running", late)
        if not is_silent:
            self._note_moving(standing)
            return
        message = describe(standing, late)
        if standing.silent_s >= self.next_warning_s:
            self.next_warning_s = 2 * standing.silent_s
            log.warning("%s", message)
            self._tell(message, standing.silent_s)
        if self.timeout_s is not None and standing.silent_s >= self.timeout_s and self.given_up_at is None:
            self.given_up_at = time.monotonic()
            self.heartbeat.give_up(f"{message}. The run is ended after trainer.stall_timeout_s={self.timeout_s:g} s")

    def _tell(self, message: str, silent_s: float) -> None:
        if self.heartbeat.on_stall is None:
            return
        try:
            self.heartbeat.on_stall(message, silent_s)
        except BroRLError as error:  # of a full disk: the watch goes on
            log.warning("%s", error)

    def note_started(self) -> None:
        """Everything is ready: the limit of the start no longer holds."""
        self.start_timeout_s = None

    def _start_is_late(self, standing: Standing) -> bool:
        """Whether the start has taken longer than its limit; the run is given up then."""
        limit_s = self.start_timeout_s
        taken_s = time.monotonic() - self._began_at
        if limit_s is None or taken_s < limit_s:
            return False
        late = self.heartbeat.stalled(0.0)
        self._write("stalled", late)
        if self.given_up_at is None:
            self.given_up_at = time.monotonic()
            message = f"the run has not started after trainer.start_timeout_s={limit_s:g} s: {describe(standing, late)}"
            log.error("%s", message)
            self.heartbeat.give_up(message)
        return True

    def _note_moving(self, standing: Standing) -> None:
        if self.next_warning_s > self.warning_s:
            log.warning("%s: moving again", standing.stage)
        self.next_warning_s = self.warning_s
        if not self.heartbeat.is_ending:  # nobody has looked while it was given up
            self.given_up_at = None
            self.heartbeat.give_up(None)

    def _run(self) -> None:
        interval = min(WRITE_INTERVAL_S, self.warning_s / LOOKS_PER_WARNING)
        while not self._closed.wait(interval):
            self.look()
            if self.given_up_at is not None and time.monotonic() - self.given_up_at > CLOSING_S:
                self._end_process()

    def _write(self, state: str, late: Sequence[str]) -> None:
        """Replace the file; a disk that refuses costs the file, not the run, and is named once."""
        standing = self.heartbeat.standing()
        row = {
            "state": state,
            "stage": standing.stage,
            "detail": standing.detail,
            "stage_s": round(standing.stage_s, 1),
            "silent_s": round(standing.silent_s, 1),
            "written_at": round(time.time(), 1),
            "late": list(late),
            "process": os.getpid(),
        }
        try:
            write_atomically(self.path, json.dumps(row, indent=1) + "\n")
            self.is_refused = False
        except OSError as error:
            if not self.is_refused:
                log.warning("%s", cannot_write(self.path, error))
            self.is_refused = True

    def _end_process(self) -> None:
        """The main thread hangs where nobody checks: leave its stack behind, and end. Ray ends the actors of a driver
        that is gone."""
        log.error(
            "the run was given up %.0f s ago and has not ended; its stacks are in %s",
            CLOSING_S,
            self.path.parent / STACKS_NAME,
        )
        with contextlib.suppress(OSError), (self.path.parent / STACKS_NAME).open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        os._exit(EXIT_STALLED)


def describe(standing: Standing, late: Sequence[str]) -> str:
    """A stall as one line."""
    where = f"{standing.stage} ({standing.detail})" if standing.detail else standing.stage
    waits = f"; late: {', '.join(late)}" if late else ""
    return f"{where}: nothing has moved for {standing.silent_s:.0f} s{waits}"
