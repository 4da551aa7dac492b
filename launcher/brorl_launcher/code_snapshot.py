"""Take a snapshot of the code as it is now: the last commit, uncommitted changes, and new files of packages and conf/.

Git is only read, and the checkout stays as it is. An installed package is copied. New files elsewhere are left out, and
named in a note. Refused are files whose names tell of secrets, if they differ from the commit, and new files without
rights for the group, unless the packages have none either, as with a umask of 077. After `git add` a file is not new.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import TracebackType

from brorl_launcher.packages import FOLDER_OF_PACKAGE, PACKAGE, package_folders
from nemo_brorl.config.load import shipped_folder
from nemo_brorl.core.errors import ConfigError

MAX_NEW_MIB = 64  # limit for files that git does not track
NAMED = 5  # files named in a message
CODE_FOLDERS = (*(os.path.join(place, package) for package, place in FOLDER_OF_PACKAGE.items()), "conf")
# names of files and folders that hold keys and passwords
SECRET = re.compile(
    r"(^|/)(\.env.*|\.netrc|\.git-credentials|\.pypirc|id_(rsa|ecdsa|ed25519).*|.*\.(pem|key|p12))(/|$)",
    re.IGNORECASE | re.DOTALL,
)
# what is said where neither a folder nor its parents are a checkout, or where there is no git
NO_CHECKOUT = ("not a git repository (or any", "git does not start")


@dataclass(frozen=True)
class Revision:
    """The version of a code snapshot: a commit, and the files that differ from it."""

    commit: str | None  # None: not a git checkout
    changed: tuple[str, ...] = ()  # changed, new and deleted files, compared with the commit
    patch: bytes = field(default=b"", repr=False)  # changes since the commit, for `git apply`
    left_out: tuple[str, ...] = ()  # new files and folders that are not code

    def __str__(self) -> str:
        if self.commit is None:
            return "unknown (not a git checkout)"
        if not self.changed:
            return self.commit
        return f"{self.commit} with uncommitted changes in {join_names(self.changed)}"


def join_names(names: Sequence[str]) -> str:
    """Return names of files as one line of text, the first few and the number of others."""
    text = ", ".join(name if name.isprintable() else repr(name) for name in names[:NAMED])
    return text if len(names) <= NAMED else f"{text} and {len(names) - NAMED} more"


class CodeSnapshot:
    """The code of `root` at the moment when this context is entered, to be named and written inside it.

    Git stores the files as objects in a scratch folder with an index of its own, so the checkout stays as it is.
    `leave_out`, a run folder, is not part of the code, even where git does not ignore it.
    """

    def __init__(self, root: Path, leave_out: Path) -> None:
        self.root = root.resolve()
        self.revision = Revision(None)
        self._outside = _excluded(self.root, leave_out.resolve())
        self._archive = b""  # tar file of a checkout's code
        self._scratch = tempfile.TemporaryDirectory(prefix="brorl_code_")

    def __enter__(self) -> CodeSnapshot:
        """Record the files of a git checkout for a code snapshot, with its commit and uncommitted changes.

        Raises ConfigError when git fails, and for files that may hold secrets or are too large to be code.
        """
        if not self._is_tracked():
            for package in package_folders(self.root):
                _refuse_secrets([str(path.relative_to(self.root)) for path in package.rglob("*")])
            return self
        commit = os.fsdecode(self._git("rev-parse", "--verify", "HEAD")).strip()
        prefix = os.fsdecode(self._git("rev-parse", "--show-prefix")).removesuffix("\n")
        new, left_out = self._new_files()
        scratch = Path(self._scratch.name)
        (scratch / "objects").mkdir()
        # Git does not read a file again whose entry in the index is up to date. It reads every file that is as new as
        # the index. So the copy keeps the index's time.
        shutil.copy2(self._path_of("index"), scratch / "index")
        self._git("add", "--update", "--", ".", *self._outside, own_store=True)
        self._git("update-index", "--add", "-z", "--stdin", own_store=True, fed=os.fsencode("\0".join(new)))
        written = self._git("write-tree", own_store=True).decode().strip()
        base, tree = f"{commit}:{prefix}", f"{written}:{prefix}"
        changed = self._names("diff-tree", "-r", "--name-only", "--no-renames", base, tree, own_store=True)
        _refuse_secrets([name for name in changed if os.path.lexists(self.root / name)])
        patch = self._git("diff-tree", "-r", "-p", "--binary", base, tree, own_store=True)
        self._archive = self._git("archive", "--format=tar", written, own_store=True)
        self.revision = Revision(commit, tuple(changed), patch, tuple(left_out))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scratch.cleanup()

    def write(self, folder: Path) -> None:
        """Write the code snapshot into an empty folder, and its git revision into the file REVISION there."""
        folder.mkdir(parents=True)
        if self.revision.commit is None:
            left_out = shutil.ignore_patterns("__pycache__")
            for source in package_folders(self.root):
                shutil.copytree(source, folder / FOLDER_OF_PACKAGE[source.name] / source.name, ignore=left_out)
            shutil.copytree(shipped_folder(), folder / "conf")
        else:
            with tarfile.open(fileobj=BytesIO(self._archive)) as tar:
                tar.extractall(folder, filter=self._with_mode)
        (folder / "REVISION").write_text(f"{self.revision}\n", encoding="utf-8")

    def _with_mode(self, member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        """Return an archive's member with its rights in the checkout, of which git knows only the executable bit."""
        source = self.root / member.name
        member = tarfile.tar_filter(member, folder)
        if member.issym() or not source.exists():
            return member
        mode = source.stat().st_mode & 0o777
        return member.replace(mode=mode | stat.S_IRWXU if member.isdir() else mode, deep=False)

    def _is_tracked(self) -> bool:
        """Return whether git tracks the packages, which it does not where they are installed."""
        try:
            return bool(self._names("ls-files", "--", PACKAGE))
        except ConfigError as error:
            if os.path.lexists(self.root / ".git") or not any(words in str(error) for words in NO_CHECKOUT):
                raise
            return False

    def _new_files(self) -> tuple[list[str], list[str]]:
        """Return the files of the code folders that git does not track, and what else it does not track or ignore.

        Raises ConfigError for new files that only their owner may read, or that are too large to be code.
        """
        others = ("ls-files", "--others", "--exclude-standard")
        found = self._names(*others, "--", *CODE_FOLDERS, *self._outside)
        elsewhere = [f":(exclude,literal){folder}" for folder in CODE_FOLDERS]
        left_out = self._names(*others, "--directory", "--no-empty-directory", "--", ".", *elsewhere, *self._outside)
        left_out += [name for name in found if name.endswith("/")]  # a repository of its own
        new = [name for name in found if not name.endswith("/")]
        _refuse_secrets(new)
        status = {name: (self.root / name).lstat() for name in new}
        is_readable = (self.root / PACKAGE).stat().st_mode & stat.S_IRGRP
        private = [name for name in new if is_readable and not status[name].st_mode & stat.S_IRGRP]
        if private:
            raise ConfigError(
                f"{join_names(private)}: new to git and without rights for the group, so not frozen with the code. "
                "`git add` or `chmod g+r` what is code, and name the rest in .gitignore"
            )
        mib = sum(file.st_size for file in status.values()) / 2**20
        if mib > MAX_NEW_MIB:
            largest = max(new, key=lambda name: status[name].st_size)
            raise ConfigError(
                f"{len(new)} files in {self.root} are new to git and too large to be frozen with the code: they have "
                f"{mib:.0f} MiB, {largest} most of all, and at most {MAX_NEW_MIB} MiB are taken. "
                "Commit them, or name them in .gitignore"
            )
        return new, left_out

    def _path_of(self, name: str) -> Path:
        return self.root / os.fsdecode(self._git("rev-parse", "--git-path", name)).removesuffix("\n")

    def _names(self, command: str, *arguments: str, own_store: bool = False) -> list[str]:
        listed = self._git(command, "-z", *arguments, own_store=own_store)
        return [os.fsdecode(name) for name in listed.split(b"\0") if name]

    def _git(self, *arguments: str, own_store: bool = False, fed: bytes = b"") -> bytes:
        command = ["git", "-C", str(self.root), *arguments]
        environment = {**os.environ, "LC_ALL": "C"}  # the language of NO_CHECKOUT
        for name in os.environ:
            if name.startswith("GIT_") and not name.startswith("GIT_CONFIG"):
                del environment[name]
        if own_store:
            scratch = Path(self._scratch.name)
            environment["GIT_INDEX_FILE"] = str(scratch / "index")
            environment["GIT_OBJECT_DIRECTORY"] = str(scratch / "objects")
            environment["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(self._path_of("objects").resolve())
        try:
            done = subprocess.run(command, input=fed, capture_output=True, check=False, env=environment)
        except OSError as error:
            raise ConfigError(f"{self.root} is a git checkout, but git does not start: {error}. Install it") from error
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise ConfigError(
                f"the code in {self.root} cannot be frozen with the job. `{shlex.join(command)}` said: {words}"
            )
        return done.stdout


def _excluded(root: Path, run: Path) -> list[str]:
    """Return git's path argument that leaves out a run folder, if that is in the checkout and holds no packages."""
    if not run.is_relative_to(root) or any((root / folder).is_relative_to(run) for folder in CODE_FOLDERS):
        return []
    return [f":(exclude,literal){run.relative_to(root)}"]


def _refuse_secrets(names: Sequence[str]) -> None:
    secret = [name for name in names if SECRET.search(name)]
    if secret:
        raise ConfigError(
            f"{join_names(secret)}: a file of such a name holds a secret, which is not frozen with the code. Move it "
            "out of the checkout, or name it in .gitignore if git does not track it"
        )
