"""A run of three steps over two nodes that nobody interrupts: the launcher's chain of two jobs with frozen code, and
what was seen of it while the first one ran."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.cluster.slurm_cluster import ROOT, Job, SlurmCluster

ENVIRONMENT = {"BRORL_OBJECT_STORE_GB": "0.2", "BRORL_SKIP_DOCTOR": "0", "OMP_NUM_THREADS": "1"}
GIVEN = ("--config-name", "brorl_64gpu", "--partition", "batch", "--time", "00:30:00")
RUN_S = 600


class Chain:
    """Its jobs, both of which have ended; `first` has trained."""

    def __init__(self, cluster: SlurmCluster, overrides: Sequence[str]) -> None:
        self.cluster = cluster
        folder = cluster.shared / "chain"
        folder.mkdir()
        self.run = folder / "run"
        given = [*GIVEN, "--run", str(self.run), *overrides]
        self.submitted = self.launch("submit", *given, "--chain", "2")
        assert self.submitted.returncode == 0, self.submitted.stderr
        lines = (self.run / "launch" / "jobs.jsonl").read_text().splitlines()
        self.first, self.second = [Job(cluster, json.loads(line)["job"], folder) for line in lines]
        (folder / "log").symlink_to(self.run / "logs" / f"slurm-{self.first.id}.log")
        self.submitted_again = self.launch("submit", *given)
        self.first.until_says("Ray is up on 2 nodes", RUN_S)
        self._look()
        self.first_state = self.first.wait(RUN_S)
        self.second_state = self.second.wait(120)
        self.leftovers = cluster.leftovers()

    def launch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m nemo_brorl ARGUMENTS` on the cluster."""
        return subprocess.run(
            [sys.executable, "-m", "nemo_brorl", *arguments],
            cwd=ROOT,
            env={**self.cluster.environment, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        """What `brorl status` shows of the run."""
        done = self.launch("status", str(self.run), "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _look(self) -> None:
        """Look at the first job while it runs: as `attach` does, and which of Ray's actors each node has."""
        self.attached = self.launch("attach", self.first.id, "--no-follow").stdout
        self.last_node = self.first.nodes[-1]
        step = ["--overlap", f"--jobid={self.first.id}", "--nodes=1", "--ntasks=1", f"--nodelist={self.last_node}"]
        self.step = self.cluster.run("srun", *step, "hostname")  # as `attach --shell` opens its shell
        self.logs = self.launch("attach", str(self.run), "--logs", self.last_node)
        self.first.until((self.run / "metrics.jsonl").exists, RUN_S, while_running=True)
        self.roles: dict[str, list[str]] = {}
        for node in self.first.nodes:
            running = " ".join(self.cluster.processes(node))
            self.roles[node] = sorted(set(re.findall(r"ray::(PolicyWorker|RolloutEngine)", running)))
