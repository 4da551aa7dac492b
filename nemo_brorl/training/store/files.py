"""Files of the rollout store in a run folder.

    store/groups/step_000007.parquet      a row for every group of step 7; written last, so a step without it is none
          rollouts/step_000007.parquet    a row for every rollout, in the same order
          unfinished/                     files that are being written

A file is written under `unfinished/` and renamed, so a process that is killed leaves whole files only.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.console import get_logger

FOLDER = "store"  # folder in the run folder
GROUPS = "groups"
ROLLOUTS = "rollouts"
UNFINISHED = "unfinished"
PREFIX = "step_"
GIB = 1024**3

log = get_logger(__name__)


class StoreFiles:
    """The files of one rollout store."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder.absolute() / FOLDER

    def groups(self, step: int) -> Path:
        """Return the path of the rollout store's table of the groups of a step."""
        return self.folder / GROUPS / _name(step)

    def rollouts(self, step: int) -> Path:
        """Return the path of the rollout store's table of the rollouts of a step."""
        return self.folder / ROLLOUTS / _name(step)

    def steps(self) -> list[int]:
        """Return the training steps in the rollout store, ascending."""
        return _steps_in(self.folder / GROUPS)

    def size(self, step: int) -> int:
        """Return the size in bytes of the files of a step in the rollout store."""
        return self.groups(step).stat().st_size + self.rollouts(step).stat().st_size

    def remove(self, step: int) -> None:
        """Delete the files of a step in the rollout store.

        The file of the groups is deleted first, so the step counts as missing from then on.
        """
        self.groups(step).unlink(missing_ok=True)
        self.rollouts(step).unlink(missing_ok=True)

    def drop_after(self, step: int | None) -> None:
        """Delete the stored rollouts of steps after `step`, or of all steps for None, and unfinished files."""
        shutil.rmtree(self.folder / UNFINISHED, ignore_errors=True)
        groups = _steps_in(self.folder / GROUPS)
        rollouts = _steps_in(self.folder / ROLLOUTS)
        for stored_step in {*groups, *rollouts}:
            if step is None or stored_step > step:
                self.remove(stored_step)

    @contextmanager
    def replacing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary path, which replaces `path` if the context ends without an error. Raises OSError."""
        aside = self.folder / UNFINISHED / f"{os.getpid()}_{path.parent.name}_{path.name}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield aside
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def prune(self, settings: StoreConfig) -> None:
        """Delete the oldest steps until the rollout store is within the set number of steps and GiB."""
        steps = self.steps()
        limit = settings.max_gib * GIB
        total = sum(self.size(step) for step in steps)
        most = len(steps) if settings.keep_steps is None else settings.keep_steps
        while len(steps) > most or total > limit:
            oldest = steps.pop(0)
            total -= self.size(oldest)
            self.remove(oldest)
            if not steps:
                log.warning("store.max_gib=%g: step %d alone is larger and was not stored", settings.max_gib, oldest)
                return


def _name(step: int) -> str:
    return f"{PREFIX}{step:06d}.parquet"


def _steps_in(folder: Path) -> list[int]:
    numbers = [path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.parquet")]
    return sorted(int(number) for number in numbers if number.isdecimal())
