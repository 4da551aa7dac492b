"""Nodes that lose their power in every stage of a small run on a throw-away Slurm cluster: `python -m
tests.cluster.lose_nodes --job publish export --job doctor`. Each run goes on by itself, and comes to what the
undisturbed one came to."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Loss:
    """What became of a job after some strikes."""

    names: Sequence[str]  # of STRIKES, in turn
    by_itself: list[str] = field(default_factory=list)  # causes of tries that ended without a strike
    struck: list[Struck] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # nothing: it holds
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """One for each strike, and one for the job."""
        for name, one in zip(self.names, self.struck, strict=False):
            named = "not named" if one.named_s is None else f"named after {one.named_s:.0f} s"
            yield f"  {name}: try {one.try_number}, {one.node} struck in [{one.during}], then [{one.later}], {named}"
        for cause in self.by_itself:
            yield f"  not struck, but failed: {cause}"
        yield f"  {self.seconds:.0f} s: {'; '.join(self.wrong) or 'holds'}"


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when all losses were survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.lose_nodes", description=__doc__)
    parser.add_argument("--job", nargs="+", action="append", choices=STRIKES, metavar="STAGE", help="that lose nodes")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and run folders")
    options = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(f"needs a Slurm cluster: {reason}")
    jobs = options.job or JOBS
    num_wrong = 0
    with eight_nodes() as cluster:
        campaign = Campaign(cluster)
        for names in jobs:
            loss = campaign.lose(names)
            num_wrong += bool(loss.wrong)
            say(f"job {', '.join(loss.names)}")
            for line in loss.lines():
                say(line)
            if options.keep is not None:
                keep(campaign, options.keep)
    say(f"{len(jobs) - num_wrong} of {len(jobs)} jobs went on as if they had lost nothing")
    return 1 if num_wrong else 0


class Campaign:
    """Runs on a cluster, held against one that nobody disturbed."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.overrides = [*prepare(cluster.shared), *OWN]
        self.library = machine.build(cluster.shared)
        self.number = 0
        self.whole = self.submit("whole", ())
        assert self.whole.wait(RUN_S) == "COMPLETED", self.whole.log[-6000:]

    def submit(self, name: str, strikes: Sequence[str]) -> Job:
        """A run of three steps over two nodes, whose disks may become slow."""
        folder = self.cluster.shared / name
        for node in range(self.cluster.num_nodes):
            machine.write_settings(self.cluster.folder / "nodes" / f"node{node}" / "tmp" / MACHINE)
        needs_doctor = any("doctor" in strike or strike == "settings" for strike in strikes)
        hold = [f"data.verifier_options.hold={folder}/hold", "data.verifier_options.hold_from=0"]
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

    def lose(self, names: Sequence[str]) -> Loss:
        """A run that loses a node in each of its tries but the last."""
        loss = Loss(names)
        self.number += 1
        start = time.monotonic()
        job = self.submit(f"lost_{self.number}", names)
        try:
            for name in names:
                self.lose_one(job, STRIKES[name], loss)
            job.wait(RUN_S)
        except (TimeoutError, AssertionError) as error:
            loss.wrong.append(f"{error}: {job.log[-3000:]}")
            job.cancel()
            job.wait(DOWN_S)
        loss.seconds = time.monotonic() - start
        loss.wrong += self.differences(job, loss)
        self.mend(loss)
        return loss

    def lose_one(self, job: Job, one: Strike, loss: Loss) -> None:
        """Strike in the next try that comes so far, and see that the job goes on without the node."""
        struck = strike(Scene(job, tries_of(job) or 1), one, STAGE_S)
        while struck.during == NOBODY and not is_over(job):
            loss.by_itself.append(last_words(job))
            job.until_says(f", try {struck.try_number + 1}, on", STAGE_S)
            struck = strike(Scene(job, struck.try_number + 1), one, STAGE_S)
        loss.struck.append(struck)
        if struck.during == NOBODY:
            loss.wrong.append("nobody was struck: the job had ended before")
            return
        wait_for_name(struck, job, DOWN_S)
        if one.node != HEAD and (struck.named_s is None or struck.named_s > one.named_s):
            loss.wrong.append(f"{struck.node} was not named within {one.named_s:.0f} s")
        job.until_says(f", try {struck.try_number + 1}, on", STAGE_S)
        if struck.node in job.nodes:
            loss.wrong.append(f"try {struck.try_number + 1} has {struck.node} again")

    def differences(self, job: Job, loss: Loss) -> list[str]:
        """What is not as in the undisturbed run, and what is left."""
        if job.state != "COMPLETED":
            return [f"{job.state}: {job.log[-3000:]}"]
        run, whole = job.folder / "run", self.whole.folder / "run"
        wrong = []
        if without_counts(rows(run)) != without_counts(rows(whole)):
            wrong.append("other metrics")
        if texts(run) != texts(whole):
            wrong.append("other rollouts")
        prompts = prompts_of(run)
        if len(set(prompts)) != len(prompts) or set(prompts) != set(prompts_of(whole)):
            wrong.append(f"prompts twice or never: {sorted(prompts)}")
        if left := self.cluster.leftovers():
            wrong.append(f"left behind: {left}")
        return wrong

    def mend(self, loss: Loss) -> None:
        """Start all nodes again that were struck."""
        nodes = [struck.node for struck in loss.struck if struck.during != NOBODY]
        for node in nodes:
            self.cluster.power_on(node)
        deadline = time.monotonic() + DOWN_S
        while not set(nodes) <= set(self.cluster.idle_nodes()):
            assert time.monotonic() < deadline, self.cluster.run("sinfo", "--Node", "--long").stdout
            time.sleep(1)


def tries_of(job: Job) -> int:
    """Tries that have begun."""
    return job.log.count(", try ")


def last_words(job: Job) -> str:
    """What the job said of the end of a try."""
    return job.log.rpartition("all steps have ended")[2].strip().replace("\n", " | ")[-300:]


def texts(run: Path) -> list[str]:
    """Rollouts that a run has kept, a text for each step."""
    return [path.read_text() for path in sorted((run / "rollouts").glob("step_*.jsonl"))]


def prompts_of(run: Path) -> list[str]:
    """Prompts of all steps."""
    return [json.loads(line)["prompt"] for text in texts(run) for line in text.splitlines()]


def keep(campaign: Campaign, folder: Path) -> None:
    """Copy the last job's folder."""
    name = f"lost_{campaign.number}"
    shutil.copytree(campaign.cluster.shared / name, folder / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
