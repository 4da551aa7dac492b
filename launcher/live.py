"""Live jobs of a run, which wait or run, and the refusal to start another one beside them."""

from __future__ import annotations

import time

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.launcher import slurm
from nemo_brorl.launcher.find_run import job_ids
from nemo_brorl.launcher.frozen import Folders
from nemo_brorl.launcher.run_state import read_heartbeat

FRESH_S = 30.0  # a heartbeat is written every 5 s


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
