"""Read the state of a run from its folder: heartbeat, last steps and checkpoints, while the run writes them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import SMALL, VAST, RecordError, open_record, read_json, record_json

from brorl_launcher.launch_folder import read_jobs
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.recorded_yaml import read_record, setting_of
from nemo_brorl.core.step_time import step_seconds

TAIL_BYTES = 1 << 20  # part of metrics.jsonl that is read; a row has a few KiB
PACE_STEPS = 10  # last steps that the mean step time covers, validations and checkpoints included
SHOWN_PARTS = ("generate", "reward", "log_prob", "update", "sync", "validate", "save")
MAX_STEPS = "trainer.max_steps="
SKEW_S = 3600.0  # a heartbeat from further in the future is of a clock that jumped
MARKER = "COMPLETE"  # file that is written last into a checkpoint

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HeartbeatFile:
    """The contents of `heartbeat.json`, which `nemo_brorl.core.stall_watch` writes."""

    state: str  # running, stalled, ended, or failed with an error
    stage: str
    detail: str
    stage_s: float
    silent_s: float
    written_at: float  # driver's clock, seconds since 1970
    late: tuple[str, ...]

    def is_fresh(self, now: float, seconds: float) -> bool:
        """Return whether it was written within the last `seconds`. `now`: seconds since 1970."""
        return -SKEW_S < now - self.written_at < seconds


@dataclass(frozen=True)
class RunStatus:
    """The state of a run folder at one moment."""

    folder: Path
    max_steps: int | None  # None: no settings yet
    heartbeat: HeartbeatFile | None
    rows: tuple[Row, ...]  # last steps, oldest first
    checkpoint: int | None  # step of the newest complete checkpoint
    checkpoint_age_s: float | None

    @property
    def step(self) -> int | None:
        return int(self.rows[-1]["step"]) if self.rows else None

    @property
    def is_finished(self) -> bool:
        """Return whether the training run has the checkpoint of its last step."""
        return self.max_steps is not None and self.checkpoint is not None and self.checkpoint >= self.max_steps

    @property
    def step_s(self) -> float | None:
        """Return the mean seconds of the run's last training steps, from the stages that were timed."""
        times = [step_seconds(row) for row in self.rows[-PACE_STEPS:] if row["step"] > 0]
        return statistics.fmean(times) if times else None

    @property
    def remaining_s(self) -> float | None:
        """Return the estimated seconds of training until the run's last step, or None when they are unknown."""
        if self.step_s is None or self.step is None or self.max_steps is None:
            return None
        return max(self.max_steps - self.step, 0) * self.step_s


def read_run(folder: Path) -> RunStatus:
    """Return the state of a training run, read from the files of its run folder.

    Missing or half-written files raise nothing. The values that they would hold are then None.
    """
    rows = tuple(last_rows(folder / "metrics.jsonl"))
    saved, age_s = newest_checkpoint(folder)
    last = max_steps(folder)
    reached = max(rows[-1]["step"] if rows else 0, saved or 0)
    if last is not None and reached > last:  # the run continues under settings that no file has
        last = None
    return RunStatus(folder, last, read_heartbeat(folder), rows, saved, age_s)


def read_heartbeat(folder: Path) -> HeartbeatFile | None:
    """Return the heartbeat of a run folder, or None when the file is missing or damaged."""
    try:
        row = record_json(folder / "heartbeat.json", SMALL)
        return HeartbeatFile(
            str(row["state"]),
            str(row["stage"]),
            str(row["detail"]),
            _finite(row["stage_s"]),
            _finite(row["silent_s"]),
            _finite(row["written_at"]),
            tuple(map(str, row["late"])),
        )
    except (OSError, *MALFORMED):
        return None


def _finite(value: Any) -> float:
    """Return a number from a run's heartbeat file. Raises ValueError or TypeError when it is not a finite number."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def last_rows(path: Path, num_bytes: int = TAIL_BYTES) -> list[Row]:
    """Return the rows in the last `num_bytes` of a metrics file, oldest first.

    Half-written rows are left out, and so are values that are not numbers.
    """
    try:
        with open_record(path, VAST) as file:
            size = file.seek(0, 2)
            file.seek(max(size - num_bytes, 0))
            lines = file.read(num_bytes).splitlines()
    except (OSError, RecordError):
        return []
    rows: list[Row] = []
    for line in lines:
        try:
            row = read_json(line, most_bytes=num_bytes)
        except MALFORMED:
            continue
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append({name: value for name, value in row.items() if _is_finite(value)})
    return rows


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def newest_checkpoint(folder: Path) -> tuple[int | None, float | None]:
    """Return the step and the age in seconds of the newest complete checkpoint, or None for both."""
    found = {}
    for marker in (folder / "checkpoints").glob(f"step_*/{MARKER}"):
        number = marker.parent.name.removeprefix("step_")
        if number.isdecimal():
            found[int(number)] = marker
    if not found:
        return None, None
    step = max(found)
    try:
        return step, time.time() - found[step].stat().st_mtime
    except OSError:
        return step, None


def max_steps(folder: Path) -> int | None:
    """Return the number of steps of a training run, or None when it is unknown.

    It comes from the last job's arguments, else from the settings in the launch folder, else from those that the run
    started with.
    """
    jobs = read_jobs(folder / "launch" / "jobs.jsonl")
    if jobs:
        for argument in reversed(jobs[-1].get("arguments", [])):
            number = argument.removeprefix(MAX_STEPS)
            if number != argument and number.isdecimal():
                return int(number)
    for path in (folder / "launch" / "config.yaml", folder / "config.yaml"):
        try:
            value = setting_of(read_record(path), "trainer.max_steps")
        except RecordError:
            continue
        if isinstance(value, int):
            return value
    return None
