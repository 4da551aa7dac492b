"""Settings and code in the run folder are those of the moment, come back as they were, and can be run from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from brorl_launcher.code_snapshot import CodeSnapshot, Revision
from brorl_launcher.frozen import absolute_paths, check_yaml, freeze, shell_command
from brorl_launcher.launch_folder import Folders, read_jobs, record_job
from brorl_launcher.packages import FOLDER_OF_PACKAGE, code_root

from nemo_brorl.config.data import DomainConfig
from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError

pytestmark = pytest.mark.slow

ODD = 'It\'s "five" $HOME `x` $(w) {a: 1}, # not a comment\nnext: line \\ ä'


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of three files."""
    root = tmp_path / "checkout"
    (root / "nemo_brorl").mkdir(parents=True)
    (root / "nemo_brorl" / "a.py").write_text("a = 1\n")
    (root / "b.py").write_text("b = 1\n")
    (root / ".gitignore").write_text("ignored/\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def freeze_run(run: Path, config: BroRLConfig, root: Path) -> Folders:
    folders = Folders(run)
    with CodeSnapshot(root, leave_out=run) as code:
        freeze(folders, config, code, "#!/bin/bash\n", "brorl render")
    return folders


def test_settings_come_back_from_the_frozen_yaml(tmp_path: Path, checkout: Path) -> None:
    config = load_config(
        "brorl_64gpu", ["rollouts.num_per_prompt=256", "data.tasks=[{name: gcd, config: {max_value: 60}}]"]
    )
    config.data.system_prompt = ODD
    folders = freeze_run(tmp_path / "run", config, checkout)
    assert load_config("config", [], folders.launch) == config
    assert load_config("config", ["trainer.max_steps=3"], folders.launch).trainer.max_steps == 3


@pytest.mark.parametrize("text", ["${trainer.seed}", "${nothing}"])
def test_a_text_that_yaml_would_resolve_is_refused(text: str) -> None:
    config = load_config("brorl_cpu")
    check_yaml(config)
    config.data.system_prompt = text
    with pytest.raises(ConfigError, match="do not come back from YAML"):
        check_yaml(config)


def test_a_file_s_name_cannot_break_out_of_its_line() -> None:
    assert str(Revision("abc", ("a\nreboot", "b c"))) == "abc with uncommitted changes in 'a\\nreboot', b c"


def test_a_clean_checkout_is_named_by_its_commit(tmp_path: Path, checkout: Path) -> None:
    folders = freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert (folders.launch / "revision.txt").read_text() == f"{commit}\n"
    assert (folders.code / "REVISION").read_text() == f"{commit}\n"
    assert not (folders.launch / "uncommitted.patch").exists()
    assert (folders.code / "nemo_brorl" / "a.py").read_text() == "a = 1\n"


def test_changes_that_are_not_committed_are_frozen_and_named(tmp_path: Path, checkout: Path) -> None:
    (checkout / "nemo_brorl" / "a.py").write_text("a = 2\n")
    (checkout / "b.py").unlink()
    (checkout / "nemo_brorl" / "new file.py").write_text("c = 3\n")
    (checkout / "ignored").mkdir()
    (checkout / "ignored" / "weights").write_text("x")
    before = git(checkout, "status", "--porcelain")
    folders = freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    found = sorted(str(path.relative_to(folders.code)) for path in folders.code.rglob("*") if path.is_file())
    assert found == [".gitignore", "REVISION", "nemo_brorl/a.py", "nemo_brorl/new file.py"]
    assert (folders.code / "nemo_brorl" / "a.py").read_text() == "a = 2\n"
    assert (
        "with uncommitted changes in b.py, nemo_brorl/a.py, nemo_brorl/new file.py"
        in (folders.launch / "revision.txt").read_text()
    )
    assert git(checkout, "status", "--porcelain") == before  # git's index is as it was


def test_a_change_of_equal_length_in_the_moment_of_the_commit_is_seen(tmp_path: Path, checkout: Path) -> None:
    """Git compares the bytes of a file that is as old as git's list, or newer."""
    git(checkout, "config", "core.trustctime", "false")  # a test can set a file's time, not that of its inode
    changed = checkout / "nemo_brorl" / "a.py"
    moment = (10**9, 10**9)
    os.utime(changed, moment)
    git(checkout, "add", "-A")
    changed.write_text("a = 2\n")
    for path in (changed, checkout / ".git" / "index"):
        os.utime(path, moment)
    folders = freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    assert (folders.code / "nemo_brorl" / "a.py").read_text() == "a = 2\n"


def test_the_patch_makes_the_frozen_code_of_its_commit(tmp_path: Path, checkout: Path) -> None:
    (checkout / "nemo_brorl" / "a.py").write_text("a = 2\n")
    (checkout / "conf").mkdir()
    (checkout / "conf" / "data.bin").write_bytes(bytes(range(256)))
    folders = freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    git(checkout, "stash", "-uq")
    git(checkout, "apply", str(folders.launch / "uncommitted.patch"))
    assert (checkout / "nemo_brorl" / "a.py").read_text() == "a = 2\n"
    assert (checkout / "conf" / "data.bin").read_bytes() == bytes(range(256))


def test_a_run_folder_inside_the_checkout_is_no_code(checkout: Path) -> None:
    (checkout / "my_run").mkdir()
    (checkout / "my_run" / "metrics.jsonl").write_text("{}\n")
    folders = freeze_run(checkout / "my_run", BroRLConfig(), checkout)
    assert not (folders.code / "my_run").exists()
    assert "uncommitted" not in (folders.code / "REVISION").read_text()


def test_new_files_too_large_to_be_code_are_refused(tmp_path: Path, checkout: Path) -> None:
    with (checkout / "nemo_brorl" / "weights.bin").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(ConfigError, match=r"65 MiB, nemo_brorl/weights.bin most of all.*\.gitignore"):
        freeze_run(tmp_path / "run", BroRLConfig(), checkout)


def installed_package(root: Path) -> Path:
    """A folder of installed packages with ours in it."""
    for folder in (*FOLDER_OF_PACKAGE, "nemo_brorl/core", "nemo_brorl/__pycache__"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.py").write_text("a = 1\n")
    (root / "another_package.py").write_text("b = 1\n")
    return root


def check_copy(folders: Folders) -> None:
    assert (folders.launch / "revision.txt").read_text() == "unknown (not a git checkout)\n"
    assert {path.name for path in folders.code.iterdir()} == {
        "nemo_brorl", "launcher", "lab", "graders", "conf", "REVISION",
    }  # fmt: skip
    assert {path.name for path in (folders.code / "nemo_brorl").iterdir()} == {"a.py", "core"}
    for package, place in FOLDER_OF_PACKAGE.items():
        assert (folders.code / place / package / "a.py").is_file()


def test_an_installed_package_is_copied(tmp_path: Path) -> None:
    check_copy(freeze_run(tmp_path / "run", BroRLConfig(), installed_package(tmp_path / "site-packages")))


def test_a_package_that_is_installed_inside_somebody_s_repository_is_copied(tmp_path: Path, checkout: Path) -> None:
    root = installed_package(checkout / "ignored" / "site-packages")
    check_copy(freeze_run(tmp_path / "run", BroRLConfig(), root))


def test_a_source_tree_without_git_is_copied(tmp_path: Path) -> None:
    for package, place in FOLDER_OF_PACKAGE.items():
        (tmp_path / "tree" / place / package).mkdir(parents=True)
        (tmp_path / "tree" / place / package / "a.py").write_text("a = 1\n")
    folders = freeze_run(tmp_path / "run", BroRLConfig(), tmp_path / "tree")
    for package, place in FOLDER_OF_PACKAGE.items():
        assert (folders.code / place / package / "a.py").is_file()


def test_a_second_launch_keeps_the_first_one(tmp_path: Path, checkout: Path) -> None:
    folders = freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    record_job(folders, "1", None, [])
    freeze_run(tmp_path / "run", BroRLConfig(), checkout)
    record_job(folders, "2", "1", ["trainer.max_steps=3"])
    assert [path.name for path in folders.all_launches()] == ["launch_1", "launch"]
    assert folders.job_ids() == ["1", "2"]


def test_a_half_written_row_of_jobs_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"job": "1"}) + '\n{"job": "2')
    assert read_jobs(tmp_path / "jobs.jsonl") == [{"job": "1"}]


@pytest.mark.parametrize("job", ["--help", "-M", "x", "", "1,2", "²", 1])
def test_a_job_without_a_number_is_no_job(job: object, tmp_path: Path) -> None:
    """Slurm's commands get the number as an argument."""
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"job": job}) + "\n" + json.dumps({"job": "1"}))
    assert read_jobs(tmp_path / "jobs.jsonl") == [{"job": "1"}]


def test_relative_paths_are_those_of_the_folder_it_was_called_in(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = BroRLConfig()
    config.policy.model, config.data.path, config.exp_manager.explicit_log_dir = (
        "model",
        "../data/*.parquet",
        "runs/first",
    )
    config.data.domains = [DomainConfig(name="maths", path="maths.jsonl")]
    absolute = absolute_paths(config, tmp_path)
    assert absolute.policy.model == f"{tmp_path}/model"
    assert absolute.data.path == f"{tmp_path.parent}/data/*.parquet"
    assert absolute.data.domains[0].path == f"{tmp_path}/maths.jsonl"
    assert absolute.exp_manager.explicit_log_dir == f"{tmp_path}/runs/first"
    assert absolute.data.held_out_path is None


def test_the_name_of_a_model_stays_a_name(tmp_path: Path) -> None:
    config = BroRLConfig()
    config.policy.model = "Qwen/Qwen3-0.6B"
    assert absolute_paths(config, tmp_path).policy.model == "Qwen/Qwen3-0.6B"


def test_teachers_are_found_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = load_config("brorl_cpu", ["algorithm.kl.teacher=model"])
    assert absolute_paths(config, tmp_path).algorithm.kl.teacher == f"{tmp_path}/model"
    config = load_config("brorl_cpu", ["algorithm.kl.teachers={a: model, b: Qwen/Qwen3-0.6B}"])
    assert absolute_paths(config, tmp_path).algorithm.kl.teachers == {"a": f"{tmp_path}/model", "b": "Qwen/Qwen3-0.6B"}


def test_the_command_can_be_pasted_into_a_shell() -> None:
    arguments = ["submit", "data.system_prompt='a $b'", "x=[1, 2]"]
    command = shell_command(arguments, Path("/shared/my checkout"))
    said = subprocess.run(
        ["bash", "-c", f'cd() {{ echo "$1"; }}; brorl() {{ printf \'%s\\n\' "$@"; }}; {command}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["/shared/my checkout", *arguments]


def test_python_takes_the_frozen_code_and_its_revision(tmp_path: Path) -> None:
    """As the job does: PYTHONPATH names it, and a checkout of the same packages is installed, or is the current
    folder."""
    folders = Folders(tmp_path / "run")
    with CodeSnapshot(code_root(), leave_out=folders.run) as code:
        code.write(folders.code)
        revision = str(code.revision)
    script = (
        "import nemo_brorl.training.run_folder as a, brorl_launcher.slurm as b; print(a.__file__); "
        "print(b.__file__); print(a.code_revision())"
    )
    path = os.pathsep.join(str(folders.code / place) for place in FOLDER_OF_PACKAGE.values())
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=code_root(), env=environment
    )
    assert said.stdout.splitlines() == [
        f"{folders.code}/nemo_brorl/training/run_folder.py",
        f"{folders.code}/launcher/brorl_launcher/slurm.py",
        revision,
    ]
