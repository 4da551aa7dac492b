"""What a run is doing, from its folder and from Slurm's answers."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher import status
from brorl_launcher.find_run import Target, find_target, restarts_of, run_of_script
from brorl_launcher.launch_folder import Folders, record_job
from brorl_launcher.run_state import MARKER, last_rows, read_run
from brorl_launcher.slurm import SlurmJob, queued_jobs
from brorl_launcher.status import format_duration, job_text, largest_stage_shares

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.training import marker
from nemo_brorl.training.checkpoint import Checkpoints
from tests.support.fake_slurm import FakeSlurm

TIMES = {
    "time/collect_s": 6.0,
    "time/generate_s": 5.5,
    "time/reward_s": 0.5,
    "time/log_prob_s": 1.0,
    "time/update_s": 2.5,
    "time/sync_s": 0.5,
}


def make_row(step: int, **more: float) -> dict[str, Any]:
    return {
        "step": step,
        "reward/mean": 0.4,
        "dynamic_sampling/keep_rate": 0.75,
        "generation/samples_per_s": 1234.0,
        **TIMES,
        **more,
    }


def make_run(folder: Path, rows: Sequence[dict[str, Any]] = (), saved: Sequence[int] = (), max_steps: int = 20) -> Path:
    (folder / "launch").mkdir(parents=True, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(f"trainer:\n  max_steps: {max_steps}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in saved:
        (folder / "checkpoints" / f"step_{step}").mkdir(parents=True)
        marker = folder / "checkpoints" / f"step_{step}" / MARKER
        marker.touch()
        os.utime(marker, (time.time() - 7_210, time.time() - 7_210))
    return folder


def beat(
    folder: Path, state: str = "running", silent_s: float = 1.0, late: Sequence[str] = (), ago: float = 0.0
) -> None:
    row = {
        "state": state,
        "stage": "generate",
        "detail": "1,024 of 4,096 rollouts",
        "stage_s": 32.0,
        "silent_s": silent_s,
    }
    (folder / "heartbeat.json").write_text(
        json.dumps({**row, "written_at": time.time() - ago, "late": list(late), "process": 1})
    )


def shown(name: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    assert status.main([str(name)]) == 0
    return capsys.readouterr().out


def test_a_local_run_without_slurm(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [make_row(0, **{"validation/pass_at_1": 0.25}), make_row(1), make_row(2), make_row(3)]
    run = make_run(tmp_path / "run", rows, saved=[1, 2])
    beat(run, late=["engine 3 on node2"])
    text = shown(run, capsys)
    assert f"run        {run}\n" in text
    assert "now        generate (1,024 of 4,096 rollouts) for 32 s, last progress 1.0 s ago\n" in text
    assert "now        late: engine 3 on node2\n" in text
    # collect, which holds generate and reward, and what follows it: 6 + 1 + 2.5 + 0.5
    assert "step       3 of 20, 10 s a step (generate 55%, update 25%, log_prob 10%)\n" in text
    assert "validation pass@1 25.0% after step 0\n" in text
    assert "remaining  about 2 min of training at this pace\n" in text  # 17 steps of 10 s
    assert "checkpoint step 2, 2 h 0 min ago\n" in text
    assert text.splitlines()[-1].split() == ["3", "0.400", "75%", "1,234", "10.0"]


def test_what_a_real_heartbeat_says(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run, heartbeat = make_run(tmp_path / "run"), Heartbeat()
    watch = StallWatch(heartbeat, run, warning_s=100.0)
    with heartbeat.stage("update"):
        heartbeat.beat("micro-batch 3 of 8")
        watch.look()
    assert "now        update (micro-batch 3 of 8) for " in shown(run, capsys)


def test_a_stall_and_a_silence_are_said(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    beat(run, state="stalled", silent_s=700.0)
    assert "last progress 11 min ago, STALLED" in shown(run, capsys)
    beat(run, ago=3600.0)
    assert "no heartbeat for 1 h 0 min, last stage generate" in shown(run, capsys)
    beat(run, state="ended", ago=120.0)
    assert "the driver ended 2 min ago" in shown(run, capsys)


def test_a_finished_run_has_nothing_remaining(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(make_run(tmp_path / "run", [make_row(20)], saved=[20]), capsys)
    assert "now        finished: step 20 has its checkpoint" in text
    assert "remaining" not in text


def test_a_run_beyond_its_written_settings_does_not_know_its_end(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(make_run(tmp_path / "run", [make_row(25)], saved=[25]), capsys)
    assert "step       25 of ?" in text
    assert "finished" not in text


def test_the_last_job_s_arguments_say_where_the_run_ends(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [make_row(25)])
    record_job(Folders(run), "101", None, [])
    record_job(Folders(run), "102", None, ["trainer.seed=1", "trainer.max_steps=40"])
    assert read_run(run).max_steps == 40


def test_an_empty_run_folder_is_no_error(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    (run / "launch").mkdir(parents=True)
    text = shown(run, capsys)
    assert "now        nothing runs in this folder" in text
    assert "checkpoint none yet" in text


def test_the_jobs_of_a_run_with_slurm_s_reasons_in_words(
    tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    for job, after in (("101", None), ("102", "101")):
        record_job(Folders(run), job, after, [])
    slurm.queue(
        "101|RUNNING|3:12:44|4:00:00|2030-01-01T00:00:00|8|node[0-7]|None",
        "102|PENDING|0:00|4:00:00|N/A|8||Dependency",
        "999|RUNNING|0:00|4:00:00|N/A|8|node9|None",
    )
    slurm.remember(101, "JobId=101 JobName=x Restarts=2 BatchFlag=1 Reboot=0 Command=/r/launch/job.sbatch")
    (run / "logs" / "slurm-101.log").write_text("brorl 10:00:00: job 101\nbrorl 10:00:09: Ray is up on 8 nodes\n\n")
    text = shown(run, capsys)
    assert "job        101 RUNNING on node[0-7], 3:12:44 of 4:00:00, requeued 2 times\n" in text
    assert "           102 PENDING (Dependency: waits for an earlier job of the chain)\n" in text
    assert "the log's last line: brorl 10:00:09: Ray is up on 8 nodes" in text
    assert "999" not in text


def test_what_slurm_says_may_be_any_bytes(slurm: FakeSlurm) -> None:
    (slurm.state / "queue").write_bytes(b"7|PENDING|0:00|1:00|N/A|1||\xff|x\n")
    (slurm.state / "job_7").write_bytes(b"JobId=7 Restarts=\xc2\xb2 Comment=\xff\n")
    assert queued_jobs(["7"])["7"].reason == "\ufffd|x"
    assert restarts_of("7") == 0


def test_jobs_that_have_ended_are_asked_for_one_by_one(
    tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    record_job(Folders(run), "101", None, [])
    assert "slurm      has no record of 101" in shown(run, capsys)
    slurm.remember(
        101,
        "JobId=101 JobState=FAILED Reason=NonZeroExitCode RunTime=00:01:02 TimeLimit=04:00:00 ExitCode=2:0 "
        "NodeList=node0 Restarts=0",
    )
    assert "job        101 FAILED after 00:01:02 (exit code 2:0, NonZeroExitCode)" in shown(run, capsys)


def test_a_job_s_number_leads_to_its_run(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = make_run(tmp_path / "my runs" / "first")
    slurm.remember(7, f"JobId=7 JobState=RUNNING Command={run}/launch/job.sbatch trainer.seed=1 WorkDir=/x")
    slurm.remember(
        8,
        "JobId=8 JobState=RUNNING RunTime=0:01 TimeLimit=1:00 StartTime=x NumNodes=1 NodeList=n Command=/x/other.sh "
        "WorkDir=/x",
    )
    assert run_of_script(f"{run}/launch_2/job.sbatch") == run
    assert run_of_script("/x/slurm/brorl_64gpu.sh") is None
    assert find_target("7").run == run
    assert find_target("8").run is None
    with pytest.raises(ConfigError, match="9: Slurm has no record of this job"):
        find_target("9")


def test_a_job_of_a_script_is_found_by_what_it_has_noted(
    tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, noted = make_run(tmp_path / "run"), tmp_path / "jobs" / "7"
    (run / "logs").rmdir()
    monkeypatch.chdir(tmp_path)
    noted.mkdir(parents=True)
    (noted / "settings.sh").write_text(f"num_nodes=8\nrun_folder={run}\n")
    (tmp_path / "x-7.log").write_text("Ray is up\n")
    slurm.queue("7|RUNNING|0:10|4:00:00|N/A|8|node[0-7]|None")
    slurm.remember(7, f"JobId=7 Command=/x/slurm/brorl_64gpu.sh WorkDir={tmp_path} StdOut={tmp_path}/x-7.log Power=")
    for name in ("7", run):
        text = shown(name, capsys)
        assert f"run        {run}\n" in text
        assert "job        7 RUNNING on node[0-7]" in text
        assert "now        the log's last line: Ray is up" in text


def test_what_is_neither_a_run_nor_a_job_is_refused(tmp_path: Path, no_slurm: None) -> None:
    for name, message in (
        (str(tmp_path), "is no run folder"),
        ("nowhere", "Pass a run folder, or the number"),
        ("17", "no Slurm on this machine"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_target(name)


def test_json_holds_the_same(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", [make_row(3)], saved=[2])
    assert status.main([str(run), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)["state"]
    assert (state["step"], state["max_steps"], state["checkpoint"], state["step_s"]) == (3, 20, 2, 10.0)


def test_watching_ends_with_the_run(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    beat(run, state="ended")
    assert "the driver ended" in shown(run, capsys)
    assert status.main([str(run), "--watch", "5"]) == 0
    with pytest.raises(ConfigError, match="--watch 0.5"):
        status.main([str(run), "--watch", "0.5"])


def test_only_the_end_of_a_long_metrics_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(3000):
            file.write(json.dumps({"step": step, "x": "y" * 1000}) + "\n")
        file.write('{"step": 3000, "half')
    rows = last_rows(path)
    assert rows[-1]["step"] == 2999
    assert 500 < len(rows) < 1100


def test_a_row_of_metrics_holds_finite_numbers_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "reward/mean": 0.5, "time/save_s": 1e999, "time/sync_s": "x"}\n{"step": true}\n')
    assert last_rows(path) == [{"step": 1, "reward/mean": 0.5}]


def test_how_a_job_is_said() -> None:
    assert job_text(SlurmJob("1", "PENDING", start="2030-01-01T10:00:00", reason="(Priority)"), 1) == (
        "1 PENDING (Priority: other jobs go first), expected to start 2030-01-01T10:00:00, requeued once"
    )
    assert (
        job_text(SlurmJob("1", "PENDING", start="N/A", reason="QOSMaxCpuPerUserLimit"), 0)
        == "1 PENDING (QOSMaxCpuPerUserLimit)"
    )


def test_durations_as_people_say_them() -> None:
    assert [format_duration(seconds) for seconds in (-3, 2.34, 59, 95, 3_700, 90_000)] == [
        "0.0 s",
        "2.3 s",
        "59 s",
        "1 min",
        "1 h 1 min",
        "1 d 1 h",
    ]
    assert [format_duration(seconds) for seconds in (math.inf, math.nan)] == ["inf s", "nan s"]


def test_a_heartbeat_cannot_write_lines_of_its_own(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "collect\nnow        finished: step 9 has its checkpoint"
    beat = {"state": "running", "stage": said, "detail": said, "stage_s": 1, "silent_s": 1, "late": [said]}
    (tmp_path / "heartbeat.json").write_text(json.dumps({**beat, "written_at": time.time()}))
    status.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert not any("finished" in line and "collect" not in line for line in lines)


def test_folders_that_only_look_like_checkpoints_are_passed_over(tmp_path: Path) -> None:
    for name in ("step_²", "step_x9", "step_", "step_7"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / MARKER).write_text("{}")
    assert read_run(tmp_path).checkpoint == 7
    assert [path.name for path in Checkpoints(tmp_path / "checkpoints", 1).complete()] == ["step_7"]


def test_shares_without_timed_steps_are_empty() -> None:
    assert largest_stage_shares([{"step": 0, "time/validate_s": 3.0}]) == ""


def test_checkpoints_are_marked_as_training_marks_them() -> None:
    assert MARKER == marker.MARKER


def test_a_run_without_jobs_is_not_asked_of_slurm(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = make_run(tmp_path / "run")
    assert find_target(str(run)) == Target(run)


def test_the_step_of_the_exported_weights_and_a_better_base_are_named(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", [make_row(0), make_row(4)], saved=[4])
    assert "weights" not in shown(run, capsys)
    record = {"step": 4, "measure": "pass@1", "value": 0.156, "standard_error": 0.043, "base_value": 0.164}
    (run / "hf").mkdir()
    (run / "hf" / "validated.json").write_text(json.dumps({**record, "is_base_better": True}))
    line = "weights    hf/ holds step 4 (pass@1 15.6% ± 4.3%, base 16.4%: the base was better)\n"
    assert line in shown(run, capsys)
