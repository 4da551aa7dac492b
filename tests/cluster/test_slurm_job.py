"""The whole job on a real Slurm: a recipe for 64 GPUs trains on two nodes, preempted and resumed, a node that dies,
scancel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chain import RUN_S, Chain
from tests.cluster.slurm_cluster import ROOT, SlurmCluster

pytestmark = pytest.mark.cluster

READY_S = 400  # minutes on a busy machine of two cores; half a one on an idle one
LOST_S = 150  # Ray's five health checks take 75 s on an idle machine
MAX_MISMATCH = 0.1  # nats, of emulated FP8; fp32 alone has 1e-6
HOLD_AFTER = 8  # of the 16 calls of the verifier in a step
IDLE = f"{sys.executable} {ROOT / 'tests' / 'cluster' / 'idle_driver.py'}"
CPU_JOB = "slurm/brorl_cpu.sh"
RECIPE_7B = "brorl_7b_64gpu"
VOLATILE = ("time/", "generation/samples_per_s", "generation/tokens_per_s", "generation/prefix_cache", "sync/")


def rows(folder: Path) -> list[dict[str, Any]]:
    """Metrics without timings."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith(VOLATILE)} for line in lines
    ]


def without_counts(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what says who sampled: a step that was cut and begun anew takes what it had."""
    counts = ("generation/num_samples", "rollouts/salvaged")
    return [{name: value for name, value in row.items() if name not in counts} for row in metrics]


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "slurm").glob("*.sh")))
def test_slurm_accepts_every_script(cluster: SlurmCluster, script: str) -> None:
    smaller = ["--nodes=8"] if "256gpu" in script else []
    done = cluster.run("sbatch", "--test-only", *smaller, f"slurm/{script}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Job \d+ to start at", done.stderr), done.stderr


def test_slurm_refuses_what_eight_nodes_cannot_give(cluster: SlurmCluster) -> None:
    done = cluster.run("sbatch", "--test-only", "slurm/brorl_32b_256gpu.sh")
    assert done.returncode != 0
    assert "Node count specification invalid" in done.stderr


def test_a_script_for_64_gpus_differs_from_another_by_its_recipe_alone() -> None:
    def commands(name: str) -> list[str]:
        _, _, *lines = (ROOT / "slurm" / f"{name}.sh").read_text().replace(name, "NAME").splitlines()
        return [line for line in lines if "BRORL_CONFIG" not in line]

    assert commands(RECIPE_7B) == commands("brorl_64gpu")


def test_a_wrong_setting_ends_the_job_before_ray_starts(cluster: SlurmCluster) -> None:
    job = cluster.submit("wrong", CPU_JOB, "rollouts.num_per_promt=4")
    assert job.wait(120) == "FAILED"
    assert job.exit_code == 2
    assert "num_per_prompt" in job.log
    assert "Ray is up" not in job.log and job.field("Restarts") == "0"


def test_a_run_trains_over_two_nodes_with_addresses_of_their_own(chain: Chain) -> None:
    metrics = rows(chain.run)
    assert [row["step"] for row in metrics] == [0, 1, 2, 3]
    assert all(0 < row["policy/fp8_mismatch"] < MAX_MISMATCH for row in metrics[1:])
    assert all(row["policy/log_prob_mismatch"] < MAX_MISMATCH for row in metrics[1:])
    assert any(row["policy/grad_norm"] > 0 for row in metrics[1:])
    assert "dress rehearsal: update without a step" in chain.first.log
    event = json.loads((chain.run / "events.jsonl").read_text().splitlines()[0])
    assert (event["event"], event["value"]) == ("start", 1.0)
    assert len(chain.roles) == 2
    assert all(names == ["PolicyWorker", "RolloutEngine"] for names in chain.roles.values()), chain.roles


def test_a_run_preempted_in_mid_step_goes_on_and_equals_the_one_that_was_not(
    cluster: SlurmCluster, overrides: list[str], chain: Chain
) -> None:
    run, hold = cluster.shared / "preempted" / "run", cluster.shared / "hold"
    hold.mkdir()
    calls = hold / "calls"
    waiting = [f"data.verifier_options.hold={hold}", "rewards.timeout_s=600"]
    other_way = "generation.weight_transport=collective"  # of the weights between nodes; nothing depends on it
    script = ("--nodes=2", f"slurm/{RECIPE_7B}.sh")
    job = cluster.submit("preempted", *script, *overrides, *waiting, other_way, BRORL_RUN=str(run), BRORL_GRACE_S="1")
    # Slurm is not asked meanwhile: its answer may take longer than a step.
    job.until(lambda: (run / "metrics.jsonl").exists() and rows(run)[-1]["step"] >= 1, RUN_S)
    hold_from = calls.stat().st_size + HOLD_AFTER
    (hold / "new").write_text(str(hold_from))
    (hold / "new").rename(hold / "hold")
    job.until(lambda: calls.stat().st_size >= hold_from, RUN_S, while_running=True)
    job.cancel("--batch", "--signal=USR1")
    job.until_says("stopped: not enough time", RUN_S)
    (hold / "hold").unlink()
    job.until_says("requeued (saved)", RUN_S)
    assert job.wait(RUN_S) == "COMPLETED", job.log
    assert job.field("Restarts") == "1"
    assert "try 2" in job.log and "resumed after step" in job.log
    assert without_counts(rows(run)) == without_counts(rows(chain.run))
    cut = next(row for row in rows(run) if row.get("rollouts/salvaged"))
    undisturbed = rows(chain.run)[cut["step"]]
    assert cut["generation/num_samples"] + cut["rollouts/salvaged"] == undisturbed["generation/num_samples"]
    for step in (1, 2, 3):
        name = f"rollouts/step_{step}.jsonl"
        assert (run / name).read_text() == (chain.run / name).read_text()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["value"] for event in events if event["event"] == "start"] == [1.0, 2.0]
    assert cluster.leftovers() == []


def test_a_node_that_the_doctor_refuses_is_left_out_and_a_cancelled_job_stays_cancelled(
    cluster: SlurmCluster, overrides: list[str]
) -> None:
    free = cluster.idle_nodes()
    with cluster.listening(free[0], 20011):  # where Ray would listen
        job = cluster.submit(
            "cancelled", "--nodes=3", CPU_JOB, *overrides, BRORL_DRIVER=IDLE, BRORL_SPARES="1",
            BRORL_SKIP_DOCTOR="0",
            BRORL_RUN=str(cluster.shared / "cancelled" / "run"),
        )  # fmt: skip
        job.until_says("idle driver", READY_S)
    assert job.nodes == free[:3]
    assert f"goes on without {free[0]}" in job.log
    report = (job.folder / "job" / "doctor" / "try_1" / f"{free[0]}.json").read_text()
    assert "20011" in report
    assert f"Ray is up on 2 nodes: {free[1]} {free[2]}" in job.log
    job.cancel()
    assert job.wait(60) == "CANCELLED"
    job.until(lambda: cluster.leftovers() == [], 30)
    assert job.field("Restarts") == "0"
    assert "requeued" not in job.log


def test_a_dead_worker_ends_the_try_names_itself_and_is_excluded_from_the_next(cluster: SlurmCluster) -> None:
    job = cluster.submit("killed", "--nodes=2", "slurm/brorl_64gpu.sh", "trainer.num_nodes=2", BRORL_DRIVER=IDLE)
    job.until_says("idle driver", READY_S)
    victim = job.nodes[1]
    cluster.power_off(victim)
    job.until_says("requeued (failure 1", LOST_S)
    assert re.search(rf"node {victim} \S+ does not answer", job.log), job.log
    job.until(lambda: job.field("ExcNodeList") == victim, 10)
    job.until_says("idle driver", READY_S, times=2)
    assert victim not in job.nodes
    job.cancel()
    assert job.wait(60) == "CANCELLED"


def test_the_scripts_are_clean() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    scripts = sorted(
        str(path)
        for folder in ("slurm", "launcher/brorl_launcher/job", "tests/cluster")
        for path in (ROOT / folder).glob("*.sh")
    )
    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
