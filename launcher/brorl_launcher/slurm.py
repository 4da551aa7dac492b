"""Run Slurm's commands: query the queue and ended jobs, and submit jobs. No other module runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_brorl.core.errors import ResourceError

TIMEOUT_S = 60.0  # a busy controller answers late; a stopped one is reported at once
# id, state, elapsed, limit, start, node count, node names, reason (any text)
QUEUE_FIELDS = "%i|%T|%M|%l|%S|%D|%N|%r"
UNREACHABLE = re.compile(
    r"Could not establish a configuration|Unable to contact slurm controller|Unable to establish controller",
    re.IGNORECASE,
)
ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
    "REVOKED",
)


class UnreachableError(ResourceError):
    """Slurm's commands exist on this machine, but its controller does not answer."""


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm's queue or accounting reports it."""

    id: str
    state: str  # Slurm's name: PENDING, RUNNING, COMPLETING, …
    elapsed: str = ""  # D-HH:MM:SS
    limit: str = ""
    start: str = ""  # actual or expected start
    num_nodes: str = ""
    nodes: str = ""  # node[0-7]; "" while it is pending
    reason: str = ""  # Slurm's reason for the state

    @property
    def has_ended(self) -> bool:
        return self.state.split(" ")[0] in ENDED

    @property
    def is_running(self) -> bool:
        return self.state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")


def has_slurm(command: str = "sbatch") -> bool:
    """Return whether this machine has a Slurm command, by default `sbatch`."""
    return shutil.which(command) is not None


def _call(
    command: Sequence[str], stdin: str | None = None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands and return its result.

    Raises ResourceError when the command does not exist, UnreachableError when Slurm does not answer.
    """
    try:
        result = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            env=_environment() | dict(variables or {}),
        )
    except FileNotFoundError as error:
        raise ResourceError(
            f"{command[0]} is not there: this needs a machine that submits to Slurm, a login node for example"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(
            f"{command[0]} did not answer within {TIMEOUT_S:.0f} s: is Slurm's controller up? `scontrol ping` tells"
        ) from error
    if result.returncode and UNREACHABLE.search(result.stderr):
        raise UnreachableError(
            f"{command[0]}: {result.stderr.strip().splitlines()[-1]}: is this a machine that submits to Slurm?"
        )
    return result


def _environment() -> dict[str, str]:
    """Return the environment variables for Slurm's commands, without those for the user's own output formats.

    SBATCH_ variables stay, because many users name their account there.
    """
    prefixes = ("SQUEUE_", "SINFO_", "SACCT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def test_only(script: str) -> str:
    """Return Slurm's estimate of when and where a job script would start, without submitting it.

    Raises ResourceError with Slurm's message when it would refuse the job.
    """
    result = _call(["sbatch", "--test-only"], stdin=script)
    said = result.stderr.strip() or result.stdout.strip()
    said = "\n".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines())
    if result.returncode:
        raise ResourceError(
            f"Slurm would not take this job: {said or result.returncode}. `sinfo -s` lists partitions with their "
            "limits; `--no-test` writes the job without asking"
        )
    return said


def submit(
    script: Path,
    after: str | None,
    arguments: Sequence[str],
    variables: Mapping[str, str],
) -> str:
    """Submit a job script to Slurm, and return the id of the new job.

    With `after`, the job starts after the job of that id has ended in any way. `variables` are added to the environment
    of the new job. Raises ResourceError when Slurm refuses it.
    """
    dependency = [] if after is None else [f"--dependency=afterany:{after}"]
    result = _call(["sbatch", "--parsable", *dependency, str(script), *arguments], variables=variables)
    identity = result.stdout.strip().partition(";")[0]
    if result.returncode or not identity:
        raise ResourceError(
            f"sbatch refused {script}: {result.stderr.strip() or result.stdout.strip() or result.returncode}"
        )
    return identity


def queued_jobs(ids: Sequence[str]) -> dict[str, SlurmJob]:
    """Return those of the given jobs that are queued or running, by id.

    Raises ResourceError when Slurm does not answer.
    """
    if not ids:
        return {}
    result = _call(["squeue", "--noheader", f"--format={QUEUE_FIELDS}", f"--jobs={','.join(ids)}"])
    if result.returncode and "Invalid job id" in result.stderr:  # Slurm's error when it has no record of any
        return {}
    if result.returncode:
        raise ResourceError(f"squeue: {result.stderr.strip() or result.returncode}")
    jobs = [SlurmJob(*line.strip().split("|", 7)) for line in result.stdout.splitlines() if line.count("|") >= 7]
    return {job.id: job for job in jobs if not job.has_ended}


def ended_jobs(ids: Sequence[str]) -> dict[str, SlurmJob]:
    """Return Slurm's records of the given jobs by id, from its controller or else from its accounting.

    Jobs without a record are left out.
    """
    found = {}
    for identity in ids:
        job = _remembered(identity)
        if job is not None:
            found[identity] = job
    rest = [identity for identity in ids if identity not in found]
    if not rest or not has_slurm("sacct"):
        return found
    fields = "JobID,State,Elapsed,Timelimit,Start,NNodes,NodeList,ExitCode"
    result = _call(["sacct", "-X", "--noheader", "--parsable2", f"--format={fields}", f"--jobs={','.join(rest)}"])
    jobs = [SlurmJob(*line.split("|", 7)) for line in result.stdout.splitlines() if line.count("|") >= 7]
    return found | {job.id: job for job in jobs}


def _remembered(identity: str) -> SlurmJob | None:
    shown = show_job(identity)
    if not shown:
        return None
    return SlurmJob(
        identity,
        state=shown.get("JobState", ""),
        elapsed=shown.get("RunTime", ""),
        limit=shown.get("TimeLimit", ""),
        start=shown.get("StartTime", ""),
        num_nodes=shown.get("NumNodes", ""),
        nodes=shown.get("NodeList", ""),
        reason=f"exit code {shown.get('ExitCode', '')}, {shown.get('Reason', '')}",
    )


def show_job(identity: str) -> dict[str, str]:
    """Return the fields of `scontrol show job`, empty when Slurm has no record of the job or there is no Slurm."""
    if not has_slurm("scontrol"):
        return {}
    result = _call(["scontrol", "--oneliner", "show", "job", identity])
    if result.returncode:
        return {}
    fields = {}
    for field in re.split(r"\s+(?=[A-Za-z][\w:/]*=)", result.stdout.strip()):  # values may contain spaces
        name, equals, value = field.partition("=")
        if equals:
            fields[name] = value
    return fields


def submit_command_line(identity: str) -> str:
    """Return the command line that submitted a job, from Slurm's accounting, or an empty text."""
    if not has_slurm("sacct"):
        return ""
    return _call(
        ["sacct", "-X", "--noheader", "--parsable2", "--format=SubmitLine", f"--jobs={identity}"]
    ).stdout.strip()


def partition_names() -> list[str]:
    """Return the names of this cluster's partitions, empty when Slurm cannot be queried."""
    if not has_slurm("sinfo"):
        return []
    result = _call(["sinfo", "--noheader", "--format=%R"])
    return sorted(set(result.stdout.split())) if result.returncode == 0 else []


def node_names(nodes: str) -> list[str]:
    """Return the single node names in a Slurm node list such as `node[0-3]`, in Slurm's order.

    Raises ResourceError when Slurm finds no names in the list.
    """
    result = _call(["scontrol", "show", "hostnames", nodes])
    if result.returncode or not result.stdout.split():
        raise ResourceError(f"scontrol show hostnames {nodes}: {result.stderr.strip() or 'no names'}")
    return result.stdout.split()
