"""From what a person names, a run folder or a job's number, to the run and its jobs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.launcher import slurm
from nemo_brorl.launcher.code_snapshot import code_root
from nemo_brorl.launcher.frozen import Folders

JOBS, SETTINGS = "jobs", "settings.sh"  # where a job of slurm/*.sh notes what it is about
SIGNS = ("config.yaml", "launch", "heartbeat.json", "metrics.jsonl")  # one of them makes a folder a run folder
MAX_ENDED = 3  # jobs that are not in the queue any more, of those that a status shows


@dataclass(frozen=True)
class Target:
    """What is looked at."""

    run: Path | None  # None: a job whose run folder nobody knows
    jobs: tuple[
        slurm.Job, ...
    ] = ()  # newest last; those in the queue, or where there are none the last ones that ended
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
            f"--me` shows"
        )
    return _of_job(name)


def _of_run(folder: Path) -> Target:
    ids = job_ids(folder)
    if not ids:
        return Target(folder)
    if not slurm.has_slurm("squeue"):
        return Target(
            folder, notes=(f"not on this machine: of jobs {', '.join(ids[-MAX_ENDED:])} only the files are seen",)
        )
    try:
        target = _with_jobs(folder, ids)
        return target if (folder / "logs").is_dir() else replace(target, log=_log_of(ids[-1]))
    except slurm.UnreachableError as error:
        return Target(folder, notes=(str(error),))


def _with_jobs(folder: Path | None, ids: list[str]) -> Target:
    queued = slurm.queued(ids)
    last = ids[-MAX_ENDED:]
    found = queued or slurm.accounted(last)
    jobs = tuple(found[identity] for identity in ids if identity in found)
    notes = () if jobs else (f"remembers nothing of {', '.join(last)}",)
    return Target(folder, jobs, {job.id: restarts_of(job.id) for job in jobs}, notes)


def _of_job(identity: str) -> Target:
    """Raises ConfigError when nothing is known of the job."""
    if not slurm.has_slurm("scontrol"):
        raise ConfigError(f"{identity}: there is no Slurm on this machine to ask for a job: write its run folder")
    shown = slurm.show_job(identity)
    folder = run_of_script(shown.get("Command", "") or _script_in(slurm.submitted_as(identity)))
    if folder is not None and folder.is_dir():
        return _of_run(folder)
    target = _with_jobs(_run_in_settings(Path(shown.get("WorkDir", "")) / JOBS / identity / SETTINGS), [identity])
    if not target.jobs:
        raise ConfigError(
            f"{identity}: Slurm does not know this job (any more), so write its run folder; `squeue --me` lists your "
            f"jobs"
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
    roots = {Path.cwd(), code_root()}
    noted = [path for root in roots for path in (root / JOBS).glob(f"*/{SETTINGS}") if path.parent.name.isdigit()]
    return [path.parent.name for path in noted if _run_in_settings(path) == run]


def _run_in_settings(path: Path) -> Path | None:
    """The run folder that a job of slurm/*.sh has noted, once it has read its settings (launcher/job/settings.py)."""
    if not path.is_file():
        return None
    words = shlex.split(path.read_text(encoding="utf-8"))
    found = [word.removeprefix("run_folder=") for word in words if word.startswith("run_folder=")]
    return Path(found[0]) if found else None


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
    return next((word for word in words if run_of_script(word) is not None), "")


def restarts_of(identity: str) -> int:
    """How many times Slurm has put a job back into its queue, as far as it remembers."""
    number = slurm.show_job(identity).get("Restarts", "0")
    return int(number) if number.isdigit() else 0


def newest_log(target: Target) -> Path | None:
    """The log of the job that runs, or else of the last one."""
    if target.log is not None or target.run is None:
        return target.log
    running = [job.id for job in target.jobs if job.is_running]
    known = [target.run / "logs" / f"slurm-{identity}.log" for identity in running]
    logs = [path for path in known if path.is_file()] or list((target.run / "logs").glob("slurm-*.log"))
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)
