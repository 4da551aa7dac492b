"""Nodes that lose their power in every stage of a small run on a throw-away Slurm cluster: `python -m
tests.cluster.lose_nodes --job publish export --job doctor`. Each run goes on by itself, and comes to what the
undisturbed one came to."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.campaign import machine
from tests.campaign.__main__ import say
from tests.cluster.slurm_cluster import Job, SlurmCluster, eight_nodes, why_not
from tests.cluster.strikes import HEAD, MACHINE, NOBODY, STRIKES, Scene, Strike, Struck, is_over, strike, wait_for_name
from tests.cluster.test_slurm_job import CPU_JOB, rows, without_counts
from tests.cluster.tiny_run import prepare

STAGE_S = 900.0  # until a stage comes
RUN_S = 900.0  # from the last strike until the job has ended
DOWN_S = 240.0  # until Slurm has noticed, and until a node that is started again is idle
JOBS = (  # nodes that each of them loses, one in every try but the last
    ("ray", "policy start", "sampling", "publish", "update"),
    ("scoring", "checkpoint", "resume", "validation", "export"),
    ("settings", "doctor"),
    ("head: sampling",),
    ("head: ray", "head: checkpoint"),
    ("engines start", "first validation"),
)
MAX_RESTARTS = "9"  # a machine with other work to do may be too slow for Ray's start
DRIVER = f"{sys.executable} -m tests.cluster.watched_driver"
OWN = ("trainer.val_interval=2", "trainer.save_interval=1", "rewards.timeout_s=600", "parity.enabled=false")


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when all losses were survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.lose_nodes", description=__doc__)
    parser.add_argument(
        "--job", nargs="+", action="append", choices=STRIKES, metavar="STAGE", help="in which a job loses a node"
    )
    parser.add_argument("--keep", type=Path, help="a new folder for what all jobs have written")
    parser.add_argument("--whole", type=Path, help="undisturbed run to compare with, if not one that is made first")
    options = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(f"needs a Slurm cluster: {reason}")
    jobs = options.job or JOBS
    num_wrong = 0
    with eight_nodes() as cluster:
        campaign = Campaign(cluster, options.whole)
        for names in jobs:
            num_wrong += not campaign.lose(names)
        if options.keep is not None:
            shutil.copytree(cluster.shared, options.keep)
    say(f"{len(jobs) - num_wrong} of {len(jobs)} jobs went on as if they had lost nothing")
    return 1 if num_wrong else 0


class Campaign:
    """Runs on a cluster, held against one that nobody disturbed."""

    def __init__(self, cluster: SlurmCluster, whole: Path | None = None) -> None:
        self.cluster = cluster
        self.overrides = [*prepare(cluster.shared), *OWN]
        self.library = machine.build(cluster.shared)
        self.number = 0
        self.whole = whole or self.undisturbed()

    def undisturbed(self) -> Path:
        """The run that others are compared with."""
        start = time.monotonic()
        job = self.submit("whole", ())
        assert job.wait(RUN_S) == "COMPLETED", job.log[-6000:]
        say(f"undisturbed: {time.monotonic() - start:.0f} s")
        return job.folder / "run"

    def submit(self, name: str, strikes: Sequence[str]) -> Job:
        """A run of three steps over two nodes, whose disks may become slow."""
        folder = self.cluster.shared / name
        for node in range(self.cluster.num_nodes):
            machine.write_settings(self.cluster.folder / "nodes" / f"node{node}" / "tmp" / MACHINE)
        needs_doctor = any("doctor" in strike or strike == "settings" for strike in strikes)
        hold = [f"data.verifier_options.hold={folder}/hold"]
        variables = dict(machine.variables(self.library, Path("/tmp") / MACHINE))
        job = self.cluster.submit(
            name,
            CPU_JOB,
            *self.overrides,
            *hold,
            BRORL_RUN=str(folder / "run"),
            BRORL_DRIVER=DRIVER,
            BRORL_SKIP_DOCTOR=str(int(not needs_doctor)),
            BRORL_MAX_RESTARTS=MAX_RESTARTS,
            BRORL_MAX_EXCLUDED=str(max(2, len(strikes))),
            **variables,
        )
        (folder / "hold").mkdir()
        return job

    def lose(self, names: Sequence[str]) -> bool:
        """A run that loses a node in each of its tries but the last. Returns whether it holds."""
        self.number += 1
        start = time.monotonic()
        job = self.submit(f"lost_{self.number}", names)
        wrong: list[str] = []
        try:
            for name in names:
                struck = self.lose_one(job, STRIKES[name])
                wrong += self.judged(job, name, struck)
            job.wait(RUN_S)
        except (TimeoutError, AssertionError) as error:
            wrong.append(f"{error}: {job.log[-3000:]}")
            job.cancel()
            job.wait(DOWN_S)
        wrong += self.differences(job)
        seconds = time.monotonic() - start
        say(f"job {self.number} ({', '.join(names)}): {seconds:.0f} s: {'; '.join(wrong) or 'holds'}")
        self.cluster.mend(DOWN_S)
        return not wrong

    def lose_one(self, job: Job, one: Strike) -> Struck:
        """Strike in the next try that comes so far."""
        number = tries_of(job) or 1
        struck = strike(Scene(job, number), one, STAGE_S)
        while struck.during == NOBODY and not is_over(job):
            job.until_says(f", try {number + 1}, on", STAGE_S)
            say(f"  try {number} failed before it was struck: {last_words(job)}")
            number += 1
            struck = strike(Scene(job, number), one, STAGE_S)
        return struck

    def judged(self, job: Job, name: str, struck: Struck) -> list[str]:
        """What is wrong with how the job took the loss of a node, once it goes on."""
        wrong: list[str] = []
        if struck.during == NOBODY:
            wrong.append(f"{name}: nobody was struck")
            return wrong
        wait_for_name(struck, job, DOWN_S)
        one = STRIKES[name]
        named = "not named" if struck.named_s is None else f"named after {struck.named_s:.0f} s"
        say(f"  {name}: try {struck.try_number}, {struck.node} in [{struck.during}], then [{struck.later}]: {named}")
        if one.node != HEAD and (struck.named_s is None or struck.named_s > one.named_s):
            wrong.append(f"{name}: {struck.node} was not named within {one.named_s:.0f} s")
        job.until_says(f", try {struck.try_number + 1}, on", STAGE_S)
        if struck.node in job.nodes:
            wrong.append(f"{name}: the next try has {struck.node} again")
        return wrong

    def differences(self, job: Job) -> list[str]:
        """What is not as in the undisturbed run, and what is left."""
        if job.state != "COMPLETED":
            return [f"{job.state}: {job.log[-3000:]}"]
        run = job.folder / "run"
        wrong = []
        if without_counts(rows(run)) != without_counts(rows(self.whole)):
            wrong.append("other metrics")
        if texts(run) != texts(self.whole):
            wrong.append("other rollouts")
        prompts = prompts_of(run)
        if len(set(prompts)) != len(prompts) or set(prompts) != set(prompts_of(self.whole)):
            wrong.append(f"prompts twice or never: {sorted(prompts)}")
        if left := self.cluster.leftovers():
            wrong.append(f"left behind: {left}")
        return wrong


def tries_of(job: Job) -> int:
    """Tries that have begun."""
    return job.log.count(", try ")


def last_words(job: Job) -> str:
    """What the job said of the end of a try."""
    found = re.findall(r"^brorl \S+ (requeued.*|.*given up.*)", job.log, re.MULTILINE)
    return found[-1] if found else ""


def texts(run: Path) -> list[str]:
    """Rollouts that a run has kept, a text for each step."""
    return [path.read_text() for path in sorted((run / "rollouts").glob("step_*.jsonl"))]


def prompts_of(run: Path) -> list[str]:
    """Prompts of all steps."""
    lines = "".join(texts(run)).splitlines()
    return [json.loads(line)["prompt"] for line in lines]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
