"""Checkpoints of a run: the policy's own files, the run state, and the groups carried over to the next step.

    checkpoints/step_K/policy/      Megatron dist_checkpointing (weights, optimizer, reference)
                       state.json   step, prompt stream, counters
                       carried.npz  rollouts of carried groups
                       COMPLETE     written last: names and sizes of all files above

A folder is written under another name and renamed; without a marker that fits its files it does not count as a checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.errors import CheckpointError
from nemo_brorl.logs import get_logger
from nemo_brorl.object_store import fetch_all
from nemo_brorl.types import ChunkArrays, Prompt, RolloutChunk, RolloutGroup, RolloutRequest, Sampling, ScoredGroup

log = get_logger(__name__)

MARKER = "COMPLETE"


@dataclass(frozen=True)
class RunState:
    """What a run needs besides the policy to go on exactly where it was."""

    step: int
    state: dict[str, Any]  # JSON-able, by owner
    carried: tuple[ScoredGroup, ...]


class Checkpoints:
    """The checkpoints of one run folder; keeps the newest `keep`."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, run: RunState, write_policy: Callable[[Path], None]) -> Path:
        """Write step_K atomically, then delete the oldest. Returns its folder."""
        final = self.folder / f"step_{run.step}"
        partial = self.folder / f"step_{run.step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "policy").mkdir()
        write_policy(partial / "policy")
        (partial / "state.json").write_text(json.dumps({"step": run.step, **run.state}, indent=1))
        save_groups(partial / "carried.npz", run.carried)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _write_durably(final / MARKER, json.dumps(_inventory(final), indent=1))
        for old in self.complete()[self.keep :]:
            shutil.rmtree(old)
        return final

    def complete(self) -> list[Path]:
        """Checkpoint folders whose marker fits their files, newest first; the others are named in a warning."""
        folders = sorted(self.folder.glob("step_*[0-9]"), key=lambda folder: int(folder.name.removeprefix("step_")), reverse=True)
        return [folder for folder in folders if _is_complete(folder)]

    def load_newest(self, read_policy: Callable[[Path], None]) -> RunState | None:
        """Load the newest checkpoint that can be read, falling back to older ones; None when there has never been one.

        Raises CheckpointError when there are checkpoints but none can be read.
        """
        folders = self.complete()
        for folder in folders:
            try:
                run = self._read(folder)
                read_policy(folder / "policy")
            except (CheckpointError, OSError, ValueError, KeyError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", folder, error)
            else:
                return run
        if folders:
            raise CheckpointError(
                f"none of the {len(folders)} checkpoints in {self.folder} can be read; delete that folder to start over,"
                " or choose another exp_manager.explicit_log_dir"
            )
        return None

    def _read(self, folder: Path) -> RunState:
        state = json.loads((folder / "state.json").read_text())
        return RunState(step=state.pop("step"), state=state, carried=load_groups(folder / "carried.npz"))


def save_groups(path: Path, groups: Sequence[ScoredGroup]) -> None:
    """Write scored groups with their tokens: small fields as JSON, arrays beside them."""
    arrays: dict[str, Any] = {}
    for index, scored in enumerate(groups):
        arrays[f"{index}/rewards"] = scored.rewards
        for number, (chunk, data) in enumerate(zip(scored.group.chunks, fetch_all([c.data for c in scored.group.chunks]), strict=True)):
            key = f"{index}/{number}"
            arrays |= {f"{key}/lengths": chunk.lengths, f"{key}/is_stopped": chunk.is_stopped}
            arrays |= {f"{key}/{name}": getattr(data, name) for name in ("token_ids", "log_probs", "offsets")}
    records = json.dumps([_group_record(scored) for scored in groups])
    np.savez(path, records=np.frombuffer(records.encode(), np.uint8), **arrays)


def load_groups(path: Path) -> tuple[ScoredGroup, ...]:
    """Read what `save_groups` wrote; the arrays are held by the chunks themselves."""
    with np.load(path) as arrays:
        records = json.loads(arrays["records"].tobytes())
        return tuple(_group_from(record, f"{index}", arrays) for index, record in enumerate(records))


def _group_record(scored: ScoredGroup) -> dict[str, Any]:
    chunks = [
        {"version": chunk.version, "engine": chunk.engine, "first_index": chunk.request.first_index, "seed": chunk.request.seed,
         "sampling": asdict(chunk.request.sampling)}
        for chunk in scored.group.chunks
    ]  # fmt: skip
    return {"prompt": asdict(scored.prompt), "num_failed": scored.num_failed, "chunks": chunks}


def _group_from(record: dict[str, Any], key: str, arrays: Any) -> ScoredGroup:
    prompt = Prompt(**{**record["prompt"], "token_ids": tuple(record["prompt"]["token_ids"])})
    chunks = tuple(_chunk_from(prompt, chunk, f"{key}/{number}", arrays) for number, chunk in enumerate(record["chunks"]))
    return ScoredGroup(RolloutGroup(prompt, chunks), arrays[f"{key}/rewards"], record["num_failed"])


def _chunk_from(prompt: Prompt, record: dict[str, Any], key: str, arrays: Any) -> RolloutChunk:
    lengths = arrays[f"{key}/lengths"]
    request = RolloutRequest(prompt, record["first_index"], len(lengths), record["seed"], Sampling(**record["sampling"]))
    data = ChunkArrays(arrays[f"{key}/token_ids"], arrays[f"{key}/log_probs"], arrays[f"{key}/offsets"])
    return RolloutChunk(request, lengths, arrays[f"{key}/is_stopped"], record["version"], record["engine"], data)


def _inventory(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def _is_complete(folder: Path) -> bool:
    marker = folder / MARKER
    if not marker.is_file():
        log.warning("%s was not finished: left out", folder)
        return False
    try:
        expected = json.loads(marker.read_text())
    except json.JSONDecodeError:
        log.warning("%s has a damaged marker: left out", folder)
        return False
    found = _inventory(folder)
    damaged = [name for name, size in expected.items() if found.get(name) != size]
    if damaged:
        log.warning("%s is damaged (%s): left out", folder, ", ".join(damaged[:3]))
    return not damaged


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
