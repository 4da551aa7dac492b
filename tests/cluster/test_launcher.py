"""The launcher on a real Slurm: a chain of two jobs that trains on two nodes with frozen code, looked at while it runs
and afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.cluster.slurm_cluster import ROOT, Job, SlurmCluster
from tests.cluster.tiny_run import prepare

ENVIRONMENT = {"BRORL_OBJECT_STORE_GB": "0.2", "BRORL_SKIP_DOCTOR": "1", "OMP_NUM_THREADS": "1"}


def launch(cluster: SlurmCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nemo_brorl", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**cluster.environment, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def state_of(cluster: SlurmCluster, run: str) -> dict[str, Any]:
    done = launch(cluster, "status", run, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_chain_trains_once_with_the_code_that_was_frozen(cluster: SlurmCluster) -> None:
    folder = cluster.shared / "launcher"
    folder.mkdir()
    run = folder / "run"
    given = [
        "--config-name",
        "brorl_cpu",
        "--run",
        str(run),
        "--partition",
        "batch",
        "--time",
        "00:30:00",
        *prepare(folder),
    ]
    done = launch(cluster, "submit", *given, "--chain", "2")
    assert done.returncode == 0, done.stderr
    assert "note: Slurm would take it" in done.stderr
    first, second = [
        Job(cluster, json.loads(line)["job"], folder)
        for line in (run / "launch" / "jobs.jsonl").read_text().splitlines()
    ]
    (folder / "log").symlink_to(run / "logs" / f"slurm-{first.id}.log")

    assert launch(cluster, "submit", *given).returncode == 2  # one writer at a time
    first.until_says("Ray is up on 2 nodes", 120)
    assert launch(cluster, "attach", first.id, "--no-follow").stdout.count("Ray is up on 2 nodes") == 1
    last = first.nodes[-1]
    step = cluster.run(
        "srun", "--overlap", f"--jobid={first.id}", "--nodes=1", "--ntasks=1", f"--nodelist={last}", "hostname"
    )
    assert step.stdout.strip() == last, step.stderr  # such a step is what `attach --shell` opens its shell with
    raylet = launch(cluster, "attach", str(run), "--logs", last)
    assert "raylet" in raylet.stdout, raylet.stderr

    assert first.wait(300) == "COMPLETED", first.log[-6000:]
    assert second.wait(60) == "COMPLETED"
    assert "step 3: nothing to do" in (run / "logs" / f"slurm-{second.id}.log").read_text()
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert (run / "revision.txt").read_text() == (run / "launch" / "revision.txt").read_text()
    shown = state_of(cluster, str(run))
    assert (shown["state"]["step"], shown["state"]["is_finished"]) == (3, True)
    assert [job["state"] for job in shown["jobs"]] == ["COMPLETED", "COMPLETED"]
    assert cluster.leftovers() == []
