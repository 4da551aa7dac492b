"""Strikes against a node of a job that trains: seen to be in a stage, the job loses the node there.

A stage that is too short to be seen is made to last by what goes wrong on machines: a process of the node stands still
(SIGSTOP), its disk is slow, a verifier does not answer; or by the driver (`watched_driver.py`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.campaign import machine
from tests.cluster.slurm_cluster import Job

LOOK_S = 0.03
LATER_S = 1.0  # after the strike, when its stage is looked at again
SLOW_DISK_S = 3.0  # for each fsync and rename
STEPS = ("driver", "watch", "workers", "head", "doctor", "settings")  # of the job, the last one first
MACHINE = "machine"  # in /tmp of every node: its disk
WORKER, HEAD = 1, 0
NOBODY = "nobody"

Act = Callable[["Scene", str], None]


@dataclass
class Scene:
    """A job in one of its tries."""

    job: Job
    try_number: int
    began: float = 0.0  # time.time() when the try was first seen

    @property
    def run(self) -> Path:
        return self.job.folder / "run"

    @property
    def hold(self) -> Path:
        return self.job.folder / "hold"

    @property
    def has_begun(self) -> bool:
        is_there = f", try {self.try_number}, on" in self.job.log
        if is_there and not self.began:
            self.began = time.time()
        return is_there

    @property
    def has_ended(self) -> bool:
        return "all steps have ended" in self.job.log.rpartition(f", try {self.try_number}, on")[2]

    @property
    def num_rows(self) -> int:
        """Rows of metrics that are written."""
        path = self.run / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    @property
    def stage(self) -> str:
        """Where the driver says that it is; before it says so, the newest step of the job."""
        if not self.has_begun:
            return ""
        heartbeat = self.heartbeat()
        if heartbeat:
            return heartbeat["stage"]
        logs = self.job.folder / "job" / "logs" / f"try_{self.try_number}"
        return next((step for step in STEPS if (logs / f"{step}.log").exists()), "")

    def heartbeat(self) -> dict[str, str]:
        """Of this try; empty before it has any."""
        path = self.run / "heartbeat.json"
        if not path.exists():
            return {}
        found = json.loads(path.read_text())
        return found if found["written_at"] >= self.began and found["state"] != "ended" else {}


@dataclass(frozen=True)
class Strike:
    """A node of a job loses its power in a stage of its life."""

    stage: str  # as `Scene.stage` says it
    rows: int = 0  # of metrics that are written by then
    node: int = WORKER  # of those that the job has
    before: str = ""  # the stage in which it is made to last
    lengthen: Act | None = None
    is_there: Callable[[Scene], bool] | None = None  # what else shows that the stage has come
    named_s: float = (
        150.0  # until the job has named the node: docs/howto/cluster.md says 75 of a machine with nothing else to do
    )


@dataclass
class Struck:
    """What was done to a job."""

    try_number: int
    node: str
    during: str = NOBODY
    later: str = ""  # the stage a moment after it
    at: float = 0.0  # time.monotonic()
    log_before: int = 0  # characters of the job's log by then
    named_s: float | None = None  # from the strike until the job's log names the node


def stop_engine(scene: Scene, node: str) -> None:
    """The node's engine will not start, or take new weights."""
    scene.job.cluster.stop_process(node, "RolloutEngine")


def slow_disk(scene: Scene, node: str) -> None:
    """The node's part of a checkpoint will take long."""
    disk = scene.job.cluster.folder / "nodes" / node / "tmp" / MACHINE
    machine.write_settings(disk, disk_s=SLOW_DISK_S)


def hold_verifier(scene: Scene, node: str) -> None:
    """Verifiers do not answer."""
    (scene.hold / "calls").unlink(missing_ok=True)
    (scene.hold / "hold").touch()


def has_begun(scene: Scene) -> bool:
    """Whether the try has begun."""
    return scene.has_begun


def is_scoring(scene: Scene) -> bool:
    """Whether a verifier was called that does not answer."""
    return (scene.hold / "hold").exists() and (scene.hold / "calls").exists()


def is_saving(scene: Scene) -> bool:
    """Whether a checkpoint is being written."""
    return any((scene.run / "checkpoints").glob("step_*.partial"))


STRIKES = {
    "settings": Strike("settings"),
    "doctor": Strike("doctor", named_s=240.0),
    "ray": Strike("watch"),
    "policy start": Strike("policy start"),
    "engines start": Strike("engines start", before="policy start", lengthen=stop_engine),
    "first validation": Strike("validate", before="engines start", lengthen=hold_verifier, is_there=is_scoring),
    "resume": Strike("policy load", rows=1),
    "sampling": Strike("generate", rows=1),
    "scoring": Strike("generate", rows=1, before="generate", lengthen=hold_verifier, is_there=is_scoring),
    "update": Strike("policy update", rows=1),
    "publish": Strike("publish", rows=1, before="policy update", lengthen=stop_engine),
    "checkpoint": Strike("", rows=3, before="policy update", lengthen=slow_disk, is_there=is_saving),
    "validation": Strike("validate", rows=2),
    "export": Strike("policy export", rows=2),
    "head: doctor": Strike("doctor", node=HEAD),
    "head: ray": Strike("watch", node=HEAD),
    "head: sampling": Strike("generate", rows=1, node=HEAD),
    "head: checkpoint": Strike("", rows=3, node=HEAD, before="policy update", lengthen=slow_disk, is_there=is_saving),
}


def strike(scene: Scene, strike: Strike, seconds: float) -> Struck:
    """Wait for a stage, at most so long, and power off the node. Nobody is struck where the try ends before."""
    wait_until(lambda: scene.has_begun, seconds)
    struck = Struck(scene.try_number, scene.job.nodes[strike.node])
    if strike.lengthen is not None:
        wait_until(lambda: has_come(scene, strike.before, strike.rows) or scene.has_ended, seconds)
        strike.lengthen(scene, struck.node)
    is_there = strike.is_there or has_begun
    wait_until(lambda: (has_come(scene, strike.stage, strike.rows) and is_there(scene)) or scene.has_ended, seconds)
    if not scene.has_ended:
        struck.during = described(scene)
        struck.log_before = len(scene.job.log)
        scene.job.cluster.power_off(struck.node)
        struck.at = time.monotonic()
        time.sleep(LATER_S)
        struck.later = described(scene)
    (scene.hold / "hold").unlink(missing_ok=True)
    return struck


def described(scene: Scene) -> str:
    """Where the run is, and what is waited for meanwhile."""
    saving = ", saving" if is_saving(scene) else ""
    scoring = ", scoring" if is_scoring(scene) else ""
    return f"{scene.stage}{saving}{scoring}"


def has_come(scene: Scene, stage: str, rows: int) -> bool:
    """Whether a run is in a stage (any: "") of a step."""
    return scene.num_rows >= rows and stage in ("", scene.stage)


def wait_for_name(struck: Struck, job: Job, seconds: float) -> None:
    """Note when the job's log names the node; without an end where the next try begins before, or it never does."""
    says = re.compile(rf"^brorl \S+ (node )?{struck.node}[ :]", re.MULTILINE)
    tries = job.log.count(", try ")

    def is_named() -> bool:
        return bool(says.search(job.log, struck.log_before))

    wait_until(lambda: is_named() or job.log.count(", try ") > tries or is_over(job), seconds)
    if is_named():
        struck.named_s = time.monotonic() - struck.at


def is_over(job: Job) -> bool:
    """Whether the job has said its last word."""
    return bool(re.search(r"^brorl \S+ (done|not tried again|.*given up)", job.log, re.MULTILINE))


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Look often. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s")
        time.sleep(LOOK_S)
