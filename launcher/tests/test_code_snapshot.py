"""What of a checkout is frozen with a job, what is refused, and what git's failures look like."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brorl_launcher import render
from brorl_launcher.code_snapshot import CodeSnapshot
from brorl_launcher.find_run import find_target, job_ids, refuse_live
from brorl_launcher.frozen import freeze
from brorl_launcher.launch_folder import Folders, record_job
from brorl_launcher.run_state import max_steps

from nemo_brorl.__main__ import main
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.slow

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit, in which `runs/` is ignored and does not exist."""
    root = tmp_path / "checkout"
    for name in ("nemo_brorl/a.py", "launcher/brorl_launcher/a.py", "conf/config.yaml", "b.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("a: 1\n")
    (root / ".gitignore").write_text("runs/\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def freeze_run(root: Path, run: Path) -> Folders:
    folders = Folders(run)
    with CodeSnapshot(root, leave_out=run) as code:
        freeze(folders, BroRLConfig(), code, "#!/bin/bash\n", "brorl render")
    return folders


def frozen_files(folders: Folders) -> list[str]:
    return sorted(str(path.relative_to(folders.code)) for path in folders.code.rglob("*") if path.is_file())


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


COMMITTED = [".gitignore", "REVISION", "b.py", "conf/config.yaml", "launcher/brorl_launcher/a.py", "nemo_brorl/a.py"]


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize(
    "run",
    [
        "runs/one",
        "runs",
        "runs/one/two",
        "experiments/one",
        "nemo_brorl/runs/one",
        "nemo_brorl/one",
        "exp[a-z]*/one",
        "link/one",
        "link_inside/one",
        "launcher",
        ".",
        "..",
    ],
)
def test_a_run_folder_is_no_code_wherever_it_is(checkout: Path, run: str, is_used: bool) -> None:
    (checkout.parent / "elsewhere").mkdir()
    (checkout / "link").symlink_to("../elsewhere")
    (checkout / "link_inside").symlink_to("runs")
    if is_used or run.startswith("link"):
        (checkout / "runs").mkdir()
    if is_used:
        (checkout / run).mkdir(parents=True, exist_ok=True)
        (checkout / run / "metrics.jsonl").write_text("{}\n")
        (checkout / "runs" / "other").write_text("x")
    for _ in range(2):
        folders = freeze_run(checkout, checkout / run)
        assert frozen_files(folders) == COMMITTED
        assert "uncommitted" not in (folders.code / "REVISION").read_text()


def test_tracked_files_of_a_run_folder_stay_those_of_the_commit(checkout: Path) -> None:
    (checkout / "runs").mkdir()
    (checkout / "runs" / "config.yaml").write_text("old\n")
    git(checkout, "add", "-f", "runs/config.yaml")
    git(checkout, "commit", "-qm", "a run")
    (checkout / "runs" / "config.yaml").write_text("new\n")
    folders = freeze_run(checkout, checkout / "runs")
    assert (folders.code / "runs" / "config.yaml").read_text() == "old\n"


def test_changes_are_seen_where_the_run_folder_is_the_checkout(checkout: Path) -> None:
    (checkout / "nemo_brorl" / "a.py").write_text("a: 2\n")
    (checkout / "nemo_brorl" / "new.py").write_text("b: 2\n")
    folders = freeze_run(checkout, checkout)
    assert (folders.code / "nemo_brorl" / "a.py").read_text() == "a: 2\n"
    assert (folders.code / "nemo_brorl" / "new.py").read_text() == "b: 2\n"


def test_the_code_may_be_a_folder_of_a_larger_repository(tmp_path: Path, checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    (tmp_path / "mine.txt").write_text("x")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    (checkout / "nemo_brorl" / "new.py").write_text("b: 2\n")
    (checkout / "runs" / "one").mkdir(parents=True)
    folders = freeze_run(checkout, checkout / "runs" / "one")
    assert frozen_files(folders) == sorted([*COMMITTED, "nemo_brorl/new.py"])


# ---- failures of git


def overwrite_index(root: Path) -> None:
    (root / ".git" / "index").write_bytes(b"no index" * 20)


def truncate_index(root: Path) -> None:
    (root / ".git" / "index").write_bytes(b"DIRC")


def lose_objects(root: Path) -> None:
    shutil.rmtree(root / ".git" / "objects")
    (root / ".git" / "objects").mkdir()


def lose_a_file(root: Path) -> None:
    """Git does not read a file again that is older than its index."""
    for path in (*root.rglob("*.py"), *root.rglob("*.yaml"), root / ".gitignore"):
        os.utime(path, (10**9, 10**9))
    git(root, "add", "-A")
    name = git(root, "rev-parse", "HEAD:b.py").strip()
    (root / ".git" / "objects" / name[:2] / name[2:]).unlink()


def lose_head(root: Path) -> None:
    (root / ".git" / "HEAD").unlink()


def commit_nothing(root: Path) -> None:
    shutil.rmtree(root / ".git")
    git(root, "init", "-q")
    git(root, "add", "-A")


def lose_the_repository_of_a_worktree(root: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / ".git").write_text("gitdir: /not/there\n")


def give_away(root: Path) -> None:
    for path in (root, root / ".git"):
        os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (overwrite_index, "bad signature"),
        (truncate_index, "index file smaller than expected"),
        (lose_objects, "fatal: "),
        (lose_a_file, "error: "),
        (lose_head, "fatal: not a git repository"),
        (commit_nothing, "fatal: Needed a single revision"),
        (lose_the_repository_of_a_worktree, "fatal: not a git repository: /not/there"),
        pytest.param(give_away, "fatal: detected dubious ownership", marks=needs_root),
    ],
)
def test_a_failure_of_git_is_one_message_with_its_own_words(
    checkout: Path,
    tmp_path: Path,
    no_slurm: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[Path], None],
    words: str,
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    break_it(checkout)
    monkeypatch.setattr(render, "code_root", lambda: checkout)
    arguments = ["brorl", "render", "policy.model=a/b", "--no-plan", "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: the code in {checkout} cannot be frozen with the job. `git -C {checkout} ")
    assert words in said
    assert not (tmp_path / "run").exists()


def test_a_checkout_without_git_is_not_taken_for_an_installed_package(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/not/there")
    with pytest.raises(ConfigError, match=r"git checkout, but git does not start: .*'git'. Install it"):
        freeze_run(checkout, checkout / "runs" / "one")
    shutil.rmtree(checkout / ".git")
    folders = freeze_run(checkout, checkout / "runs" / "one")
    assert (folders.code / "REVISION").read_text() == "unknown (not a git checkout)\n"


@needs_root
def test_git_s_advice_on_a_checkout_of_another_user_helps(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(checkout)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    git(checkout, "config", "--global", "--add", "safe.directory", str(checkout))
    assert frozen_files(freeze_run(checkout, checkout / "runs" / "one")) == COMMITTED


def test_a_lock_that_git_has_left_is_no_obstacle(checkout: Path) -> None:
    (checkout / ".git" / "index.lock").touch()
    (checkout / "b.py").write_text("a: 2\n")
    folders = freeze_run(checkout, checkout / "runs" / "one")
    assert (folders.code / "b.py").read_text() == "a: 2\n"


def test_names_that_are_no_text_are_frozen(checkout: Path) -> None:
    name = os.fsdecode(b"nemo_brorl/\xff\n.py")
    (checkout / name).write_text("a: 2\n")
    folders = freeze_run(checkout, checkout / "runs" / "one")
    assert (folders.code / name).read_text() == "a: 2\n"
    assert r"'nemo_brorl/\udcff\n.py'" in (folders.code / "REVISION").read_text()


# ---- new files


def test_new_files_that_are_no_code_are_left_out_and_named(
    checkout: Path,
    tmp_path: Path,
    no_slurm: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("my_reward.py", ".env", "data/x.jsonl", "data/y.jsonl", "conf/mine.yaml"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text("a: 2\n")
    git(tmp_path, "clone", "-q", str(checkout), str(checkout / "nemo_brorl" / "theirs"))
    monkeypatch.setattr(render, "code_root", lambda: checkout)
    assert render.main(["policy.model=a/b", "--no-plan", "--run", str(tmp_path / "run")]) == 0
    assert (
        "note: new to git and not frozen, because only new files of packages and conf/ are: .env, data/, my_reward.py, "
        "nemo_brorl/theirs/. `git add` what the job needs, or put it on PYTHONPATH of every node\n"
    ) in capsys.readouterr().err
    folders = Folders(tmp_path / "run")
    assert frozen_files(folders) == sorted([*COMMITTED, "conf/mine.yaml"])
    assert "# Left out: new files .env, data/, my_reward.py, nemo_brorl/theirs/\n" in folders.script.read_text()
    git(checkout, "add", "my_reward.py")
    assert "my_reward.py" in frozen_files(freeze_run(checkout, tmp_path / "run"))


@pytest.mark.parametrize(
    "name",
    [
        "nemo_brorl/.env",
        "nemo_brorl/.ENV.local",
        "nemo_brorl/.envrc",
        "nemo_brorl/.env/a",
        "conf/.netrc",
        "conf/.git-credentials",
        "conf/a.pem",
        "conf/A.KEY",
        "launcher/brorl_launcher/id_rsa",
        "launcher/brorl_launcher/id_ed25519.pub",
    ],
)
def test_a_file_with_the_name_of_a_secret_is_refused(checkout: Path, tmp_path: Path, name: str) -> None:
    path = checkout / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("secret")
    with pytest.raises(ConfigError) as caught:
        freeze_run(checkout, tmp_path / "run")
    assert str(caught.value).startswith(f"{name}: a file of such a name holds a secret")
    git(checkout, "add", "-f", name)  # not by this either
    with pytest.raises(ConfigError, match="holds a secret"):
        freeze_run(checkout, tmp_path / "run")
    git(checkout, "rm", "-q", "--cached", name)
    (checkout / ".git" / "info" / "exclude").write_text(f"/{name}\n")
    folders = freeze_run(checkout, tmp_path / "run")
    assert frozen_files(folders) == COMMITTED
    assert not (folders.launch / "uncommitted.patch").exists()


def test_a_committed_file_with_the_name_of_a_secret_may_not_change(checkout: Path, tmp_path: Path) -> None:
    (checkout / ".env").write_text("HOST=example.org\n")
    git(checkout, "add", ".env")
    git(checkout, "commit", "-qm", "two")
    assert ".env" in frozen_files(freeze_run(checkout, tmp_path / "run"))
    (checkout / ".env").write_text("KEY=secret\n")
    with pytest.raises(
        ConfigError, match=r"^\.env: a file of such a name holds a secret.* Move it out of the checkout"
    ):
        freeze_run(checkout, tmp_path / "run")
    (checkout / ".env").unlink()  # moved
    assert frozen_files(freeze_run(checkout, tmp_path / "run")) == COMMITTED


def test_a_secret_in_a_source_tree_without_git_is_refused(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / ".git")
    (checkout / "nemo_brorl" / ".env").write_text("secret")
    with pytest.raises(ConfigError, match=r"^nemo_brorl/\.env: "):
        freeze_run(checkout, tmp_path / "run")


def test_new_files_that_the_group_may_not_read_are_refused(checkout: Path, tmp_path: Path) -> None:
    private = checkout / "nemo_brorl" / "mine.py"
    private.write_text("a: 2\n")
    private.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        freeze_run(checkout, tmp_path / "run")
    assert str(caught.value) == (
        "nemo_brorl/mine.py: new to git and without rights for the group, so not frozen with the code. `git add` or "
        "`chmod g+r` what is code, and name the rest in .gitignore"
    )
    assert not (tmp_path / "run").exists()
    private.chmod(0o640)
    assert "nemo_brorl/mine.py" in frozen_files(freeze_run(checkout, tmp_path / "run"))
    private.chmod(0o600)
    git(checkout, "add", str(private))
    assert mode(freeze_run(checkout, tmp_path / "run").code / "nemo_brorl" / "mine.py") == 0o600


def test_a_checkout_of_a_user_whose_files_are_all_private_is_frozen(checkout: Path, tmp_path: Path) -> None:
    """As with a umask of 077. The tutorial of a first cluster job begins with a new file in conf/."""
    (checkout / "nemo_brorl" / "a.py").write_text("a: 2\n")
    (checkout / "conf" / "mine.yaml").write_text("a: 2\n")
    for name in (*COMMITTED, "conf/mine.yaml"):
        if name != "REVISION":
            (checkout / name).chmod(0o600)
            (checkout / name).parent.chmod(0o700)
    folders = freeze_run(checkout, tmp_path / "run")
    assert frozen_files(folders) == sorted([*COMMITTED, "conf/mine.yaml"])
    assert mode(folders.code / "conf" / "mine.yaml") == 0o600


# ---- rights


def test_the_rights_of_files_are_kept(checkout: Path, tmp_path: Path) -> None:
    modes = {"nemo_brorl/a.py": 0o640, "b.py": 0o775, "conf": 0o750, "conf/config.yaml": 0o444, "conf/new.sh": 0o750}
    (checkout / "conf" / "new.sh").write_text("true\n")
    (checkout / "conf" / "link.sh").symlink_to("new.sh")
    for name, rights in modes.items():
        (checkout / name).chmod(rights)
    folders = freeze_run(checkout, tmp_path / "run")
    assert {name: mode(folders.code / name) for name in modes} == modes
    assert (folders.code / "conf" / "link.sh").readlink() == Path("new.sh")


class WatchedCode(CodeSnapshot):
    """Notes the rights of the launch folder at the moment when code is written into it."""

    def write(self, folder: Path) -> None:
        self.rights = mode(folder.parent)
        super().write(folder)


def test_only_its_owner_enters_a_launch_folder(checkout: Path, tmp_path: Path) -> None:
    folders = freeze_run(checkout, tmp_path / "run")
    assert mode(folders.launch) == 0o700
    folders.launch.chmod(0o755)  # as earlier versions made it
    with WatchedCode(checkout, leave_out=folders.run) as code:
        freeze(folders, BroRLConfig(), code, "#!/bin/bash\n", "brorl render")
    assert code.rights == 0o700
    assert [(path.name, mode(path)) for path in folders.all_launches()] == [("launch_1", 0o700), ("launch", 0o700)]


@contextmanager
def as_nobody() -> Iterator[None]:
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@needs_root
def test_another_user_sees_a_run_but_starts_no_job_of_it(checkout: Path, open_folder: Path) -> None:
    folders = freeze_run(checkout, open_folder / "run")
    record_job(folders, "101", None, [])
    (folders.run / "config.yaml").write_text("trainer: {max_steps: 7}\n")
    assert job_ids(folders.run) == ["101"]
    with as_nobody():
        assert (job_ids(folders.run), max_steps(folders.run)) == ([], 7)
        assert find_target(str(folders.run)).notes == (
            "its jobs are not shown: only the user who launched them may read launch/",
        )
        with pytest.raises(CheckpointError, match=r"run/launch may be read only by the user who launched this run"):
            refuse_live(folders)


@needs_root
def test_a_new_launch_leaves_the_rights_of_another_user_s_earlier_one(checkout: Path, open_folder: Path) -> None:
    folders = freeze_run(checkout, open_folder / "run")
    folders.launch.chmod(0o755)
    folders.run.chmod(0o777)
    shutil.copytree(checkout, open_folder / "checkout")
    with CodeSnapshot(open_folder / "checkout", leave_out=folders.run) as code, as_nobody():
        freeze(folders, BroRLConfig(), code, "#!/bin/bash\n", "brorl render")
    assert [(path.name, mode(path)) for path in folders.all_launches()] == [("launch_1", 0o755), ("launch", 0o700)]
