"""Name the paths of a launch in a run folder, and record the jobs that were submitted from it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import LARGE, SMALL, read_json, record_lines

from nemo_brorl.core.files import MALFORMED

PRIVATE = 0o700  # mode of a launch folder


@dataclass(frozen=True)
class Folders:
    """Paths of a run's launch."""

    run: Path  # absolute path

    @property
    def launch(self) -> Path:
        return self.run / "launch"

    @property
    def config(self) -> Path:
        return self.launch / "config.yaml"

    @property
    def code(self) -> Path:
        return self.launch / "code"

    @property
    def script(self) -> Path:
        return self.launch / "job.sbatch"

    @property
    def jobs(self) -> Path:
        return self.launch / "jobs.jsonl"

    def all_launches(self) -> list[Path]:
        """Return the run's launch folders (settings, code and job script), oldest first, the current one last."""
        earlier = [path for path in self.run.glob("launch_*") if path.name.removeprefix("launch_").isdecimal()]
        earlier.sort(key=lambda path: int(path.name.removeprefix("launch_")))
        if self.launch.is_dir():
            earlier.append(self.launch)
        return earlier

    def job_ids(self) -> list[str]:
        """Return the numbers of all jobs that were submitted for this run, oldest first."""
        ids = []
        for launch in self.all_launches():
            ids += [row["job"] for row in read_jobs(launch / "jobs.jsonl")]
        return ids


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """Return the submitted jobs in a `jobs.jsonl` file, oldest first, without half-written and damaged rows."""
    rows: list[dict[str, Any]] = []
    try:
        lines = list(record_lines(path, LARGE))
    except OSError:  # missing, or another user's
        return rows
    for line in lines:
        try:
            row = read_json(line, most_bytes=SMALL)
        except MALFORMED:
            continue
        if _is_job(row):
            rows.append(row)
    return rows


def _is_job(row: Any) -> bool:
    """Return whether a row has a number of a job, which Slurm's commands get as an argument, and its arguments."""
    if not isinstance(row, dict) or not isinstance(row.get("job"), str):
        return False
    if not re.fullmatch("[0-9]{1,18}", row["job"]):
        return False
    arguments = row.get("arguments", [])
    return isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)


def record_job(
    folders: Folders,
    job: str,
    after: str | None,
    arguments: Sequence[str],
) -> None:
    """Append a submitted Slurm job to `jobs.jsonl` in the launch folder of a run.

    `after` is the job that this job waits for, and `arguments` are those of its job script.
    """
    row = {
        "job": job,
        "submitted_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "after": after,
        "arguments": list(arguments),
    }
    with folders.jobs.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
