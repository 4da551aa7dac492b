"""The Verifier port: Ray actors, each with one killable child process. The driver hands on references and never holds tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import ResourceError
from nemo_brorl.tokenizer import load_tokenizer
from nemo_brorl.types import RolloutChunk, ScoredChunk

CPUS_PER_WORKER = 0.1  # placement only: scoring takes turns with sampling on a small machine
MAX_RESTARTS = 3  # of a worker that died as a whole


class VerifierPool:
    """Scores chunks on `rewards.num_workers` workers while later chunks are still being sampled.

    The constructor starts the workers and returns at once; `wait_ready` waits for them. `plugins` are modules that every
    verifier process imports; they add to `nemo_brorl.rewards.VERIFIERS`. Raises ModelError when the tokenizer is unusable.
    """

    def __init__(self, config: BroRLConfig, model_folder: Path | str, plugins: Sequence[str] = ()) -> None:
        import ray

        from nemo_brorl.rewards.worker import VerifierWorker

        load_tokenizer(model_folder)  # a wrong folder is refused here, with its own message, and not by a dead actor
        actor: Any = ray.remote(num_cpus=CPUS_PER_WORKER, max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS)(VerifierWorker)
        shaping = config.rewards.shaping
        ngram = shaping.repetition_ngram if shaping.repetition_penalty > 0 else 0
        arguments = (str(Path(model_folder).absolute()), config.rewards.timeout_s, tuple(plugins), ngram)
        self.workers: list[Any] = [actor.remote(*arguments) for _ in range(config.rewards.num_workers)]
        self._load = [0] * len(self.workers)  # responses submitted and not yet scored, per worker

    def wait_ready(self) -> None:
        """Return once every worker can score. Raises ResourceError when one cannot start."""
        self._get([worker.wait_ready.remote() for worker in self.workers])

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        """Scored chunks in the order they finish; each is submitted as soon as `chunks` gives it."""
        import ray

        pending: dict[Any, tuple[RolloutChunk, int]] = {}
        try:
            for chunk in chunks:
                self._submit(chunk, pending)
                finished, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                yield from [self._collect(reference, pending) for reference in finished]
            while pending:
                finished, _ = ray.wait(list(pending), num_returns=1)
                yield from [self._collect(reference, pending) for reference in finished]
        finally:  # closed early: what was submitted is still scored, by workers that must not count as busy for ever
            for chunk, index in pending.values():
                self._load[index] -= len(chunk.lengths)

    def close(self) -> None:
        """Stop all workers; their children go with them."""
        import ray

        for worker in self.workers:
            ray.kill(worker)
        self.workers = []

    def _submit(self, chunk: RolloutChunk, pending: dict[Any, tuple[RolloutChunk, int]]) -> None:
        index = min(range(len(self.workers)), key=self._load.__getitem__)
        prompt = chunk.request.prompt
        # As an argument of its own the reference is resolved on the worker's side.
        reference = self.workers[index].score.remote(prompt.verifier, dict(prompt.payload), chunk.data)
        pending[reference] = (chunk, index)
        self._load[index] += len(chunk.lengths)

    def _collect(self, reference: Any, pending: dict[Any, tuple[RolloutChunk, int]]) -> ScoredChunk:
        chunk, index = pending.pop(reference)
        self._load[index] -= len(chunk.lengths)
        return ScoredChunk(chunk, *self._get(reference))

    def _get(self, references: Any) -> Any:
        import ray

        try:
            return ray.get(references)
        except ray.exceptions.RayActorError as error:
            raise ResourceError(f"a verifier worker died {MAX_RESTARTS + 1} times; is the machine out of memory? ({error})") from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
