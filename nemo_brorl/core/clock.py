"""Measure the seconds of a step's stages, and handle requests to stop a run."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import FrameType

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.timeline import Timeline

log = get_logger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED = 130  # exit code of a run that a user ended before its last step
SAVED = 75  # exit code (EX_TEMPFAIL) of a run that was saved before its end because it will be started again


class Stopwatch:
    """Sum of seconds for each stage name, filled by `with watch.measure("sync"): …`.

    Each measured time is also a stage of the timeline.
    """

    def __init__(self, timeline: Timeline | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.timeline = timeline or Timeline(is_on=False)

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside the context to the seconds of stage `name`, also in the timeline of the step."""
        start = time.monotonic()
        try:
            with self.timeline.stage(name):
                yield
        finally:
            self.seconds[name] += time.monotonic() - start


def grace_s(environment: Mapping[str, str]) -> float | None:
    """Return the seconds between SIGUSR1 and the end of the Slurm job that this run is in; None outside of a job.

    `job.sh` of the launcher sets them in BRORL_GRACE_S.
    """
    text = environment.get("BRORL_GRACE_S")
    return float(text) if text else None


class StepCut(Exception):
    """Raised inside a step that is abandoned so that the run can be saved in time."""


class StartCut(KeyboardInterrupt):
    """Raised by a signal in the main thread of a command that has nothing to save yet, such as in its start."""

    def __init__(self, number: int, stage: str | None) -> None:
        self.name = signal.Signals(number).name
        # A batch system sends SIGUSR1 to a job that it will start again.
        self.exit_code = SAVED if number == signal.SIGUSR1 else 128 + number
        where = f" in its start ({stage})" if stage else ""
        super().__init__(f"stopped by {self.name}{where}: nothing is lost. Run the same command to begin again.")


@contextlib.contextmanager
def cut_by_signals() -> Iterator[None]:
    """Let a signal that asks the process to stop raise StartCut in the context, until another handler takes over."""

    def cut(number: int, frame: FrameType | None) -> None:
        raise StartCut(number, None)

    former = [signal.signal(number, cut) for number in STOP_SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(STOP_SIGNALS, former, strict=True):
            signal.signal(number, handler)


class StopRequest:
    """A request to stop the run, by Ctrl-C, SIGTERM, SIGUSR1 or the time limit.

    The training loop checks it between steps. A second Ctrl-C interrupts at once. A batch system sends SIGUSR1 so that
    the run is saved and resumed later. `grace_s` are the seconds from SIGUSR1 to the end of the job. Half of them are
    for saving: a step that would take longer than the other half is abandoned.
    """

    def __init__(self, time_limit_s: float | None, grace_s: float | None = None) -> None:
        self.deadline: float | None = None  # time.monotonic()
        if time_limit_s is not None:
            self.deadline = time.monotonic() + time_limit_s
        self.grace_s = grace_s
        self.reason: str | None = None
        self.will_resume = False  # True: the sender of the signal will start the run again
        self.save_by: float | None = None  # time.monotonic()
        self.step_began = 0.0
        self.longest_step_s = 0.0
        self.longest_update_s: float | None = None  # None: there was no update so far

    def install(self) -> None:
        """Install handlers for SIGINT, SIGTERM and SIGUSR1 that ask the run to save its state and stop.

        Only the main thread may call this.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)

    def step_begins(self) -> None:
        """Record the start of a training step, which is expected to take as long as the longest step so far."""
        self.step_began = time.monotonic()

    def step_ended(self) -> None:
        """Record the end of a training step, validation and saving included."""
        step_s = time.monotonic() - self.step_began
        self.longest_step_s = max(self.longest_step_s, step_s)

    @contextlib.contextmanager
    def update(self) -> Iterator[None]:
        """Record how long the part of a training step takes that cannot be cut: the policy's update."""
        start = time.monotonic()
        yield
        update_s = time.monotonic() - start
        self.longest_update_s = max(self.longest_update_s or 0.0, update_s)

    def check_update(self) -> None:
        """Raise StepCut when the policy's update would not be over in time, with the reason and what follows set.

        An update is expected to take as long as the longest one so far. After SIGUSR1 none begins whose time is
        unknown.
        """
        now = time.monotonic()
        if self.save_by is not None and (self.longest_update_s is None or now + self.longest_update_s > self.save_by):
            raise StepCut
        if self.deadline is None or self.longest_update_s is None:
            return
        if self.reason is None and now + self.longest_update_s > self.deadline:
            self.reason = "the time limit is near"
            self.will_resume = True
            raise StepCut

    def should_stop(self) -> bool:
        """Return whether a signal or the time limit requires the run to stop before another step."""
        if self.reason is None and self.deadline is not None:
            expected_end = time.monotonic() + self.longest_step_s
            if expected_end > self.deadline:
                self.reason = "the time limit is near"
                self.will_resume = True
        return self.reason is not None

    def exit_code(self, is_over: bool) -> int:
        """Return the exit code of a run, whose last step is done if it `is_over`."""
        if is_over or self.reason is None:
            return 0
        return SAVED if self.will_resume else INTERRUPTED

    def check(self) -> None:
        """Raise StepCut when the current training step would leave too little time to save a checkpoint."""
        if self.save_by is None:
            return
        expected_end = self.step_began + self.longest_step_s
        if max(time.monotonic(), expected_end) > self.save_by:
            raise StepCut

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save_soon()
        elif self.reason is not None and (number == signal.SIGINT or not self.will_resume):
            # A SIGTERM after a SIGUSR1 means that the job's time is over. A save in progress may still finish.
            raise KeyboardInterrupt
        elif self.reason is None:
            self.reason = signal.Signals(number).name
            log.warning("%s: finishing this step, then saving; send it again to stop at once", self.reason)

    def _save_soon(self) -> None:
        if self.save_by is not None:
            return
        self.reason = "SIGUSR1"
        self.will_resume = True
        if self.grace_s is not None:
            self.save_by = time.monotonic() + self.grace_s / 2
        log.warning("SIGUSR1: saving soon, to be resumed later")


def is_due(step: int, interval: int) -> bool:
    """Return whether a task that runs every `interval` steps (0: never) runs after `step`."""
    return interval > 0 and step % interval == 0
