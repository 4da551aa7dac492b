"""Search for a run and its jobs by what a person names: a run folder, or a job's number; live jobs of a run, and the
refusal to start another one beside them.

The state of a run is read off the files of its folder, heartbeat, last steps and checkpoints, while others write them.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brorl_launcher import slurm
from brorl_launcher.frozen import Folders, read_jobs
from brorl_launcher.packages import code_root
from nemo_brorl.core.errors import CheckpointError, ConfigError
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
class RunState:
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


def read_run(folder: Path) -> RunState:
    """Never raises for what is missing or half-written: that is then not known."""
    rows = tuple(last_rows(folder / "metrics.jsonl"))
    saved, age_s = newest_checkpoint(folder)
    last = max_steps(folder)
    reached = max(rows[-1]["step"] if rows else 0, saved or 0)
    if last is not None and reached > last:  # somebody goes on with other settings than those that are written down
        last = None
    return RunState(folder, last, read_heartbeat(folder), rows, saved, age_s)


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


JOBS = "jobs"  # folder of the jobs of slurm/*.sh
SETTINGS = "settings.sh"  # in it, what a job is about
SIGNS = ("config.yaml", "launch", "heartbeat.json", "metrics.jsonl")  # one of them makes a folder a run folder
MAX_ENDED = 3  # jobs that are not in the queue any more, of those that a status shows
FRESH_S = 30.0  # a heartbeat is written every 5 s


@dataclass(frozen=True)
class Target:
    """What is looked at."""

    run: Path | None  # None: a job whose run folder nobody knows
    # newest last; those in the queue, or where there are none the last ones that ended
    jobs: tuple[slurm.Job, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)  # by job
    notes: tuple[str, ...] = ()
    log: Path | None = None  # where it is not below the run folder


def find_target(name: str) -> Target:
    """Raises ConfigError when there is no such run, or job."""
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        if not any((folder / sign).exists() for sign in SIGNS):
            raise ConfigError(f"{name}: is no run folder: it has none of {', '.join(SIGNS)}")
        return _of_run(folder)
    if not re.fullmatch(r"\d+", name):
        raise ConfigError(
            f"{name}: there is no such folder, and a job is a number: write a run folder, or the number that `squeue "
            "--me` shows"
        )
    return _of_job(name)


def _of_run(folder: Path) -> Target:
    ids = job_ids(folder)
    if not ids:
        return Target(folder)
    if not slurm.has_slurm("squeue"):
        note = f"not on this machine: of jobs {', '.join(ids[-MAX_ENDED:])} only the files are seen"
        return Target(folder, notes=(note,))
    try:
        target = _with_jobs(folder, ids)
        if (folder / "logs").is_dir():
            return target
        return replace(target, log=_log_of(ids[-1]))
    except slurm.UnreachableError as error:
        return Target(folder, notes=(str(error),))


def _with_jobs(folder: Path | None, ids: list[str]) -> Target:
    queued = slurm.queued(ids)
    last = ids[-MAX_ENDED:]
    found = queued or slurm.accounted(last)
    jobs = [found[identity] for identity in ids if identity in found]
    restarts = {job.id: restarts_of(job.id) for job in jobs}
    notes = () if jobs else (f"remembers nothing of {', '.join(last)}",)
    return Target(folder, tuple(jobs), restarts, notes)


def _of_job(identity: str) -> Target:
    """Raises ConfigError when nothing is known of the job."""
    if not slurm.has_slurm("scontrol"):
        raise ConfigError(f"{identity}: there is no Slurm on this machine to ask for a job: write its run folder")
    shown = slurm.show_job(identity)
    folder = run_of_script(shown.get("Command", "") or _script_in(slurm.submitted_as(identity)))
    if folder is not None and folder.is_dir():
        return _of_run(folder)
    settings = Path(shown.get("WorkDir", "")) / JOBS / identity / SETTINGS
    target = _with_jobs(_run_in_settings(settings), [identity])
    if not target.jobs:
        raise ConfigError(
            f"{identity}: Slurm does not know this job (any more), so write its run folder; `squeue --me` lists your "
            "jobs"
        )
    return replace(target, log=_log_of(identity))


def _log_of(identity: str) -> Path | None:
    """Where Slurm writes what a job says."""
    log = Path(slurm.show_job(identity).get("StdOut", ""))
    return log if log.is_file() else None


def job_ids(run: Path) -> list[str]:
    """All jobs that are known to train, or to have trained, in a run folder; oldest first."""
    return sorted({*Folders(run).job_ids(), *_noted_jobs(run)}, key=int)


def _noted_jobs(run: Path) -> list[str]:
    """Jobs of slurm/*.sh that were submitted from this folder, or from the checkout, and train in this run folder."""
    ids = []
    for root in {Path.cwd(), code_root()}:
        for path in (root / JOBS).glob(f"*/{SETTINGS}"):
            identity = path.parent.name
            if identity.isdigit() and _run_in_settings(path) == run:
                ids.append(identity)
    return ids


def _run_in_settings(path: Path) -> Path | None:
    """The run folder that a job of slurm/*.sh has noted, once it has read its settings (job/settings.py)."""
    if not path.is_file():
        return None
    for word in shlex.split(path.read_text(encoding="utf-8")):
        name, _, value = word.partition("=")
        if name == "run_folder":
            return Path(value)
    return None


def run_of_script(command: str) -> Path | None:
    """The run folder that a launch's job.sbatch lies in; `command` may go on with its arguments."""
    match = re.match(r"(/.*)/launch(_\d+)?/job\.sbatch(\s|$)", command)
    return Path(match[1]) if match else None


def _script_in(command: str) -> str:
    """The script among the words of a command line of sbatch."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    scripts = [word for word in words if run_of_script(word) is not None]
    return scripts[0] if scripts else ""


def restarts_of(identity: str) -> int:
    """How many times Slurm has put a job back into its queue, as far as it remembers."""
    number = slurm.show_job(identity).get("Restarts", "0")
    return int(number) if number.isdigit() else 0


def newest_log(target: Target) -> Path | None:
    """The log of the job that runs, or else of the last one."""
    if target.log is not None or target.run is None:
        return target.log
    running = [job.id for job in target.jobs if job.is_running]
    folder = target.run / "logs"
    known = [folder / f"slurm-{identity}.log" for identity in running]
    logs = [path for path in known if path.is_file()]
    if not logs:
        logs = list(folder.glob("slurm-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def live_jobs(folders: Folders) -> list[slurm.Job]:
    """Jobs of this run that wait or run, oldest first; none where there is no Slurm. Raises ResourceError when it does
    not answer."""
    ids = job_ids(folders.run)
    if not ids or not slurm.has_slurm("squeue"):
        return []
    queued = slurm.queued(ids)
    return [queued[identity] for identity in ids if identity in queued]


def refuse_live(folders: Folders) -> None:
    """Raise CheckpointError when a job of this run is in the queue, or something writes its heartbeat."""
    live = live_jobs(folders)
    if live:
        listed = ", ".join(f"{job.id} ({job.state})" for job in live)
        raise CheckpointError(
            f"run folder {folders.run} has a job in the queue already: {listed}. Wait for it, or end it with"
            f" `scancel {' '.join(job.id for job in live)}`; `brorl status {folders.run}` shows how far it is"
        )
    heartbeat = read_heartbeat(folders.run)
    if heartbeat is not None and heartbeat.state != "ended" and (age := time.time() - heartbeat.written_at) < FRESH_S:
        raise CheckpointError(
            f"run folder {folders.run} is in use: its heartbeat.json was written {max(age, 0.0):.0f} s ago, at stage "
            f"{heartbeat.stage}. End that run first, or choose another exp_manager.explicit_log_dir"
        )
