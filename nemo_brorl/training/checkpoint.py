"""Checkpoints of a run, with the policy's own files, the run state, and the groups between two steps.

    checkpoints/step_K/policy/      Megatron dist_checkpointing (weights, optimizer, reference), and checksums of it
                       state.json   step, prompt stream, counters
                       groups.npz   groups carried between two steps, with their rollouts
                       COMPLETE     written last: names, sizes and checksums of all files above
                cut_step.npz        what the step after the newest checkpoint had sampled, if it was cut

A folder is written under another name and renamed; without a marker that fits its files it does not count as a
checkpoint. `Saver` has the policy's files written while training goes on. A checkpoint is then under way from one step
to a later one:

    begin (policy state copied)  →  step_K.partial/  →  finish (all files are there)  →  step_K/  →  COMPLETE  →  older
    ones deleted

A crash in between leaves a partial folder, which the next run names in a warning and the next save deletes.

Carriers are frozen dataclasses as JSON with their arrays beside them in one npz file, no pickle. A value is written
with its type's name and read back by it, so a carrier that grows a field needs no change here. References into the
object store are fetched; what is read has tokens in the object store again, where Ray is up, so that only who needs
them gets them.

The marker, `COMPLETE`, is written last, with the names, sizes and crc32 of all files.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nemo_brorl import types
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.environment_values import as_written, restored
from nemo_brorl.core.errors import CheckpointError, ResourceError
from nemo_brorl.core.file_sums import SUMS, FileSum, all_damage, file_sum, sums_as_json, sums_from_json
from nemo_brorl.core.files import MALFORMED, naming, replacing, sync, write_whole
from nemo_brorl.core.object_store import fetch, fetch_or_none, store
from nemo_brorl.ports import Policy
from nemo_brorl.rollouts.carry_over import CarriedGroups
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.types import ScoredChunk


def write_marker(folder: Path) -> None:
    """Make a folder a complete checkpoint. The crc32 of the policy's files are not in the marker but in
    `policy/checksums.json`: ranks take and check them, each at its share. Raises OSError."""
    sums: dict[str, FileSum] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder)
            is_own = len(name.parts) == 1 or path.name == SUMS
            sums[str(name)] = file_sum(path) if is_own else FileSum(path.stat().st_size, None)
    write_whole(folder / MARKER, sums_as_json(sums), is_synced=True)


def is_complete(folder: Path) -> bool:
    """Whether the marker is there and fits the sizes of all files; what does not fit is named in a warning."""
    if not (folder / MARKER).is_file():
        log.warning("%s was not finished: left out", folder)
        return False
    try:
        marked = _marked(folder)
    except (OSError, *MALFORMED):
        log.warning("%s has a damaged marker: left out", folder)
        return False
    sizes = {name: FileSum(known.num_bytes, None) for name, known in marked.items()}
    damaged = all_damage(folder, sizes)
    if damaged:
        log.warning("%s is damaged (%s): left out", folder, "; ".join(damaged))
    return not damaged


def check_sums(folder: Path) -> None:
    """Look at the bytes of the files whose crc32 the marker knows. Raises CheckpointError that names those that are not
    as they were written."""
    damaged = all_damage(folder, _marked(folder))
    if damaged:
        raise CheckpointError(f"damaged since it was saved: {'; '.join(damaged)}")


def _marked(folder: Path) -> dict[str, FileSum]:
    """Raises OSError, or one of `MALFORMED` for a damaged marker."""
    return dict(sums_from_json((folder / MARKER).read_text(encoding="utf-8")))


_PLAIN = (str, int, float, bool, type(None))
_KNOWN: dict[str, type] = {}
MARKER = "COMPLETE"

log = get_logger(__name__)
for _kind in vars(types).values():
    if isinstance(_kind, type) and dataclasses.is_dataclass(_kind):
        _KNOWN[_kind.__name__] = _kind


def save_carriers(path: Path, carriers: Sequence[Any]) -> None:
    """Write dataclasses of `types.py`, and dataclasses, sequences and mappings of such."""
    arrays: dict[str, Any] = {}
    records = [_record(carrier, arrays) for carrier in carriers]
    text = json.dumps(records).encode()
    np.savez(path, records=np.frombuffer(text, np.uint8), **arrays)


def load_carriers(path: Path, *kinds: type) -> list[Any]:
    """Read what `save_carriers` wrote; `kinds` are dataclasses in it that are not of `types.py`. Raises CheckpointError
    for a file of another version of this program, and for a damaged one."""
    known = dict(_KNOWN)
    for kind in kinds:
        known[kind.__name__] = kind
    try:
        with np.load(path) as arrays:
            text = arrays["records"].tobytes()
            records = json.loads(text)
            return [_value(record, known, arrays) for record in records]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} was written by another version of this program ({error}): start a new run folder"
        ) from error
    except (BadZipFile, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _record(value: Any, arrays: dict[str, Any]) -> Any:
    """A value as JSON, texts from the environment as they were written; its arrays are added to `arrays`."""
    if isinstance(value, str):
        return as_written(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if dataclasses.is_dataclass(value):
        # Cached properties live in the instance's dict too; only the fields are its state.
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            fields[field.name] = _record(getattr(value, field.name), arrays)
        name = type(value).__name__
        return {"type": name, "fields": fields}
    if isinstance(value, list | tuple):
        items = [_record(item, arrays) for item in value]
        is_tuple = isinstance(value, tuple)
        return {"items": items, "is_tuple": is_tuple}
    if isinstance(value, Mapping):
        mapping: dict[str, Any] = {}
        for key, item in value.items():
            mapping[key] = _record(item, arrays)
        return {"mapping": mapping}
    return _record(fetch(value), arrays)


def _value(
    record: Any,
    known: Mapping[str, type],
    arrays: Any,
) -> Any:
    """The value that `_record` wrote."""
    if isinstance(record, str):
        return restored(record)
    if isinstance(record, _PLAIN):
        return record
    if "array" in record:
        return arrays[record["array"]]
    if "type" in record:
        kind = known[record["type"]]
        fields: dict[str, Any] = {}
        for name, field in record["fields"].items():
            fields[name] = _value(field, known, arrays)
        return store(kind(**fields))
    if "items" in record:
        items = [_value(item, known, arrays) for item in record["items"]]
        return tuple(items) if record["is_tuple"] else items
    mapping: dict[str, Any] = {}
    for key, item in record["mapping"].items():
        mapping[key] = _value(item, known, arrays)
    return mapping


UNFINISHED = ".partial"  # end of the name of a folder that is being written
STATE = "state.json"
GROUPS = "groups.npz"
CUT_STEP = "cut_step.npz"
MAX_FAILED_SAVES = 2  # in a row
# rollouts of a cut step that have not come by then are taken for lost: the time that is left for them is short
FETCH_S = 60.0


@dataclass(frozen=True)
class RunState:
    """What a run needs besides the policy to go on exactly where it was."""

    step: int
    state: dict[str, Any]  # JSON-able, by owner
    groups: CarriedGroups


@dataclass(frozen=True)
class CutStep:
    """Whole chunks of a step that was cut."""

    step: int  # the last one before it
    chunks: tuple[ScoredChunk, ...]


class Checkpoints:
    """The checkpoints of one run folder; keeps the newest `keep`."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.unreadable: set[Path] = set()  # found so by `load_newest`, until they are written anew

    def begin(self, run: RunState) -> Path:
        """Write everything but the policy; its files go into the folder that is returned. Deletes what was never
        finished. Raises ResourceError."""
        folder = self.folder / f"step_{run.step}{UNFINISHED}"
        with naming(folder):
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
        """Delete what was begun and will not be finished, as far as the disk lets: the room may be wanted."""
        for unfinished in self._unfinished():
            shutil.rmtree(unfinished, ignore_errors=True)

    def commit(self, step: int) -> Path:
        """Make what `begin` started a checkpoint, then delete the oldest. Returns its folder. Raises ResourceError."""
        final = self.folder / f"step_{step}"
        with naming(final):
            shutil.rmtree(final, ignore_errors=True)
            (self.folder / f"step_{step}{UNFINISHED}").rename(final)
            write_marker(final)
            sync(self.folder)
        self.unreadable.discard(final)
        for old in self.complete()[self.keep :]:
            shutil.rmtree(old)
        (self.folder / CUT_STEP).unlink(missing_ok=True)
        return final

    def save_cut_step(self, cut: CutStep) -> int:
        """Keep what the step after the newest checkpoint had sampled, until there is a newer one. Returns the number of
        rollouts kept; none, with a warning, when they cannot be written: they will be sampled again."""
        path = self.folder / CUT_STEP
        chunks = tuple(_with_arrays(cut.chunks))
        try:
            with replacing(path) as aside:
                save_carriers(aside, [CutStep(cut.step, chunks)])
        except OSError as error:
            log.warning("%s was not written (%s): its step will be sampled again", path, error)
            return 0
        return sum(len(scored.rewards) for scored in chunks)

    def load_cut_step(self, step: int) -> tuple[ScoredChunk, ...]:
        """What was kept of the step after this one, if that was cut."""
        path = self.folder / CUT_STEP
        if not path.exists():
            return ()
        try:
            cut: CutStep = load_carriers(path, CutStep)[0]
        except (CheckpointError, OSError) as error:
            log.warning("%s: the step that was cut is sampled again", error)
            return ()
        return cut.chunks if cut.step == step else ()

    def _unfinished(self) -> list[Path]:
        return sorted(self.folder.glob(f"step_*{UNFINISHED}"))

    def complete(self) -> list[Path]:
        """Checkpoint folders whose marker fits their files' sizes, newest first, but for those that could not be read;
        the others are named in a warning."""
        folders = [folder for folder in self.folder.glob("step_*[0-9]") if folder not in self.unreadable]
        folders.sort(key=step_of, reverse=True)
        return [folder for folder in folders if is_complete(folder)]

    def load_newest(self, read_policy: Callable[[Path], None]) -> RunState | None:
        """Load the newest checkpoint that can be read, falling back to older ones; None when there has never been one.

        Raises CheckpointError when there are checkpoints but none can be read.
        """
        for unfinished in self._unfinished():
            log.warning("%s was not finished: left out", unfinished)
        folders = self.complete()
        for folder in folders:
            try:
                check_sums(folder)
                run = self._read(folder)
                read_policy(folder / "policy")
            except (CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", folder, error)
                self.unreadable.add(folder)
            else:
                return run
        if folders:
            raise CheckpointError(
                f"none of the {len(folders)} checkpoints in {self.folder} can be read; delete that folder to start"
                " over, or choose another exp_manager.explicit_log_dir"
            )
        return None

    def _read(self, folder: Path) -> RunState:
        state = json.loads((folder / STATE).read_text())
        step = state.pop("step")
        groups = load_carriers(folder / GROUPS, CarriedGroups, OpenGroup, Draw)[0]
        return RunState(step, state, groups)


class Saver:
    """Saves a run, one checkpoint at a time; in the background the policy's files are written while training goes on.

    A save that fails costs nothing older and is a warning, as the next one may succeed. The second one in a row is an
    error, and so is a last one (`wait`).
    """

    def __init__(self, checkpoints: Checkpoints, policy: Policy, in_background: bool) -> None:
        self.checkpoints = checkpoints
        self.policy = policy
        self.in_background = in_background
        self.pending: int | None = None  # step of the checkpoint under way
        self.num_failed = 0  # in a row
        self.seconds: dict[str, float] = {}  # for the next row of metrics

    def save(self, run: RunState, wait: bool) -> None:
        """Save a step, unless it has a checkpoint already; return once the state is copied, or with `wait` once it is
        complete.

        Raises CheckpointError.
        """
        self.finish(wait=True)
        if self.checkpoints.folder / f"step_{run.step}" in self.checkpoints.complete():
            return
        self._begin(run, may_fail=not wait)
        if wait or not self.in_background:
            self.finish(wait=True, may_fail=not wait)

    def finish(self, wait: bool, may_fail: bool = True) -> None:
        """Complete the checkpoint under way, where there is one and its files are written. Raises CheckpointError."""
        if self.pending is None:
            return
        try:
            with self._step_waits():
                seconds = self.policy.finish_save(wait)
                if seconds is None:
                    return
                folder = self.checkpoints.commit(self.pending)
        except (CheckpointError, ResourceError, OSError) as error:
            self._failed(error, may_fail)
        else:
            self.num_failed = 0
            self.seconds["time/save_background_s"] = seconds
            log.info("saved %s: written in %.1f s", folder, seconds)
        self.pending = None

    def take_seconds(self) -> dict[str, float]:
        """Metrics of saving since the last call: `time/save_s`, how long a step waited; `time/save_background_s`,
        writing."""
        seconds = self.seconds
        self.seconds = {}
        return seconds

    @contextmanager
    def _step_waits(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        waited_before = self.seconds.get("time/save_s", 0.0)
        self.seconds["time/save_s"] = waited_before + time.monotonic() - start

    def _begin(self, run: RunState, may_fail: bool) -> None:
        try:
            with self._step_waits():
                self.policy.begin_save(self.checkpoints.begin(run))
        except (CheckpointError, ResourceError, OSError) as error:
            self._failed(error, may_fail)
        else:
            self.pending = run.step

    def _failed(self, error: Exception, may_fail: bool) -> None:
        self.num_failed += 1
        self.pending = None
        self.checkpoints.abandon()
        if not may_fail or self.num_failed >= MAX_FAILED_SAVES:
            raise CheckpointError(
                f"{error}; older checkpoints in {self.checkpoints.folder} are as they were"
            ) from error
        log.warning("%s; older checkpoints are as they were, and training goes on without this one", error)


def _with_arrays(chunks: Iterable[ScoredChunk]) -> Iterator[ScoredChunk]:
    """Chunks with their tokens, without those whose node is gone: it may be why the run was told to stop."""
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
    """Step of a checkpoint's folder."""
    return int(folder.name.removeprefix("step_"))
