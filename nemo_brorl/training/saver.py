"""Saving of a run in the background: the policy's files are written while training continues.

The stages of a checkpoint, from one step to a later one:

    begin (policy state copied)  →  step_K.partial/  →  finish (all files are there)  →  step_K/  →  COMPLETE  →  older
    ones deleted
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError, ResourceError
from nemo_brorl.ports import Policy
from nemo_brorl.training.checkpoint import Checkpoints, RunState

MAX_FAILED_SAVES = 2  # failed saves in a row that end a run

log = get_logger(__name__)


class Saver:
    """Writer of one checkpoint at a time, in the background or not.

    A failed save leaves older checkpoints intact and is a warning, because the next one may succeed. A second failure
    in a row is an error, and so is a failure of the last save (`wait`).
    """

    def __init__(self, checkpoints: Checkpoints, policy: Policy, in_background: bool) -> None:
        self.checkpoints = checkpoints
        self.policy = policy
        self.in_background = in_background
        self.pending: int | None = None  # step of the checkpoint that is being written
        self.num_failed = 0  # failed saves in a row
        self.seconds: dict[str, float] = {}  # durations for the next row of metrics

    def save(self, run: RunState, wait: bool) -> None:
        """Save a checkpoint of a training step, unless it has one.

        Returns once the state is copied, or with `wait` once the checkpoint is complete. Raises CheckpointError.
        """
        # One checkpoint at a time, because each has a copy of the ranks' state in memory until it is written.
        self.finish(wait=True)
        if self.checkpoints.folder / f"step_{run.step}" in self.checkpoints.complete():
            return
        self._begin(run, may_fail=not wait)
        if wait or not self.in_background:
            self.finish(wait=True, may_fail=not wait)

    def finish(self, wait: bool, may_fail: bool = True) -> None:
        """Complete the checkpoint that is being written, if all policy ranks have written their files.

        With `wait`, block until they have. Raises CheckpointError.
        """
        if self.pending is None:
            return
        try:
            with self._step_waits():
                seconds = self.policy.finish_save(wait)
                if seconds is None:
                    return
                folder = self.checkpoints.commit(self.pending)
        except (CheckpointError, ResourceError, OSError) as error:
            self._failed(error, may_fail)
        else:
            self.num_failed = 0
            self.seconds["time/save_background_s"] = seconds
            log.info("saved %s: written in %.1f s", folder, seconds)
        self.pending = None

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds that saving checkpoints took since the last call, as metrics.

        `time/save_s`: how long a training step waited. `time/save_background_s`: how long writing took.
        """
        seconds = self.seconds
        self.seconds = {}
        return seconds

    @contextmanager
    def _step_waits(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        waited_before = self.seconds.get("time/save_s", 0.0)
        self.seconds["time/save_s"] = waited_before + time.monotonic() - start

    def _begin(self, run: RunState, may_fail: bool) -> None:
        try:
            with self._step_waits():
                self.policy.begin_save(self.checkpoints.begin(run))
        except (CheckpointError, ResourceError, OSError) as error:
            self._failed(error, may_fail)
        else:
            self.pending = run.step

    def _failed(self, error: Exception, may_fail: bool) -> None:
        self.num_failed += 1
        self.pending = None
        self.checkpoints.abandon()
        if not may_fail or self.num_failed >= MAX_FAILED_SAVES:
            raise CheckpointError(f"{error}; older checkpoints in {self.checkpoints.folder} are intact") from error
        log.warning("%s; older checkpoints are intact, and training continues without this one", error)
