"""Track what a run is doing, and warn when it makes no progress.

The driver's main thread reports its stage, and a watch thread reads it. Code that waits for other processes gives
`stage` a function that names the late ones. The watch calls it only once there was no progress for a while. A stalled
run is ended by the main thread itself (`Heartbeat.check` in its waits), so that every process is closed in order. If
the main thread hangs where nothing calls `check`, the watch ends the process.
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

from nemo_brorl.core.clock import StartCut
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import BroRLError, StallError
from nemo_brorl.core.files import cannot_write, write_atomically
from nemo_brorl.core.timeline import Timeline

log = get_logger(__name__)

Stalled = Callable[[float], Sequence[str]]  # returns the names of processes without progress for that many seconds
OnStall = Callable[[str, float], None]  # gets each warning: its text and the seconds without progress

WRITE_INTERVAL_S = 5.0
LOOKS_PER_WARNING = 4  # number of checks by the watch within the time after which it warns
CLOSING_S = 120.0  # seconds from giving up a stalled run until the process is ended by force
EXIT_STALLED = 3
STACKS_NAME = "stalled_stacks.txt"


class Standing(NamedTuple):
    """Stage and progress of the run at one moment."""

    stage: str
    detail: str
    stage_s: float  # seconds since the stage started
    silent_s: float  # seconds since the last progress


class _Stage(NamedTuple):
    name: str
    began_at: float  # time.monotonic()
    stalled: tuple[Stalled, ...]


class Heartbeat:
    """The run's current stage, and the time of its last progress.

    with heartbeat.stage("generate", engines.stalled, verifiers.stalled):  # stages nest, the innermost one counts
        heartbeat.beat("1,024 of 4,096 rollouts")                    # something moved
        heartbeat.check()                                            # raises StallError once the watch has given up
    """

    def __init__(self, timeline: Timeline | None = None) -> None:
        """Track the progress of a run.

        The code that reports progress records its work in `timeline`. None records nothing.
        """
        self.timeline = timeline or Timeline(is_on=False)
        self._lock = threading.Lock()
        now = time.monotonic()
        self._stages = [_Stage("driver", now, ())]  # the driver's own work between other stages
        self._detail = ""
        self._moved_at = now
        self._verdict: str | None = None
        self.is_ending = False  # True: `check` has raised StallError in the main thread
        self.on_stall: OnStall | None = None

    @contextlib.contextmanager
    def stage(self, name: str, *stalled: Stalled) -> Iterator[None]:
        """Mark the run as being at stage `name` inside the context.

        The run waits there for other processes. Each function in `stalled` returns the names of those that have made no
        progress for a number of seconds. Only the main thread may enter the context.
        """
        stage = _Stage(name, time.monotonic(), stalled)
        with self._lock:
            self._stages.append(stage)
        self.beat("")
        try:
            yield
        finally:
            with self._lock:  # a generator may leave its stage before one that was entered later
                self._stages = [other for other in self._stages if other is not stage]
            self.beat("")

    def beat(self, detail: str | None = None) -> None:
        """Record that the current stage of the run has made progress, which `detail` describes for the log.

        None keeps the description that the stage has.
        """
        with self._lock:
            if detail is not None:
                self._detail = detail
            self._moved_at = time.monotonic()

    def standing(self) -> Standing:
        """Return the current stage of the run, its progress, and the seconds since it started and last moved."""
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
        """Return the names of the processes without progress for more than `seconds`.

        They come from the functions that the run's current stage gave for this.
        """
        names: list[str] = []
        for stalled in self._stages[-1].stalled:
            names += stalled(seconds)
        return names

    def give_up(self, message: str | None) -> None:
        """Make `check` raise StallError with `message` in the main thread from now on.

        None withdraws that.
        """
        self._verdict = message

    def check(self) -> None:
        """Raise StallError when the stall watchdog has given up the run.

        The main thread calls this every few seconds while it waits for other processes.
        """
        if self._verdict is not None:
            self.is_ending = True
            raise StallError(self._verdict)


class StallWatch:
    """A thread that writes `heartbeat.json` and notices when the run makes no progress.

    It is a context manager: leave it last, after everything is closed. After `warning_s` without a beat it warns, names
    the late processes, and warns again whenever the silence has doubled. After `timeout_s` (None: never) it gives up
    the run. With every warning the thread calls the heartbeat's `on_stall`. The start of a run has its own limit in
    place of `timeout_s`, even with progress: `start_timeout_s` until `mark_started`. A large model loads in silence.
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
        self.is_refused = False  # True: the last write of the file failed
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
        if isinstance(error, StartCut):
            self.note_cut(error)
            return
        is_order = kind is None or issubclass(kind, KeyboardInterrupt)
        self._write("ended" if is_order else "failed", [])

    def note_cut(self, cut: StartCut) -> None:
        """Write into `heartbeat.json` that a signal ended the start of the run."""
        self._closed.set()
        self.heartbeat.beat(str(cut))
        self._write("ended", [])

    def look(self) -> None:
        """Check the run for a stall once: write `heartbeat.json`, warn, or give up the run.

        The watchdog's thread does nothing else.
        """
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
        has_started = self.start_timeout_s is None
        is_over = self.timeout_s is not None and standing.silent_s >= self.timeout_s
        if has_started and is_over and self.given_up_at is None:
            self.given_up_at = time.monotonic()
            self.heartbeat.give_up(f"{message}. The run is ended after trainer.stall_timeout_s={self.timeout_s:g} s")

    def _tell(self, message: str, silent_s: float) -> None:
        if self.heartbeat.on_stall is None:
            return
        try:
            self.heartbeat.on_stall(message, silent_s)
        except BroRLError as error:  # for example of a full disk: the watch continues
            log.warning("%s", error)

    def mark_started(self) -> None:
        """Lift the time limit for the start of a run, once engines, policy and verifiers are ready."""
        self.heartbeat.beat()  # the silence of the start is no stall
        self.start_timeout_s = None

    def _start_is_late(self, standing: Standing) -> bool:
        """Return whether the start of the run has taken longer than its time limit, and give up the run if so."""
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
        if not self.heartbeat.is_ending:  # `check` was not called while the run was given up
            self.given_up_at = None
            self.heartbeat.give_up(None)

    def _run(self) -> None:
        interval = min(WRITE_INTERVAL_S, self.warning_s / LOOKS_PER_WARNING)
        while not self._closed.wait(interval):
            self.look()
            if self.given_up_at is not None and time.monotonic() - self.given_up_at > CLOSING_S:
                self._end_process()

    def _write(self, state: str, late: Sequence[str]) -> None:
        """Replace `heartbeat.json`, which shows the progress of a run.

        A disk error costs the file, not the run, and is logged once.
        """
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
        """End the process if its main thread hangs where it never checks for stalls, and write all stacks to a file.

        Ray ends the actors of a driver that has exited.
        """
        log.error(
            "the run was given up %.0f s ago and has not ended; its stacks are in %s",
            CLOSING_S,
            self.path.parent / STACKS_NAME,
        )
        with contextlib.suppress(OSError), (self.path.parent / STACKS_NAME).open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        os._exit(EXIT_STALLED)


def describe(standing: Standing, late: Sequence[str]) -> str:
    """Return a one-line description of a stalled run: stage, seconds without progress, late processes."""
    where = f"{standing.stage} ({standing.detail})" if standing.detail else standing.stage
    waits = f"; late: {', '.join(late)}" if late else ""
    return f"{where}: nothing has moved for {standing.silent_s:.0f} s{waits}"
