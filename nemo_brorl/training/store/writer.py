"""Ray actor that writes steps to the rollout store.

It fetches the arrays of one group at a time from the object store, so neither it nor the driver ever holds a whole
step.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nemo_brorl.cluster.object_store import fetch_all
from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.template_files import DECODES
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.training.store.columns import ROLLOUT_SCHEMA
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.tables import ROLLOUT_OPTIONS, groups_table, rollouts_table
from nemo_brorl.types import StepRecord, StoredGroup

NICENESS = 10  # lower priority than training
DRAW_BYTES = 6  # bytes of a uid's hash that decide about a group


@dataclass(frozen=True)
class WrittenStep:
    """Size and duration of writing a step."""

    step: int
    num_bytes: int
    seconds: float
    cpu_seconds: float


def with_share(record: StepRecord, share: float) -> StepRecord:
    """Return a step's record for the rollout store with a random fraction `share` of the step's groups.

    The prompt's uid decides, so a group that is carried over to later steps is stored in all of these steps or in none.
    """
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
    """Writer of one run folder's rollout store."""

    def __init__(
        self,
        run_folder: Path,
        settings: StoreConfig,
        model_folder: Path,
    ) -> None:
        """Open the rollout store in a run folder for writing.

        `model_folder` has the tokenizer, which is used if store.text is on.
        """
        self.files = StoreFiles(run_folder)
        self.settings = settings
        self.tokenizer: ChatTokenizer | None = load_tokenizer(model_folder, template=DECODES) if settings.text else None
        # Compression on all cores would slow training down.
        pa.set_cpu_count(1)

    def be_nice(self) -> None:
        """Lower the priority of the process that writes the rollout store, so that training goes first."""
        os.nice(NICENESS)

    def write(self, record: StepRecord) -> WrittenStep:
        """Write the rollouts of a training step, replacing those of a step of the same number.

        The oldest steps beyond the bounds of the rollout store are then deleted. Raises OSError, and Ray's errors for
        arrays that were lost.
        """
        start = time.monotonic()
        cpu_start = time.process_time()
        record = with_share(record, self.settings.share)
        # A resumed run repeats a step. Half of the old one must not be mixed with half of the new one.
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
        """Write the rollouts of a step, one Parquet row group for every group."""
        with pq.ParquetWriter(path, ROLLOUT_SCHEMA, **ROLLOUT_OPTIONS) as file:
            for stored in record.groups:
                file.write_table(self._rollouts(record.step, stored))

    def _rollouts(self, step: int, stored: StoredGroup) -> pa.Table:
        arrays = fetch_all([chunk.data for chunk in stored.scored.group.chunks])
        table = rollouts_table(step, stored, arrays)
        if self.tokenizer is None:
            return table
        texts: list[str] = []
        for token_ids in table["token_ids"].to_pylist():
            texts.append(self.tokenizer.decode(token_ids))
        place = table.schema.get_field_index("text")
        return table.set_column(place, "text", pa.array(texts, pa.string()))
