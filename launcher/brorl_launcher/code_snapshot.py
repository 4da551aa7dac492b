"""Take a snapshot of the code as it is now: the last commit, uncommitted changes and new files.

Git is only read, and the checkout stays as it is. An installed package is copied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import TracebackType

from brorl_launcher.packages import FOLDER_OF_PACKAGE, PACKAGE
from nemo_brorl.config.load import shipped_folder
from nemo_brorl.core.errors import ConfigError

MAX_NEW_MIB = 64  # limit for files that git does not track
NAMED = 5  # changed files named in a message


@dataclass(frozen=True)
class Revision:
    """The version of a code snapshot: a commit, and the files that differ from it."""

    commit: str | None  # None: not a git checkout
    changed: tuple[str, ...] = ()  # changed, new and deleted files, compared with the commit
    patch: bytes = field(default=b"", repr=False)  # changes since the commit, for `git apply`

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
    """The code of `root` at the moment when this context is entered, to be named and written inside it.

    Git stores the files as objects in a scratch folder with an index of its own, so the checkout stays as it is.
    `leave_out`, a run folder, is not part of the code, even where git does not ignore it.
    """

    def __init__(self, root: Path, leave_out: Path) -> None:
        self.root = root
        self.leave_out = leave_out
        self.tree = ""  # git's object name of the files
        self.revision = Revision(None)
        self._scratch = tempfile.TemporaryDirectory(prefix="brorl_code_")

    def __enter__(self) -> CodeSnapshot:
        """Record the files of a git checkout for a code snapshot, with its commit and uncommitted changes.

        Raises ConfigError when files that git does not track are too large to be code.
        """
        try:
            self._git("ls-files", "--error-unmatch", PACKAGE)  # fails inside another project's repository
            commit = self._git("rev-parse", "HEAD").decode().strip()
        except (OSError, subprocess.CalledProcessError):
            return self  # installed package, or no git
        self._refuse_large()
        scratch = Path(self._scratch.name)
        (scratch / "objects").mkdir()
        # Git does not read a file again whose entry in the index is up to date. It reads every file that is as new as
        # the index. So the copy keeps the index's time.
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
        """Write the code snapshot into an empty folder, and its git revision into the file REVISION there."""
        folder.mkdir(parents=True)
        if self.revision.commit is None:
            left_out = shutil.ignore_patterns("__pycache__")
            for package, place in FOLDER_OF_PACKAGE.items():
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
        """Return git's path arguments for all files of the code folder except those of the run folder."""
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
