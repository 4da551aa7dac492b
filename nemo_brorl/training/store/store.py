"""RolloutStore port over a Ray actor: the driver hands on records, which hold references, and never waits for a disk
except before a checkpoint.

The actor fetches the arrays of a group where they are, one group at a time, so that neither it nor the driver ever
holds a step.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_brorl.config.schema import StoreConfig
from nemo_brorl.core.logs import get_logger
from nemo_brorl.core.object_store import fetch_all
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.generation.transport import EngineTransport, RayTransport, explain
from nemo_brorl.training.store.tables import ROLLOUT_OPTIONS, ROLLOUT_SCHEMA, StoreFiles, groups_table, rollouts_table
from nemo_brorl.types import StepRecord, StoredGroup

NICENESS = 10  # training comes first
DRAW_BYTES = 6  # of a uid's hash


@dataclass(frozen=True)
class WrittenStep:
    """What writing a step took."""

    step: int
    num_bytes: int
    seconds: float
    cpu_seconds: float


def with_share(record: StepRecord, share: float) -> StepRecord:
    """The step with that share of its groups, drawn by their uids: a group that is carried over is kept in all of its
    steps or in none."""
    if share >= 1:
        return record
    kept: list[StoredGroup] = []
    for stored in record.groups:
        uid = stored.scored.prompt.uid
        digest = hashlib.blake2b(uid.encode("utf-8", "surrogatepass"), digest_size=DRAW_BYTES).digest()
        if int.from_bytes(digest, "big") < share * 256**DRAW_BYTES:
            kept.append(stored)
    return replace(record, groups=tuple(kept), num_left_out=len(record.groups) - len(kept))


class StoreWriter:
    """Writer of one run folder's store."""

    def __init__(
        self,
        run_folder: Path,
        settings: StoreConfig,
        model_folder: Path,
    ) -> None:
        """`model_folder`: of the tokenizer, where text is asked for."""
        self.files = StoreFiles(run_folder)
        self.settings = settings
        self.tokenizer: ChatTokenizer | None = load_tokenizer(model_folder) if settings.text else None
        pa.set_cpu_count(1)

    def be_nice(self) -> None:
        """Let every other process of the machine go first."""
        os.nice(NICENESS)

    def write(self, record: StepRecord) -> WrittenStep:
        """Write a step in place of one of this number, then delete what is beyond the bounds. Raises OSError, and
        Ray's errors for arrays that are gone."""
        start = time.monotonic()
        cpu_start = time.process_time()
        record = with_share(record, self.settings.share)
        self.files.remove(record.step)
        with self.files.replacing(self.files.rollouts(record.step)) as aside:
            self._write_rollouts(aside, record)
        with self.files.replacing(self.files.groups(record.step)) as aside:
            pq.write_table(groups_table(record), aside, compression="zstd")
        num_bytes = self.files.size(record.step)
        self.files.prune(self.settings)
        return WrittenStep(
            step=record.step,
            num_bytes=num_bytes,
            seconds=time.monotonic() - start,
            cpu_seconds=time.process_time() - cpu_start,
        )

    def _write_rollouts(self, path: Path, record: StepRecord) -> None:
        """One row group for every group."""
        with pq.ParquetWriter(path, ROLLOUT_SCHEMA, **ROLLOUT_OPTIONS) as file:
            for stored in record.groups:
                file.write_table(self._rollouts(record.step, stored))

    def _rollouts(self, step: int, stored: StoredGroup) -> pa.Table:
        arrays = fetch_all([chunk.data for chunk in stored.scored.group.chunks])
        table = rollouts_table(step, stored, arrays, None)
        if self.tokenizer is None:
            return table
        texts: list[str] = []
        for token_ids in table["token_ids"].to_pylist():
            texts.append(self.tokenizer.decode(token_ids))
        place = table.schema.get_field_index("text")
        return table.set_column(place, "text", pa.array(texts, pa.string()))


MAX_PENDING = 2  # steps that are being written: what they hold stays in the object store
FLUSH_S = 60.0  # a disk that is slower than that holds up no checkpoint
MAX_RESTARTS = 3

log = get_logger(__name__)


class ParquetStore:
    """The rollout store of a run folder."""

    def __init__(
        self,
        run_folder: Path,
        start_writer: Callable[[], Any] | None,
        transport: EngineTransport | None = None,
    ) -> None:
        """`start_writer`: makes the actor, a `StoreWriter`; None: nothing is kept."""
        self.files = StoreFiles(run_folder)
        self.transport = transport or RayTransport()
        self.writer = start_writer() if start_writer is not None else None
        self.pending: dict[Any, int] = {}  # step by reference, oldest first

    def write(self, record: StepRecord) -> None:
        """See `ports.RolloutStore`. A step that comes while too many are being written is left out."""
        if self.writer is None:
            return
        self._take(timeout_s=0.0)
        if len(self.pending) >= MAX_PENDING:
            log.warning("the rollouts of step %d are not stored: %d steps are still written", record.step, MAX_PENDING)
            return
        reference = self.writer.write.remote(record)
        self.pending[reference] = record.step

    def flush(self) -> None:
        """See `ports.RolloutStore`; gives up after FLUSH_S seconds, with a warning."""
        until = self.transport.now() + FLUSH_S
        while self.pending and self.transport.now() < until:
            self._take(until - self.transport.now())
        for step in self.pending.values():
            log.warning("the rollouts of step %d were not stored within %.0f s", step, FLUSH_S)

    def drop_after(self, step: int | None) -> None:
        """See `ports.RolloutStore`. Nothing is being written then."""
        self.files.drop_after(step)

    def _take(self, timeout_s: float) -> None:
        """Steps that have been written; the first within `timeout_s` if there is none yet."""
        finished = self.transport.wait(list(self.pending), timeout_s)
        results = self.transport.results(finished, timeout_s=1.0)
        for reference, result in zip(finished, results, strict=True):
            step = self.pending.pop(reference)
            if isinstance(result, Exception):
                log.warning("the rollouts of step %d were not stored: %s", step, explain(result))
            else:
                log.debug("stored %s", result)


def make_store(run_folder: Path, settings: StoreConfig, model_folder: Path) -> ParquetStore:
    """The store that the settings ask for; Ray is up."""

    def start() -> Any:
        import ray

        actor: Any = ray.remote(num_cpus=0, max_restarts=MAX_RESTARTS)(StoreWriter)
        writer = actor.remote(run_folder, settings, model_folder)
        writer.be_nice.remote()
        return writer

    return ParquetStore(run_folder, start if settings.enabled else None)
