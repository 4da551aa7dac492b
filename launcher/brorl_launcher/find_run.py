"""Find a run and its jobs by a run folder or a job number, and refuse a second job while one is alive."""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from brorl_launcher import slurm
from brorl_launcher.launch_folder import Folders
from brorl_launcher.packages import code_root
from brorl_launcher.run_state import read_heartbeat
from nemo_brorl.core.errors import CheckpointError, ConfigError
from nemo_brorl.core.run_folders import run_folder

JOBS = "jobs"  # folder that holds one folder for each job of slurm/*.sh
SETTINGS = "settings.sh"  # file in a job's folder with its settings
MAX_ENDED = 3  # ended jobs that a status shows
FRESH_S = 30.0  # the driver writes its heartbeat every 5 s


@dataclass(frozen=True)
class Target:
    """A run folder and its Slurm jobs, as `status` and `attach` show them."""

    run: Path | None  # None: a job whose run folder is unknown
    # the queued and running jobs, or without any the last ones that ended; newest last
    jobs: tuple[slurm.SlurmJob, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)  # number of restarts by job
    notes: tuple[str, ...] = ()
    log: Path | None = None  # path of a log outside the run folder


def find_target(name: str) -> Target:
    """Return a training run and its Slurm jobs by `name`, which is a run folder or a job number.

    Raises ConfigError when there is no such run or job.
    """
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        return _target_of_run(run_folder(name).absolute())
    if not re.fullmatch(r"\d+", name):
        raise ConfigError(
            f"{name}: there is no such run folder, and a job is a number. Pass a run folder, or the number that "
            "`squeue --me` shows."
        )
    return _target_of_job(name)


def _target_of_run(folder: Path) -> Target:
    ids = job_ids(folder)
    if not ids:
        note = "its jobs are not shown: only the user who launched them may read launch/"
        return Target(folder, notes=(note,) if hidden_launches(Folders(folder)) else ())
    if not slurm.has_slurm("squeue"):
        note = f"not on this machine: of jobs {', '.join(ids[-MAX_ENDED:])} only files are shown"
        return Target(folder, notes=(note,))
    try:
        target = _with_jobs(folder, ids)
        if (folder / "logs").is_dir():
            return target
        return replace(target, log=_log_of(ids[-1]))
    except slurm.UnreachableError as error:
        return Target(folder, notes=(str(error),))


def _with_jobs(folder: Path | None, ids: list[str]) -> Target:
    queued = slurm.queued_jobs(ids)
    last = ids[-MAX_ENDED:]
    found = queued or slurm.ended_jobs(last)
    jobs = [found[identity] for identity in ids if identity in found]
    restarts = {job.id: restarts_of(job.id) for job in jobs}
    notes = () if jobs else (f"has no record of {', '.join(last)}",)
    return Target(folder, tuple(jobs), restarts, notes)


def _target_of_job(identity: str) -> Target:
    """Return the training run that a Slurm job number belongs to, with the run's jobs.

    Raises ConfigError when this machine has no Slurm, or when Slurm has no record of the job.
    """
    if not slurm.has_slurm("scontrol"):
        raise ConfigError(f"{identity}: there is no Slurm on this machine. Pass the run folder of the job.")
    shown = slurm.show_job(identity)
    folder = run_of_script(shown.get("Command", "") or _script_in(slurm.submit_command_line(identity)))
    if folder is not None and folder.is_dir():
        return _target_of_run(folder)
    settings = Path(shown.get("WorkDir", "")) / JOBS / identity / SETTINGS
    target = _with_jobs(_run_in_settings(settings), [identity])
    if not target.jobs:
        raise ConfigError(
            f"{identity}: Slurm has no record of this job. Pass its run folder. `squeue --me` lists your jobs."
        )
    return replace(target, log=_log_of(identity))


def _log_of(identity: str) -> Path | None:
    """Return the file that Slurm writes a job's output to, or None when there is none."""
    log = Path(slurm.show_job(identity).get("StdOut", ""))
    return log if log.is_file() else None


def job_ids(run: Path) -> list[str]:
    """Return the numbers of all jobs known to train, or to have trained, in a run folder, oldest first."""
    return sorted({*Folders(run).job_ids(), *_noted_jobs(run)}, key=int)


def _noted_jobs(run: Path) -> list[str]:
    """Return the numbers of the jobs that were submitted with slurm/*.sh and train in this run folder.

    They are found if they were submitted from the current folder or from the checkout.
    """
    ids = []
    for root in {Path.cwd(), code_root()}:
        for path in (root / JOBS).glob(f"*/{SETTINGS}"):
            identity = path.parent.name
            if identity.isdecimal() and _run_in_settings(path) == run:
                ids.append(identity)
    return ids


def _run_in_settings(path: Path) -> Path | None:
    """Return the run folder in a file of shell variables that a job of slurm/*.sh wrote (job/settings.py), or None."""
    if not path.is_file():
        return None
    for word in shlex.split(path.read_text(encoding="utf-8")):
        name, _, value = word.partition("=")
        if name == "run_folder":
            return Path(value)
    return None


def run_of_script(command: str) -> Path | None:
    """Return the run folder whose launch/job.sbatch is this script, or None for another script.

    `command` is the script's path, possibly followed by its arguments.
    """
    match = re.match(r"(/.*)/launch(_\d+)?/job\.sbatch(\s|$)", command)
    return Path(match[1]) if match else None


def _script_in(command: str) -> str:
    """Return the path of a run's launch/job.sbatch in an `sbatch` command line, or an empty text without one."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    scripts = [word for word in words if run_of_script(word) is not None]
    return scripts[0] if scripts else ""


def restarts_of(identity: str) -> int:
    """Return how many times Slurm requeued a job, or 0 when Slurm has no record of it."""
    number = slurm.show_job(identity).get("Restarts", "0")
    return int(number) if number.isdecimal() else 0


def newest_log(target: Target) -> Path | None:
    """Return the log of the run's running Slurm job, else the run's newest log, or None when the run has no log."""
    if target.log is not None or target.run is None:
        return target.log
    running = [job.id for job in target.jobs if job.is_running]
    folder = target.run / "logs"
    known = [folder / f"slurm-{identity}.log" for identity in running]
    logs = [path for path in known if path.is_file()]
    if not logs:
        logs = list(folder.glob("slurm-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def hidden_launches(folders: Folders) -> list[Path]:
    """Return the launch folders of a run that this user may not enter, because another user launched it."""
    return [launch for launch in folders.all_launches() if not os.access(launch, os.R_OK | os.X_OK)]


def live_jobs(folders: Folders) -> list[slurm.SlurmJob]:
    """Return the queued and running jobs of a run, oldest first.

    The list is empty without Slurm. Raises ResourceError when Slurm does not answer.
    """
    ids = job_ids(folders.run)
    if not ids or not slurm.has_slurm("squeue"):
        return []
    queued = slurm.queued_jobs(ids)
    return [queued[identity] for identity in ids if identity in queued]


def refuse_live(folders: Folders) -> None:
    """Raise CheckpointError when a Slurm job of this run is queued or running, or when the run's heartbeat is fresh.

    The training driver writes the heartbeat file, so a fresh one shows that the run folder is in use. Another user's
    run is refused, too: its jobs cannot be known.
    """
    if hidden := hidden_launches(folders):
        raise CheckpointError(
            f"{hidden[0]} may be read only by the user who launched this run: let that user go on with it, or choose "
            "another exp_manager.explicit_log_dir"
        )
    live = live_jobs(folders)
    if live:
        listed = ", ".join(f"{job.id} ({job.state})" for job in live)
        raise CheckpointError(
            f"run folder {folders.run} has a job in the queue already: {listed}. Wait for it, or end it with"
            f" `scancel {' '.join(job.id for job in live)}`; `brorl status {folders.run}` shows how far it is"
        )
    heartbeat = read_heartbeat(folders.run)
    now = time.time()
    if heartbeat is not None and heartbeat.state != "ended" and heartbeat.is_fresh(now, FRESH_S):
        age = max(now - heartbeat.written_at, 0.0)
        raise CheckpointError(
            f"run folder {folders.run} is in use: its heartbeat.json was written {age:.0f} s ago, at stage "
            f"{heartbeat.stage}. End that run first, or choose another exp_manager.explicit_log_dir"
        )
