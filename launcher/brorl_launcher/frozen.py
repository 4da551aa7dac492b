"""Frozen settings and code of a job, put into its run folder: what a requeued job trains with, whatever becomes of the
checkout.

    RUN/launch/config.yaml          all settings, paths absolute; what came from the environment by its variable
               code/                the code as it was, uncommitted changes and new files included
               revision.txt         commit, and which files differed from it
               uncommitted.patch    that difference, where there is one
               job.sbatch           the job
               command.txt          the command that rendered it
               jobs.jsonl           the jobs that were submitted

The folder is filled under another name and renamed. An earlier launch of the same run is kept as RUN/launch_1,
launch_2, …

The code is taken as it is now: the files of the last commit, uncommitted changes and new files. Git is asked, and left
as it was. An installed package is copied.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from brorl_graders.environment_values import FromEnvironment
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from brorl_launcher.packages import PACKAGE, PLACES
from nemo_brorl.config.load import shipped_folder, to_config, to_yaml
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.files import MALFORMED

MAX_NEW_MIB = 64  # size of files that git does not know
NAMED = 5  # changed files that a message names


@dataclass(frozen=True)
class Revision:
    """Which code it is."""

    commit: str | None  # None: not a git checkout
    changed: tuple[str, ...] = ()  # files that differ from the commit, new and deleted ones among them
    patch: bytes = field(default=b"", repr=False)  # from the commit to these files; `git apply` takes it

    def __str__(self) -> str:
        if self.commit is None:
            return "unknown (not a git checkout)"
        if not self.changed:
            return self.commit
        names = [name if name.isprintable() else repr(name) for name in self.changed[:NAMED]]
        text = f"{self.commit} with uncommitted changes in {', '.join(names)}"
        if len(self.changed) > NAMED:
            text += f" and {len(self.changed) - NAMED} more"
        return text


class CodeSnapshot:
    """A context; inside it the code of `root` can be named and written, as it was when the context was entered.

    The files become objects in a folder of their own, with an index of their own: the checkout's stays as it was.
    `leave_out`, a run folder, is no code, even where git does not ignore it.
    """

    def __init__(self, root: Path, leave_out: Path) -> None:
        self.root = root
        self.leave_out = leave_out
        self.tree = ""  # git's name of the files
        self.revision = Revision(None)
        self._scratch = tempfile.TemporaryDirectory(prefix="brorl_code_")

    def __enter__(self) -> CodeSnapshot:
        """Raises ConfigError when files that are new to git are too large to be code."""
        try:
            self._git("ls-files", "--error-unmatch", PACKAGE)  # fails where somebody else's repository is around it
            commit = self._git("rev-parse", "HEAD").decode().strip()
        except (OSError, subprocess.CalledProcessError):
            return self  # an installed package, or no git
        self._refuse_large()
        scratch = Path(self._scratch.name)
        (scratch / "objects").mkdir()
        # Git's list of files spares it to read those that it has read before. A file of the list's own age is read:
        # the copy keeps that age.
        shutil.copy2(self._path_of("index"), scratch / "index")
        self._git("add", "--all", "--", *self._scope(), own_store=True)
        written = self._git("write-tree", own_store=True).decode().strip()
        prefix = self._git("rev-parse", "--show-prefix").decode().strip()
        base = f"{commit}:{prefix}"
        self.tree = f"{written}:{prefix}"
        names = self._git("diff-tree", "-r", "--name-only", "--no-renames", "-z", base, self.tree, own_store=True)
        patch = self._git("diff-tree", "-r", "-p", "--binary", base, self.tree, own_store=True)
        changed = tuple(filter(None, names.decode().split("\0")))
        self.revision = Revision(commit, changed, patch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scratch.cleanup()

    def write(self, folder: Path) -> None:
        """Write the files into an empty folder, and which they are into its REVISION."""
        folder.mkdir(parents=True)
        if self.revision.commit is None:
            left_out = shutil.ignore_patterns("__pycache__")
            for package, place in PLACES.items():
                shutil.copytree(self.root / package, folder / place / package, ignore=left_out)
            shutil.copytree(shipped_folder(), folder / "conf")
        else:
            archive = self._git("archive", "--format=tar", self.tree, own_store=True)
            with tarfile.open(fileobj=BytesIO(archive)) as tar:
                tar.extractall(folder, filter="tar")
        (folder / "REVISION").write_text(f"{self.revision}\n", encoding="utf-8")

    def _refuse_large(self) -> None:
        listed = self._git("ls-files", "--others", "--exclude-standard", "-z", "--", *self._scope())
        sizes = {}
        for name in filter(None, listed.decode().split("\0")):
            sizes[name] = (self.root / name).lstat().st_size
        mib = sum(sizes.values()) / 2**20
        if mib > MAX_NEW_MIB:
            largest = max(sizes, key=lambda name: sizes[name])
            raise ConfigError(
                f"{len(sizes)} files in {self.root} are new to git and too large to be frozen with the code: they have "
                f"{mib:.0f} MiB, {largest} most of all, and at most {MAX_NEW_MIB} MiB are taken. "
                "Commit them, or name them in .gitignore"
            )

    def _scope(self) -> list[str]:
        """Git's words for this folder without the run folder."""
        root = self.root.resolve()
        left_out = self.leave_out.resolve()
        if not left_out.is_relative_to(root):
            return ["."]
        return [".", f":(exclude,literal){left_out.relative_to(root)}"]

    def _path_of(self, name: str) -> Path:
        path = self._git("rev-parse", "--git-path", name).decode().strip()
        return self.root / path

    def _git(self, *arguments: str, own_store: bool = False) -> bytes:
        command: Sequence[str] = ["git", "-C", str(self.root), *arguments]
        environment = dict(os.environ)
        for name in os.environ:
            if name.startswith("GIT_"):
                del environment[name]
        if own_store:
            scratch = Path(self._scratch.name)
            environment["GIT_INDEX_FILE"] = str(scratch / "index")
            environment["GIT_OBJECT_DIRECTORY"] = str(scratch / "objects")
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self._path_of("objects").resolve())
        return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


Location = TypeVar("Location", str, str | None)


@dataclass(frozen=True)
class Folders:
    """Where things of a run's launch are."""

    run: Path  # absolute

    @property
    def launch(self) -> Path:
        return self.run / "launch"

    @property
    def config(self) -> Path:
        return self.launch / "config.yaml"

    @property
    def code(self) -> Path:
        return self.launch / "code"

    @property
    def script(self) -> Path:
        return self.launch / "job.sbatch"

    @property
    def jobs(self) -> Path:
        return self.launch / "jobs.jsonl"

    def all_launches(self) -> list[Path]:
        """This launch and the earlier ones that are there, oldest first."""
        earlier = [path for path in self.run.glob("launch_*") if path.name.removeprefix("launch_").isdigit()]
        earlier.sort(key=lambda path: int(path.name.removeprefix("launch_")))
        if self.launch.is_dir():
            earlier.append(self.launch)
        return earlier

    def job_ids(self) -> list[str]:
        """Numbers of all jobs that were submitted for this run, oldest first."""
        ids = []
        for launch in self.all_launches():
            ids += [row["job"] for row in read_jobs(launch / "jobs.jsonl")]
        return ids


def freeze(
    folders: Folders,
    config: BroRLConfig,
    code: CodeSnapshot,
    script: str,
    command: str,
) -> None:
    """Write RUN/launch, and make the folder of the jobs' logs, which Slurm does not."""
    partial = folders.run / "launch.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (folders.run / "logs").mkdir(exist_ok=True)
    (partial / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    code.write(partial / "code")
    (partial / "revision.txt").write_text(f"{code.revision}\n", encoding="utf-8")
    if code.revision.patch:
        (partial / "uncommitted.patch").write_bytes(code.revision.patch)
    (partial / "job.sbatch").write_text(script, encoding="utf-8")
    (partial / "command.txt").write_text(f"{command}\n", encoding="utf-8")
    if folders.launch.exists():
        folders.launch.rename(_free_name(folders.run))
    partial.rename(folders.launch)


def _free_name(run: Path) -> Path:
    number = 1
    while (run / f"launch_{number}").exists():
        number += 1
    return run / f"launch_{number}"


def check_yaml(config: BroRLConfig) -> None:
    """Raise ConfigError for settings that a job would not read as they are."""
    try:
        is_same = to_config(OmegaConf.create(to_yaml(config))) == config
    except (ConfigError, OmegaConfBaseException):
        is_same = False
    if not is_same:
        raise ConfigError(
            "the settings do not come back from YAML as they are: is there a ${…} in a text? Write it another way"
        )


def absolute_paths(config: BroRLConfig, folder: Path) -> BroRLConfig:
    """The same settings, relative paths counted from `folder`: a job starts somewhere else."""
    run_folder = _absolute(config.exp_manager.explicit_log_dir, folder)
    model = config.policy.model
    if (folder / Path(model).expanduser()).is_dir():  # else a name on the hub
        model = _absolute(model, folder)
    domains = []
    for domain in config.data.domains:
        path = _absolute(domain.path, folder)
        held_out_path = _absolute(domain.held_out_path, folder)
        domains.append(replace(domain, path=path, held_out_path=held_out_path))
    path = _absolute(config.data.path, folder)
    held_out_path = _absolute(config.data.held_out_path, folder)
    readable = [_absolute(name, folder) for name in config.rewards.code.readable]
    return replace(
        config,
        exp_manager=replace(config.exp_manager, explicit_log_dir=run_folder),
        policy=replace(config.policy, model=model),
        data=replace(config.data, path=path, held_out_path=held_out_path, domains=domains),
        rewards=replace(config.rewards, code=replace(config.rewards.code, readable=readable)),
    )


def _absolute(path: Location, folder: Path) -> Location:
    """Count a path from `folder`; one from the environment stays written by its variable."""
    if path is None:
        return path
    # Of `~` in a variable nothing but what it stands for can be written.
    if not isinstance(path, FromEnvironment) or path.startswith("~"):
        return os.path.normpath(folder / Path(path).expanduser())
    if Path(path).is_absolute():
        return path
    return FromEnvironment(f"{folder}/{path}", f"{folder}/{path.written}")


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """Rows of a `jobs.jsonl`, oldest first; half-written and damaged ones are left out."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except MALFORMED:
            continue
        if _is_job(row):
            rows.append(row)
    return rows


def _is_job(row: Any) -> bool:
    """Whether a row says which job was submitted with which arguments."""
    if not isinstance(row, dict) or not isinstance(row.get("job"), str):
        return False
    arguments = row.get("arguments", [])
    return isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)


def note_job(
    folders: Folders,
    job: str,
    after: str | None,
    arguments: Sequence[str],
) -> None:
    """Append a job to `jobs.jsonl`."""
    row = {
        "job": job,
        "submitted_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "after": after,
        "arguments": list(arguments),
    }
    with folders.jobs.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def shell_command(arguments: Sequence[str], folder: Path) -> str:
    """The command that was given, as it may be pasted into a shell."""
    return f"cd {shlex.quote(str(folder))} && brorl {shlex.join(arguments)}"
