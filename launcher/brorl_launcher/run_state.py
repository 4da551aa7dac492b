"""State of a run, read off the files of its folder, heartbeat, last steps and checkpoints, while others write them."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_launcher.launch_folder import read_jobs
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.recorded_yaml import RecordError, read_record, setting_of
from nemo_brorl.core.step_time import step_seconds

TAIL_BYTES = 1 << 20  # of metrics.jsonl; a row is a few KiB
PACE_STEPS = 10  # over so many last steps a step's time is averaged, validations and checkpoints included
SHOWN_PARTS = ("generate", "reward", "log_prob", "update", "sync", "validate", "save")
MAX_STEPS = "trainer.max_steps="
MARKER = "COMPLETE"  # in a checkpoint's folder, written last

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HeartbeatFile:
    """`heartbeat.json`, as `nemo_brorl.core.stall_watch` writes it."""

    state: str  # running, stalled; ended, or failed with an error
    stage: str
    detail: str
    stage_s: float
    silent_s: float
    written_at: float  # seconds since 1970, of the driver's clock
    late: tuple[str, ...]


@dataclass(frozen=True)
class RunStatus:
    """A run folder at one moment."""

    folder: Path
    max_steps: int | None  # None: no settings there yet
    heartbeat: HeartbeatFile | None
    rows: tuple[Row, ...]  # of the last steps, oldest first
    checkpoint: int | None  # step of the newest complete one
    checkpoint_age_s: float | None

    @property
    def step(self) -> int | None:
        return int(self.rows[-1]["step"]) if self.rows else None

    @property
    def is_finished(self) -> bool:
        """Whether the last step has its checkpoint."""
        return self.max_steps is not None and self.checkpoint is not None and self.checkpoint >= self.max_steps

    @property
    def step_s(self) -> float | None:
        """Mean seconds of the last steps, as far as their stages were timed."""
        times = [step_seconds(row) for row in self.rows[-PACE_STEPS:] if row["step"] > 0]
        return statistics.fmean(times) if times else None

    @property
    def remaining_s(self) -> float | None:
        """Until the last step, at this pace."""
        if self.step_s is None or self.step is None or self.max_steps is None:
            return None
        return max(self.max_steps - self.step, 0) * self.step_s


def read_run(folder: Path) -> RunStatus:
    """Never raises for what is missing or half-written: that is then not known."""
    rows = tuple(last_rows(folder / "metrics.jsonl"))
    saved, age_s = newest_checkpoint(folder)
    last = max_steps(folder)
    reached = max(rows[-1]["step"] if rows else 0, saved or 0)
    if last is not None and reached > last:  # somebody goes on with other settings than those that are written down
        last = None
    return RunStatus(folder, last, read_heartbeat(folder), rows, saved, age_s)


def read_heartbeat(folder: Path) -> HeartbeatFile | None:
    """None where there is none, or a damaged one."""
    try:
        row = json.loads((folder / "heartbeat.json").read_text(encoding="utf-8"))
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
    """A number of a heartbeat. Raises ValueError or TypeError for what is none."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def last_rows(path: Path, num_bytes: int = TAIL_BYTES) -> list[Row]:
    """Rows within the last bytes of a metrics file, oldest first; halves of rows and values that are no numbers are
    left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - num_bytes, 0))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows: list[Row] = []
    for line in lines:
        try:
            row = json.loads(line)
        except MALFORMED:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append({name: value for name, value in row.items() if isinstance(value, int | float)})
    return rows


def newest_checkpoint(folder: Path) -> tuple[int | None, float | None]:
    """Step and age in seconds of the newest complete checkpoint."""
    found = {}
    for marker in (folder / "checkpoints").glob(f"step_*/{MARKER}"):
        number = marker.parent.name.removeprefix("step_")
        if number.isdigit():
            found[int(number)] = marker
    if not found:
        return None, None
    step = max(found)
    try:
        return step, time.time() - found[step].stat().st_mtime
    except OSError:
        return step, None


def max_steps(folder: Path) -> int | None:
    """What the last job was told, the launch's settings, or those that the run was begun with."""
    jobs = read_jobs(folder / "launch" / "jobs.jsonl")
    if jobs:
        for argument in reversed(jobs[-1].get("arguments", [])):
            number = argument.removeprefix(MAX_STEPS)
            if number != argument and number.isdigit():
                return int(number)
    for path in (folder / "launch" / "config.yaml", folder / "config.yaml"):
        try:
            value = setting_of(read_record(path), "trainer.max_steps")
        except RecordError:
            continue
        if isinstance(value, int):
            return value
    return None
