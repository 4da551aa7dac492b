"""The text of a job: what Slurm reads of it, and what bash makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from brorl_launcher.code_snapshot import Revision
from brorl_launcher.job_script import JobPlan, job_script
from brorl_launcher.launch_folder import Folders
from brorl_launcher.site import Site

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError


def make_job(run: Path, site: Site, nodes: int = 8, gpus: int = 8) -> JobPlan:
    config = BroRLConfig()
    config.trainer.num_nodes, config.trainer.gpus_per_node, config.trainer.max_steps = nodes, gpus, 30
    return JobPlan(Folders(run), config, site, "/env/bin/python", Revision("abc"))


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_what_slurm_is_asked_for() -> None:
    site = Site(
        partition="gpu",
        account="me",
        time="1-00:00:00",
        gpu_type="h100",
        spares=1,
        constraint="h100&ib",
        mail_user="me@x.org",
    )
    assert options(job_script(make_job(Path("/shared/first"), site))) == [
        "--job-name=first",
        "--partition=gpu",
        "--account=me",
        '--constraint="h100&ib"',
        "--nodes=9",  # 8 that train and a spare one
        "--ntasks-per-node=1",
        "--gres=gpu:h100:8",
        "--mem=0",
        "--exclusive",
        "--time=1-00:00:00",
        "--signal=B:USR1@300",
        "--requeue",
        "--open-mode=append",
        "--output=/shared/first/logs/slurm-%j.log",
        "--mail-user=me@x.org",
        "--mail-type=FAIL,REQUEUE,END",
    ]


def test_gpus_are_asked_for_as_the_site_wants() -> None:
    asked = {
        request: [
            option for option in options(job_script(make_job(Path("/r"), Site(gpu_request=request)))) if "gpu" in option
        ]
        for request in ("gres", "gpus_per_node", "none")
    }
    assert asked == {"gres": ["--gres=gpu:8"], "gpus_per_node": ["--gpus-per-node=8"], "none": []}


def test_a_run_on_cpu_asks_for_no_gpu() -> None:
    assert not any("gpu" in option for option in options(job_script(make_job(Path("/r"), Site(), nodes=2, gpus=0))))


def test_a_site_that_shares_nodes_and_does_not_requeue() -> None:
    site = Site(exclusive=False, memory="64G", cpus_per_node=16, requeue=False, options=["--switches=1"])
    text = job_script(make_job(Path("/r"), site))
    assert {"--mem=64G", "--cpus-per-task=16", "--no-requeue", "--switches=1"} <= set(options(text))
    assert "--exclusive" not in options(text)


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a$b", "a%b", "a,b", "a:b", "a\nb", "ä"])
def test_a_run_folder_that_would_be_misread_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="set a folder of letters, digits"):
        job_script(make_job(Path("/shared") / name, Site()))


VALUES = {"A": "$HOME `x` \"y\" 'z' $(w) \\ #", "B": "", "C": "ä*?[1]"}
PRINTING_JOB = r"""
[[ $- == *e* ]] && echo "errexit is on"
for name in BRORL_ROOT BRORL_CONFIG BRORL_RUN BRORL_PYTHON BRORL_CONTAINER BRORL_MOUNTS BRORL_SPARES \
  BRORL_MAX_RESTARTS BRORL_GRACE_S BRORL_JOB_FOLDER A B C FROM_SETUP; do printf '%s=%s\0' "$name" "${!name-unset}"; done
for argument in "$@"; do printf 'argument=%s\0' "$argument"; done
exit "${CODE:-0}"
"""


def run_job(job: JobPlan, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Run the script with a job.sh that prints what it is given."""
    folder = job.folders.code / "launcher" / "brorl_launcher" / "job"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.sh").write_text(PRINTING_JOB)
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "17", **variables}
    done = subprocess.run(
        ["bash", "-s", "--", *arguments],
        input=job_script(job),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.split("\0")[:-1] or [done.stdout]


def test_bash_hands_on_every_value_as_it_is(tmp_path: Path) -> None:
    site = Site(
        container="image.sqsh", mounts=["/data", "/a:/b"], spares=2, max_restarts=5, signal_s=600,
        setup=["export FROM_SETUP=$((1 + 1))"],
        environment=VALUES,
    )  # fmt: skip
    arguments = [
        "data.system_prompt='say \"$HOME\" and `x`'",
        "data.tasks=[{name: gcd}, {name: leg_counting}]",
        "a=b c",
        "",
    ]
    code, said = run_job(make_job(tmp_path, site), *arguments)
    assert code == 0
    assert said == [
        f"BRORL_ROOT={tmp_path}/launch/code",
        f"BRORL_CONFIG={tmp_path}/launch/config.yaml",
        f"BRORL_RUN={tmp_path}",
        "BRORL_PYTHON=/env/bin/python",
        "BRORL_CONTAINER=image.sqsh",
        "BRORL_MOUNTS=/data:/data,/a:/b",
        "BRORL_SPARES=2",
        "BRORL_MAX_RESTARTS=5",
        "BRORL_GRACE_S=540",
        f"BRORL_JOB_FOLDER={tmp_path}/jobs/17",
        *(f"{name}={value}" for name, value in VALUES.items()),
        "FROM_SETUP=2",
        *(f"argument={argument}" for argument in arguments),
    ]


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    site = Site(container="image.sqsh", mounts=["/data"], setup=["module load cuda"], environment={"A": "1 2"})
    script = job_script(make_job(Path("/shared/first"), site))
    done = subprocess.run(
        ["shellcheck", "-e", "SC1091", "-"], input=script, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


def test_what_is_not_given_is_left_to_the_job(tmp_path: Path) -> None:
    _, said = run_job(make_job(tmp_path, Site()))
    assert {"BRORL_CONTAINER=unset", "BRORL_MOUNTS=unset", "BRORL_MAX_RESTARTS=unset"} <= set(said)


def test_a_finished_run_ends_the_job_at_once_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    job = make_job(tmp_path, Site())
    (tmp_path / "checkpoints" / "step_30").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_30" / "COMPLETE").touch()
    assert run_job(job) == (0, ["the run has its last checkpoint, step 30: nothing to do\n"])
    assert run_job(job, "trainer.max_steps=40")[1][-1] == "argument=trainer.max_steps=40"


def test_a_mistake_in_the_input_ends_the_rest_of_a_chain(tmp_path: Path) -> None:
    job = make_job(tmp_path, Site())
    assert run_job(job, SLURM_JOB_ID="1", CODE="2")[0] == 2
    code, said = run_job(job, SLURM_JOB_ID="2", BRORL_CHAIN_AFTER="1")
    assert code == 2
    assert "job 1, before this one, found a mistake in its input" in said[0]
    assert run_job(job, SLURM_JOB_ID="3", BRORL_CHAIN_AFTER="2")[0] == 2
    assert run_job(job, SLURM_JOB_ID="4")[0] == 0


def test_another_failure_does_not_end_a_chain(tmp_path: Path) -> None:
    job = make_job(tmp_path, Site())
    assert run_job(job, SLURM_JOB_ID="1", CODE="75")[0] == 75
    assert run_job(job, SLURM_JOB_ID="2", BRORL_CHAIN_AFTER="1")[0] == 0
