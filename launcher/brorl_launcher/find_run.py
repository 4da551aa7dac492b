"""Search for a run and its jobs by what a person names: a run folder, or a job's number; live jobs of a run, and the
refusal to start another one beside them.
"""

from __future__ import annotations

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
    jobs: tuple[slurm.SlurmJob, ...] = ()
    restarts: dict[str, int] = field(default_factory=dict)  # by job
    notes: tuple[str, ...] = ()
    log: Path | None = None  # where it is not below the run folder


def find_target(name: str) -> Target:
    """Raises ConfigError when there is no such run, or job."""
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        if not any((folder / sign).exists() for sign in SIGNS):
            raise ConfigError(f"{name}: is no run folder: it has none of {', '.join(SIGNS)}")
        return _target_of_run(folder)
    if not re.fullmatch(r"\d+", name):
        raise ConfigError(
            f"{name}: there is no such folder, and a job is a number: write a run folder, or the number that `squeue "
            "--me` shows"
        )
    return _target_of_job(name)


def _target_of_run(folder: Path) -> Target:
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
    queued = slurm.queued_jobs(ids)
    last = ids[-MAX_ENDED:]
    found = queued or slurm.ended_jobs(last)
    jobs = [found[identity] for identity in ids if identity in found]
    restarts = {job.id: restarts_of(job.id) for job in jobs}
    notes = () if jobs else (f"remembers nothing of {', '.join(last)}",)
    return Target(folder, tuple(jobs), restarts, notes)


def _target_of_job(identity: str) -> Target:
    """Raises ConfigError when nothing is known of the job."""
    if not slurm.has_slurm("scontrol"):
        raise ConfigError(f"{identity}: there is no Slurm on this machine to ask for a job: write its run folder")
    shown = slurm.show_job(identity)
    folder = run_of_script(shown.get("Command", "") or _script_in(slurm.submit_command_line(identity)))
    if folder is not None and folder.is_dir():
        return _target_of_run(folder)
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


def live_jobs(folders: Folders) -> list[slurm.SlurmJob]:
    """Jobs of this run that wait or run, oldest first; none where there is no Slurm. Raises ResourceError when it does
    not answer."""
    ids = job_ids(folders.run)
    if not ids or not slurm.has_slurm("squeue"):
        return []
    queued = slurm.queued_jobs(ids)
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
