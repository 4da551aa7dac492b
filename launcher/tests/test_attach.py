"""Following a log, and stepping into a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from brorl_launcher import attach
from brorl_launcher.attach import last_lines, read_appended_text
from brorl_launcher.job.ray_node import session_name
from brorl_launcher.launch_folder import Folders, record_job
from brorl_launcher.packages import code_root

from nemo_brorl.core.errors import ConfigError, ResourceError
from tests.support.fake_slurm import FakeSlurm

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def run(tmp_path: Path, slurm: FakeSlurm) -> Path:
    """A run whose job 101 has nodes 2 to 4, with three lines of log."""
    folder = tmp_path / "run"
    (folder / "launch").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "slurm-101.log").write_text("one\ntwo\nthree\n")
    (folder / "launch" / "job.sbatch").write_text("export BRORL_RUN=x\n")
    record_job(Folders(folder), "101", None, [])
    slurm.queue("101|RUNNING|0:10|4:00:00|N/A|3|node[2-4]|None")
    slurm.hostnames("node2", "node3", "node4")
    return folder


def test_the_end_of_the_log_is_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attach.main([str(run), "--no-follow", "--lines", "2"]) == 0
    assert capsys.readouterr().out == "two\nthree\n"


def test_following_ends_with_the_job(
    run: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attach, "POLL_S", 0.0)
    slurm.queue()
    log = run / "logs" / "slurm-101.log"
    answers = iter([True, False])

    def goes_on() -> bool:
        with log.open("a") as file:
            file.write("four\n")
        return next(answers)

    assert "".join(read_appended_text(log, goes_on, poll_s=0.0, ask_s=0.0)) == "four\nfour\n"


def test_a_log_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a long first line\n")
    answers = iter([True, True, False])

    def goes_on() -> bool:
        if log.read_text().startswith("a"):
            log.write_text("new\n")
        return next(answers)

    assert "".join(read_appended_text(log, goes_on, poll_s=0.0, ask_s=0.0)) == "new\n"


def test_a_run_that_has_no_log_yet_says_what_its_job_waits_for(run: Path, slurm: FakeSlurm) -> None:
    (run / "logs" / "slurm-101.log").unlink()
    slurm.queue("101|PENDING|0:00|4:00:00|N/A|3||Priority")
    with pytest.raises(ResourceError, match="has no log yet: 101 is PENDING Priority"):
        attach.main([str(run)])


def open_shell(run: Path, slurm: FakeSlurm, *more: str) -> list[str]:
    """Arguments of srun; in a process of its own, which becomes srun."""
    command = [sys.executable, "-m", "nemo_brorl", "attach", str(run), "--shell", *more]
    subprocess.run(command, check=True, capture_output=True, cwd=code_root(), env={**os.environ, "PATH": slurm.path})
    return slurm.srun


def test_a_shell_opens_on_the_driver_s_node_beside_what_runs_there(run: Path, slurm: FakeSlurm) -> None:
    assert open_shell(run, slurm) == [
        "--overlap", "--jobid=101", "--nodes=1", "--ntasks=1", "--nodelist=node2", "--cpu-bind=none", "--pty", "bash",
        "-i",
    ]  # fmt: skip


def test_a_shell_opens_in_the_job_s_container_unless_told_otherwise(run: Path, slurm: FakeSlurm) -> None:
    (run / "launch" / "job.sbatch").write_text("export BRORL_CONTAINER=image.sqsh\n")
    assert "--container-name=brorl-101" in open_shell(run, slurm, "--node", "2")
    assert "--nodelist=node4" in slurm.srun
    assert "--container-name=brorl-101" not in open_shell(run, slurm, "--host", "--node", "node3")


def test_a_node_that_the_job_does_not_have_is_refused_with_those_it_has(run: Path) -> None:
    for wrong in ("node9", "3"):
        with pytest.raises(
            ConfigError, match=r"job 101 has node2, node3, node4: pass one of these, or a number from 0 to 2"
        ):
            attach.main([str(run), "--shell", "--node", wrong])


def test_a_shell_needs_a_job_that_runs(run: Path, slurm: FakeSlurm) -> None:
    slurm.queue("101|PENDING|0:00|4:00:00|N/A|3||Priority")
    with pytest.raises(ResourceError, match=r"no job of it runs now \(101 PENDING\)"):
        attach.main([str(run), "--shell"])


def test_a_node_without_a_shell_is_pointed_to_its_logs(run: Path) -> None:
    with pytest.raises(ConfigError, match="--logs node3"):
        attach.main([str(run), "--node", "node3"])


def test_logs_of_a_node_are_those_that_were_kept_and_those_that_are_there(
    run: Path, slurm: FakeSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = run / "jobs" / "101" / "logs" / "try_1"
    kept.mkdir(parents=True)
    (kept / "ray_node3.log").write_text("ray began\n")
    (kept / "ray_node4.log").write_text("another node\n")
    assert attach.main([str(run), "--logs", "node3", "--lines", "7"]) == 0
    said = capfd.readouterr().out
    assert f"==> {kept}/ray_node3.log\nray began\nfrom the node" in said
    assert "another node" not in said
    assert {"--overlap", "--nodelist=node3"} <= set(slurm.srun)
    assert slurm.srun[-2:] == [session_name("101", "node3"), "7"]


def test_on_a_node_the_logs_are_where_rays_command_line_says(tmp_path: Path) -> None:
    """Whatever TMPDIR is there: the job's own is not known."""
    logs = tmp_path / "its tmp" / "brorl-7" / session_name("4711", "node3") / "session_latest" / "logs"
    logs.mkdir(parents=True)
    for name in ("raylet.out", "raylet.err", "worker-1.out"):
        (logs / name).write_text(f"{name} said this\n")
    folders = [logs.parents[1], tmp_path / session_name("4711", "node4")]
    stand_ins = [subprocess.Popen([sys.executable, "-c", SLEEP, f"--temp-dir={folder}"]) for folder in folders]
    try:
        asked = [show_logs("4711", "node3"), show_logs("4711", "node5")]
    finally:
        for process in stand_ins:
            process.kill()
            process.wait()
    assert [done.returncode for done in asked] == [0, 1]
    assert [f"{name} said this" in asked[0].stdout for name in ("raylet.out", "raylet.err", "worker-1.out")] == [
        True
    ] * 3
    assert "no Ray of this job runs on" in asked[1].stderr


def show_logs(job: str, node: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", attach.NODE_LOGS, session_name(job, node), "5"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_last_lines_are_found_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{number} {'x' * 50_000}\n" for number in range(5)))
    assert [line.split(" ")[0] for line in last_lines(path, 3)] == ["2", "3", "4"]
    assert len(last_lines(path, 99)) == 5
    assert last_lines(path, 0) == []


def test_of_a_log_that_is_one_endless_line_the_end_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.touch()
    os.truncate(path, 1 << 40)
    [line] = last_lines(path, 3)
    assert len(line) == 1 << 24
