"""Checkpoints of a run: the policy's files, the run's state, and the groups between two steps.

    checkpoints/step_K/policy/      Megatron dist_checkpointing (weights, optimizer, reference), with checksums
                       state.json   step, prompt stream, counters
                       groups.npz   groups carried between two steps, with their rollouts
                       COMPLETE     written last: names, sizes and checksums of all other files
                cut_step.npz        chunks of the step after the newest checkpoint, if it was cut

A folder is written under another name and renamed. Without a marker that fits its files it is no checkpoint. A crash
leaves a partial folder, which the next run names in a warning and the next save deletes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brorl_graders.base.foreign import RecordError, record_object

from nemo_brorl.cluster.object_store import fetch_or_none
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import naming, replacing, sync
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.training.marker import check_sums, is_complete, write_marker
from nemo_brorl.types import ScoredChunk

UNFINISHED = ".partial"  # suffix of a folder that is being written
STATE = "state.json"
MAX_STATE = 1 << 30  # largest such file, in bytes
GROUPS = "groups.npz"
CUT_STEP = "cut_step.npz"
# Rollouts of a cut step that are not fetched within this time are treated as lost, because the run has to end soon.
FETCH_S = 60.0

log = get_logger(__name__)


@dataclass(frozen=True)
class RunState:
    """Everything besides the policy that a run needs to continue exactly where it was."""

    step: int
    state: dict[str, Any]  # JSON-able, by owner
    groups: CarriedGroups


@dataclass(frozen=True)
class CutStep:
    """The finished chunks of a step that was cut."""

    step: int  # last step before the cut one
    chunks: tuple[ScoredChunk, ...]


class Checkpoints:
    """The checkpoints of one run folder. Only the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        # Folders that `load_newest` could not read, until they are written again. Their marker may still fit.
        self.unreadable: set[Path] = set()

    def begin(self, run: RunState) -> Path:
        """Write all files of a checkpoint except those of the policy, and return the folder for the policy's files.

        Deletes unfinished checkpoints. Raises ResourceError.
        """
        folder = self.folder / f"step_{run.step}{UNFINISHED}"
        with naming(folder):
            # Folders left by a crash take room, and must not be mixed with this checkpoint.
            for unfinished in self._unfinished():
                shutil.rmtree(unfinished)
            policy_folder = folder / "policy"
            policy_folder.mkdir(parents=True)
            (folder / STATE).write_text(json.dumps({"step": run.step, **run.state}, indent=1))
            save_carriers(folder / GROUPS, [run.groups])
            for name in (STATE, GROUPS):
                sync(folder / name)
        return policy_folder

    def abandon(self) -> None:
        """Delete the files of an unfinished checkpoint, as far as the disk allows."""
        for unfinished in self._unfinished():
            shutil.rmtree(unfinished, ignore_errors=True)

    def commit(self, step: int) -> Path:
        """Complete the checkpoint that `begin` started, delete the oldest ones, and return the new checkpoint's folder.

        Raises ResourceError.
        """
        final = self.folder / f"step_{step}"
        with naming(final):
            shutil.rmtree(final, ignore_errors=True)
            (self.folder / f"step_{step}{UNFINISHED}").rename(final)
            # The marker comes last, then the folder is synced, so a checkpoint with a marker survives a power loss.
            write_marker(final)
            sync(self.folder)
        self.unreadable.discard(final)
        # Older checkpoints are deleted only now that the new one is complete.
        for old in self.complete()[self.keep :]:
            shutil.rmtree(old)
        (self.folder / CUT_STEP).unlink(missing_ok=True)
        return final

    def save_cut_step(self, cut: CutStep) -> int:
        """Save the finished rollouts of a step that had to stop early, and return the number of saved rollouts.

        The step is the one after the newest checkpoint, and the rollouts are deleted once there is a newer checkpoint.
        If they cannot be written, a warning says so, 0 is returned, and the step will be sampled again.
        """
        path = self.folder / CUT_STEP
        chunks = tuple(_with_arrays(cut.chunks))
        try:
            with replacing(path) as aside:
                save_carriers(aside, [CutStep(cut.step, chunks)])
        except OSError as error:
            log.warning("%s was not written (%s). Its step will be sampled again.", path, error)
            return 0
        return sum(len(scored.rewards) for scored in chunks)

    def load_cut_step(self, step: int) -> tuple[ScoredChunk, ...]:
        """Return the rollouts saved when the step after `step` had to stop early, or () if there are none."""
        path = self.folder / CUT_STEP
        if not path.exists():
            return ()
        try:
            cut: CutStep = load_carriers(path, CutStep)[0]
        except (CheckpointError, OSError) as error:
            log.warning("%s: the step that was cut will be sampled again", error)
            return ()
        return cut.chunks if cut.step == step else ()

    def _unfinished(self) -> list[Path]:
        return sorted(self.folder.glob(f"step_*{UNFINISHED}"))

    def complete(self) -> list[Path]:
        """Return the folders of complete checkpoints, newest first.

        A complete checkpoint has a marker file, written last, that fits the sizes of all files. Folders that could not
        be read are left out. Others without a fitting marker are named in a warning.
        """
        folders = [folder for folder in self.folder.glob("step_*") if folder.name.removeprefix("step_").isdecimal()]
        folders = [folder for folder in folders if folder not in self.unreadable]
        folders.sort(key=step_of, reverse=True)
        return [folder for folder in folders if is_complete(folder)]

    def load_newest(self, read_policy: Callable[[Path], None]) -> RunState | None:
        """Load the newest readable checkpoint, falling back to older ones, or return None if there are no checkpoints.

        Raises CheckpointError when there are checkpoints but none can be read.
        """
        for unfinished in self._unfinished():
            log.warning("%s was not finished and is ignored", unfinished)
        folders = self.complete()
        for folder in folders:
            try:
                check_sums(folder)
                run = self._read(folder)
                read_policy(folder / "policy")
            # All errors that a damaged or older file can cause. The checkpoint before may be intact.
            except (CheckpointError, RecordError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", folder, error)
                self.unreadable.add(folder)
            else:
                return run
        if folders:
            raise CheckpointError(
                f"none of the {len(folders)} checkpoints in {self.folder} can be read. Delete that folder to start"
                " over, or set another exp_manager.explicit_log_dir."
            )
        return None

    def _read(self, folder: Path) -> RunState:
        state = record_object(folder / STATE, MAX_STATE)
        step = state.pop("step")
        groups = load_carriers(folder / GROUPS, CarriedGroups, OpenGroup)[0]
        return RunState(step, state, groups)


def _with_arrays(chunks: Iterable[ScoredChunk]) -> Iterator[ScoredChunk]:
    """Yield scored chunks of rollouts with their token arrays fetched, without chunks whose node was lost.

    A lost node may be the reason why the run has to stop.
    """
    until = time.monotonic() + FETCH_S
    for scored in chunks:
        left_s = max(0.0, until - time.monotonic())
        arrays = fetch_or_none(scored.chunk.data, left_s)
        if arrays is not None:
            chunk = replace(scored.chunk, data=arrays)
            yield replace(scored, chunk=chunk)


def check_state_keys(state: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Raise CheckpointError when a checkpoint was written by another version of this program."""
    if state.keys() != set(wanted):
        raise CheckpointError(
            f"run state has keys {sorted(state)}, this version needs {sorted(wanted)}: start a new run folder"
        )


def step_of(folder: Path) -> int:
    """Return the training step of a checkpoint folder."""
    return int(folder.name.removeprefix("step_"))
