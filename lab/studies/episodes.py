"""Run episodes of which some hang and some crash, and check that all close, and what processes and memory remain.

python lab/studies/episodes.py --episodes 10000 --hanging 0.05 --crashing 0.05 --turns 3

Each episode takes `turns` turns. One that hangs or crashes does so at a random turn. The exit code is 1 unless every
episode closed as it should and no process is left.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from random import Random

from brorl_graders.base.names import allow
from brorl_graders.environments.host import EpisodeHost, HostLimits
from brorl_graders.environments.protocol import Action, Environment, EpisodeOutcome, EpisodeStep, Step, Task

from nemo_brorl.config.data import DataConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.scoring.grader_settings import names_of

TROUBLED = "lab.studies.episodes:Troubled"
MIB = 2**20


class Troubled(Environment):
    """An environment that hangs or crashes at the turn that its task names."""

    def reset(self, task: Task, seed: int) -> str:
        """Start a test episode that will hang, crash or end as its task says, and return the observation "go"."""
        self.plan = task
        self.turn = 0
        return "go"

    def step(self, action: Action) -> Step:
        """Take a turn of a test episode: go on, hang, crash or end, as the episode's task says."""
        self.turn += 1
        if self.turn == self.plan["at"] and self.plan["deed"] == "hang":
            time.sleep(3600)
        if self.turn == self.plan["at"] and self.plan["deed"] == "crash":
            os._exit(1)
        return Step("on", reward=1.0, terminated=self.turn == self.plan["turns"])


def resident_mib() -> float:
    """Return the MiB of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def make_tasks(options: argparse.Namespace) -> list[dict[str, object]]:
    """Return the random task of each test episode: to hang, to crash or to end, and at which turn."""
    random = Random(0)
    found: list[dict[str, object]] = []
    for _ in range(options.episodes):
        draw = random.random()
        deed = ""
        if draw < options.hanging:
            deed = "hang"
        elif draw < options.hanging + options.crashing:
            deed = "crash"
        found.append({"deed": deed, "at": random.randint(1, options.turns), "turns": options.turns})
    return found


def play(host: EpisodeHost, tasks: list[dict[str, object]], turns: int) -> dict[int, EpisodeOutcome]:
    """Play all episodes of a test environment together, turn by turn, and return the last outcome of each episode."""
    last: dict[int, EpisodeOutcome] = {}
    for turn in range(1, turns + 1):
        going_on = [number for number in range(len(tasks)) if number not in last or not last[number].has_ended]
        steps = []
        for number in going_on:
            steps.append(EpisodeStep(str(number), TROUBLED, {}, tasks[number], 0, ("go",) * turn))
        outcomes = host.step(steps)
        last.update(zip(going_on, outcomes, strict=True))
        sys.stdout.write(f"turn {turn}: {len(steps)} steps, the owner holds {resident_mib():.0f} MiB\n")
    return last


def main() -> int:
    """Play episodes of which some hang or crash, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--hanging", type=float, default=0.05)
    parser.add_argument("--crashing", type=float, default=0.05)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--step-timeout", type=float, default=1.0)
    options = parser.parse_args()
    tasks = make_tasks(options)
    allow(names_of(BroRLConfig(data=DataConfig(environment=TROUBLED))))
    host = EpisodeHost(HostLimits(step_s=options.step_timeout))
    start = time.monotonic()
    last = play(host, tasks, options.turns)
    seconds = time.monotonic() - start
    process_ids = host.process_ids()
    host.close()
    left = [process for process in process_ids if Path(f"/proc/{process}").exists()]
    wrong = 0
    for number, task in enumerate(tasks):
        outcome = last[number]
        wrong += not outcome.has_ended or bool(outcome.error) != bool(task["deed"])
    failed = sum(bool(outcome.error) for outcome in last.values())
    sys.stdout.write(f"{len(tasks)} episodes in {seconds:.1f} s, {failed} failed, {wrong} not as they should\n")
    sys.stdout.write(f"{len(process_ids)} processes at the end, {len(left)} left after close\n")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
