"""From the command line to a job in the queue: what is written, what is refused before anything is, chains, second
tries."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from brorl_launcher import render, submit

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import CheckpointError, ConfigError, ResourceError
from tests.support.fake_slurm import FakeSlurm

pytestmark = pytest.mark.slow

MODEL = "policy.model=Qwen/Qwen2.5-1.5B"


def arguments(run: Path, *more: str) -> list[str]:
    return [MODEL, "--run", str(run), *more]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_dry_run_prints_the_job_and_writes_nothing(
    tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render.main(arguments(tmp_path / "run", "--dry-run", "--partition", "batch")) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n")
    assert "#SBATCH --partition=batch" in said.out
    assert "Slurm would take it: Job 7 to start at 2030-01-01" in said.err
    assert slurm.tested == said.out
    assert not (tmp_path / "run").exists()


def test_render_freezes_what_the_job_needs(tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    prompt = "data.system_prompt='say \"$HOME\", `x`'"
    given = arguments(run, prompt, "data.tasks=[{name: gcd}]", "rollouts.num_per_prompt=64")
    assert render.main(given) == 0
    assert capsys.readouterr().out == f"{run}/launch/job.sbatch\n"
    assert {"code", "command.txt", "config.yaml", "job.sbatch", "revision.txt"} <= set(files(run / "launch"))
    assert files(run / "logs") == []
    config = load_config("config", [], run / "launch")
    assert (config.data.system_prompt, config.rollouts.num_per_prompt) == ('say "$HOME", `x`', 64)
    assert config.exp_manager.explicit_log_dir == str(run)
    assert "brorl render" in (run / "launch" / "command.txt").read_text()
    assert (run / "launch" / "code" / "launcher" / "brorl_launcher" / "job" / "job.sh").is_file()


def test_submit_says_where_to_look(tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert submit.main(arguments(run)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job        101",
        f"run folder {run}",
        f"log        {run}/logs/slurm-101.log",
        f"status     brorl status {run}",
        f"attach     brorl attach {run}",
        "cancel     scancel 101",
    ]
    assert slurm.submitted(101) == ["--parsable", f"{run}/launch/job.sbatch", "after="]
    [row] = [json.loads(line) for line in (run / "launch" / "jobs.jsonl").read_text().splitlines()]
    assert (row["job"], row["after"]) == ("101", None)


def test_the_jobs_of_a_chain_come_after_each_other(
    tmp_path: Path, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert submit.main(arguments(run, "--chain", "3")) == 0
    assert "job        101, then 102, 103" in capsys.readouterr().out
    script = f"{run}/launch/job.sbatch"
    assert slurm.submitted(102) == ["--parsable", "--dependency=afterany:101", script, "after=101"]
    assert slurm.submitted(103) == ["--parsable", "--dependency=afterany:102", script, "after=102"]


def test_a_run_with_a_job_in_the_queue_is_left_alone(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = tmp_path / "run"
    submit.main(arguments(run))
    slurm.queue("101|PENDING|0:00|4:00:00|N/A|1||Priority", "5|RUNNING|0:01|1:00|N/A|1|node0|None")
    before = files(run)
    for again in (arguments(run), ["--again", str(run)]):
        with pytest.raises(CheckpointError, match=r"a job in the queue already: 101 \(PENDING\)"):
            submit.main(again)
    with pytest.raises(CheckpointError, match="scancel 101"):
        render.main(arguments(run))
    assert files(run) == before


def test_a_run_that_is_going_on_without_slurm_is_left_alone(tmp_path: Path, no_slurm: None) -> None:
    beat = {
        "state": "running",
        "stage": "update",
        "detail": "",
        "stage_s": 1,
        "silent_s": 0,
        "written_at": time.time(),
        "late": [],
        "process": 1,
    }
    (tmp_path / "heartbeat.json").write_text(json.dumps(beat))
    with pytest.raises(CheckpointError, match=r"is in use: its heartbeat.json was written \d+ s ago, at stage update"):
        render.main(arguments(tmp_path))


def test_once_the_job_has_ended_the_same_code_goes_on(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = tmp_path / "run"
    submit.main(arguments(run))
    slurm.queue("101|COMPLETED|0:10|4:00:00|N/A|1|node0|None")
    assert submit.main(["--again", str(run), "trainer.max_steps=40"]) == 0
    assert slurm.submitted(102) == ["--parsable", f"{run}/launch/job.sbatch", "trainer.max_steps=40", "after="]
    assert files(run) == ["launch", "logs"]


def test_again_takes_no_settings_that_it_would_not_use(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = tmp_path / "run"
    submit.main(arguments(run))
    with pytest.raises(ConfigError, match="--time would change nothing"):
        submit.main(["--again", str(run), "--time", "10:00:00"])
    with pytest.raises(ConfigError, match=r"there is no .*nowhere/launch/job.sbatch"):
        submit.main(["--again", str(tmp_path / "nowhere")])


def test_a_finished_run_is_not_submitted_again(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = tmp_path / "run"
    submit.main(arguments(run, "trainer.max_steps=3"))
    (run / "checkpoints" / "step_3").mkdir(parents=True)
    (run / "checkpoints" / "step_3" / "COMPLETE").touch()
    with pytest.raises(ConfigError, match=r"set trainer.max_steps=N with a larger N"):
        submit.main(["--again", str(run)])


def test_a_job_that_slurm_would_not_take_is_not_written(tmp_path: Path, slurm: FakeSlurm) -> None:
    slurm.refuse(
        "sbatch: error: Node count specification invalid\nallocation failure: Node count specification invalid"
    )
    with pytest.raises(ResourceError, match=r"would not take this job: Node count specification invalid"):
        render.main(arguments(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert render.main(arguments(tmp_path / "run", "--no-test")) == 0


def test_a_chain_that_breaks_off_names_what_was_submitted(tmp_path: Path, slurm: FakeSlurm) -> None:
    run = tmp_path / "run"
    render.main(arguments(run))
    (slurm.commands / "sbatch").write_text(
        (slurm.commands / "sbatch").read_text().replace("next=", "[[ -e $state/submitted_102 ]] && exit 1\nnext=")
    )
    with pytest.raises(ResourceError, match=r"101, 102 are submitted and stay: `scancel 101 102`"):
        submit.main(["--again", str(run), "--chain", "4"])
    assert len((run / "launch" / "jobs.jsonl").read_text().splitlines()) == 2


def test_a_partition_that_the_cluster_lacks_is_named_with_those_there_are(tmp_path: Path, slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match=r"partition=bach: this cluster has batch, high"):
        render.main(arguments(tmp_path / "run", "--partition", "bach"))


def test_without_slurm_only_render_works(tmp_path: Path, no_slurm: None) -> None:
    with pytest.raises(ResourceError, match=r"sbatch is not there.*brorl render"):
        submit.main(arguments(tmp_path / "run"))


def test_a_run_that_does_not_fit_is_refused_unless_it_is_insisted_on(tmp_path: Path, no_slurm: None) -> None:
    small = ["--config-name", "brorl_64gpu", "--run", str(tmp_path / "run"), "--gpu-memory-gib", "10"]
    with pytest.raises(
        ResourceError, match=r"this run does not fit: .*10\.0 GiB.*brorl plan --config-name brorl_64gpu"
    ):
        render.main(small)
    assert not (tmp_path / "run").exists()
    assert render.main([*small, "--no-plan", "--dry-run"]) == 0


def test_settings_of_another_run_are_refused_before_the_queue(tmp_path: Path, no_slurm: None) -> None:
    run = tmp_path / "run"
    render.main(arguments(run))
    (run / "config.yaml").write_text((run / "launch" / "config.yaml").read_text())  # as training does
    with pytest.raises(CheckpointError, match="trainer.seed was 1, now 2"):
        render.main(arguments(run, "trainer.seed=2"))
    assert render.main(arguments(run, "trainer.max_steps=40")) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["trainer.max_stepz=1"], "Did you mean trainer.max_steps"),
        (["exp_manager.explicit_log_dir=x"], "set the same thing: leave one out"),
        (["exp_manager.resume_if_exists=false"], "would keep a requeued job from going on"),
        (["--site", "nowhere"], "there is no such file"),
        (["--spares", "many"], "spares='many'"),
        (["--env", "NAME"], "--env NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    tmp_path: Path, no_slurm: None, more: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        render.main(arguments(tmp_path / "run", *more))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_container_that_does_not_see_the_model_is_pointed_out(
    tmp_path: Path, no_slurm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "--run",
        str(tmp_path / "run"),
        "--dry-run",
        "--container",
        "i.sqsh",
        "--mount",
        "/shared/data",
        "policy.model=/shared/models/m",
    ]
    assert render.main(given) == 0
    said = capsys.readouterr()
    assert "policy.model=/shared/models/m is under none of the mounts" in said.err
    assert "export BRORL_MOUNTS=/shared/data:/shared/data" in said.out
    assert "BRORL_PYTHON" not in said.out  # the container has its own


def test_a_job_with_a_misspelt_reward_is_refused_and_in_a_container_noted(
    tmp_path: Path, slurm: FakeSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    given = arguments(tmp_path / "run", "data.verifier=no_rewards:score")
    for command in (submit, render):
        with pytest.raises(ConfigError, match="data.verifier=no_rewards:score: there is no module"):
            command.main(given)
    assert not (tmp_path / "run").exists()
    assert render.main([*given, "--dry-run", "--container", "image.sqsh"]) == 0
    assert "not imported here: data.verifier=no_rewards:score" in caplog.text


def test_a_reward_below_the_job_s_python_path_is_found(tmp_path: Path, slurm: FakeSlurm) -> None:
    (tmp_path / "job_rewards.py").write_text("def score(payload, response): ...\n")
    given = arguments(tmp_path / "run", "--dry-run", "data.verifier=job_rewards:score")
    assert render.main([*given, "--env", f"PYTHONPATH={tmp_path}"]) == 0
    with pytest.raises(ConfigError, match="there is no module job_rewards"):
        render.main(given)
