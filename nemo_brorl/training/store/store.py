"""The RolloutStore port over a Ray actor that writes Parquet files.

The driver passes on records, which are small fields and references. It waits for the disk only before a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_brorl.cluster.actor_transport import ActorTransport, RayTransport, explain
from nemo_brorl.config.records import StoreConfig
from nemo_brorl.core.console import get_logger
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.types import StepRecord

MAX_PENDING = 2  # largest number of steps being written, whose arrays stay in the object store
FLUSH_S = 60.0  # longest time that a checkpoint waits for the disk
MAX_RESTARTS = 3

log = get_logger(__name__)


class ParquetStore:
    """The rollout store of a run folder."""

    def __init__(
        self,
        run_folder: Path,
        start_writer: Callable[[], Any] | None,
        transport: ActorTransport | None = None,
    ) -> None:
        """Start the process that writes rollouts to the rollout store, if rollouts are stored.

        `start_writer` makes the `StoreWriter` actor. None: nothing is stored.
        """
        self.files = StoreFiles(run_folder)
        self.transport = transport or RayTransport()
        self.writer = start_writer() if start_writer is not None else None
        # Reference → step, oldest first. While it is here, Ray keeps the step's arrays.
        self.pending: dict[Any, int] = {}

    def write(self, record: StepRecord) -> None:
        """Pass the rollouts of a training step to the process that stores them.

        They are left out, with a warning, if too many steps are still being written.
        """
        if self.writer is None:
            return
        self._receive_results(timeout_s=0.0)
        if len(self.pending) >= MAX_PENDING:
            log.warning(
                "the rollouts of step %d are not stored, because %d steps are still being written",
                record.step,
                MAX_PENDING,
            )
            return
        reference = self.writer.write.remote(record)
        self.pending[reference] = record.step

    def flush(self) -> None:
        """Block until the rollouts of all steps are stored, at most FLUSH_S seconds, and warn of steps that are not."""
        until = self.transport.now() + FLUSH_S
        while self.pending and self.transport.now() < until:
            self._receive_results(until - self.transport.now())
        for step in self.pending.values():
            log.warning("the rollouts of step %d were not stored within %.0f s", step, FLUSH_S)

    def drop_after(self, step: int | None) -> None:
        """Delete the stored rollouts of steps after `step`, or of all steps for None.

        No step may be being written.
        """
        self.files.drop_after(step)

    def _receive_results(self, timeout_s: float) -> None:
        """Log the results of finished writes to the rollout store.

        If no write has finished yet, wait at most `timeout_s` for the first.
        """
        finished = self.transport.wait(list(self.pending), timeout_s)
        results = self.transport.results(finished, timeout_s=1.0)
        for reference, result in zip(finished, results, strict=True):
            step = self.pending.pop(reference)
            if isinstance(result, Exception):
                log.warning("the rollouts of step %d were not stored: %s", step, explain(result))
            else:
                log.debug("stored %s", result)


def make_store(run_folder: Path, settings: StoreConfig, model_folder: Path) -> ParquetStore:
    """Return the rollout store that the settings describe. Ray must be running."""

    def start() -> Any:
        import ray

        from nemo_brorl.training.store.writer import StoreWriter

        # It reserves no core, because it has low priority and waits for the disk most of the time.
        actor: Any = ray.remote(num_cpus=0, max_restarts=MAX_RESTARTS)(StoreWriter)
        writer = actor.remote(run_folder, settings, model_folder)
        writer.be_nice.remote()
        return writer

    return ParquetStore(run_folder, start if settings.enabled else None)
