"""When a job that failed goes back into the queue: the script's own functions, with Slurm left out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import brorl_launcher.job

SCRIPT = Path(brorl_launcher.job.__file__).parent / "job_requeue.sh"
SLURM_LEFT_OUT = """
source "$SCRIPT"
say() { echo "$*"; }
go_on() { echo "requeued ($1)"; exit "$exit_code"; }
codes=() bad_nodes=($BAD_NODES) exit_code=69
go_on_after_failure "the driver ended with exit code 69"
"""
LOST = "error: policy rank 3 has no usable gradients\n"
OTHER = "Traceback (most recent call last):\ntorch.OutOfMemoryError: tried to allocate 2 GiB\n"


def said_after(folder: Path, driver: str, bad_nodes: str = "") -> str:
    """What the job says when a driver with this output has failed."""
    (folder / "driver.log").write_text(driver)
    environment = {
        "PATH": "/usr/bin:/bin", "SCRIPT": str(SCRIPT), "BRORL_JOB_FOLDER": str(folder), "logs": str(folder),
        "BRORL_MAX_RESTARTS": "9", "BAD_NODES": bad_nodes, "run_folder": str(folder),
    }  # fmt: skip
    command = ["bash", "-c", SLURM_LEFT_OUT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 69, done.stderr
    return done.stdout.strip()


def test_a_start_that_fails_twice_in_the_same_way_is_not_tried_a_third_time(tmp_path: Path) -> None:
    assert said_after(tmp_path, "nemo 5 s\n" + LOST).startswith("requeued (failure 1")
    assert (
        said_after(tmp_path, "nemo 6 s\n" + LOST) == f"the start failed twice in the same way: given up ({LOST[:-1]})"
    )


def test_another_error_or_a_lost_node_is_tried_again(tmp_path: Path) -> None:
    assert said_after(tmp_path, LOST).startswith("requeued (failure 1")
    assert said_after(tmp_path, OTHER).startswith("requeued (failure 2")
    assert said_after(tmp_path, OTHER, bad_nodes="node3").startswith("requeued (failure 3")
    assert said_after(tmp_path, OTHER).startswith("the start failed twice")


def test_a_run_that_was_ready_is_tried_as_often_as_the_limit_says(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        assert said_after(tmp_path, "ready after 44 s\n" + LOST).startswith(f"requeued (failure {number}")


def test_a_driver_of_the_users_own_without_an_error_is_tried_again(tmp_path: Path) -> None:
    assert said_after(tmp_path, "").startswith("requeued (failure 1")
    assert said_after(tmp_path, "").startswith("requeued (failure 2")
