"""The ChunkScorer port over Ray actors, whose child processes may hang or crash.

The driver passes references on and never holds tokens.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from brorl_graders.base.names import allowed
from brorl_graders.verifiers.registry import check_name, endpoints_in

from nemo_brorl.cluster.object_store import wait_any
from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.template_files import BY_DEFAULT, TemplateSettings
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.scoring.turns import ResponseScores
from nemo_brorl.types import RolloutChunk, ScoredChunk

CPUS_PER_WORKER = 0.1  # a reservation for Ray's placement only: on a small machine scoring and sampling share cores
MAX_RESTARTS = 3  # restarts of a worker that died
CHUNKS_AT_ONCE = 16  # running chunks of a worker, so that one slow verifier does not block the other chunks
HOME_ADVANTAGE = 64  # responses that a prompt's own worker may have more than the least busy one
SERVICE_COUNTS = (
    "responses",
    "asked",
    "requests",
    "retries",
    "failed",
    "prompt_tokens",
    "completion_tokens",
)
WAIT_S = 10.0  # longest wait of `score` between two polls
NO_NUMBERS = np.zeros(0, np.float32)
NO_SCORES = ResponseScores(
    NO_NUMBERS, 0, NO_NUMBERS, np.zeros(0, np.uint64), NO_NUMBERS
)  # scores of a chunk without responses


def scored_chunk(
    chunk: RolloutChunk,
    scores: ResponseScores,
    ended: Any = None,
    unfinished: Any = None,
) -> ScoredChunk:
    """Return a chunk of scored rollouts: the responses that have a score, with the unfinished trajectories set apart.

    If some responses are unfinished or have no score, `ended` is a Ray reference to the tokens of the scored ones. The
    tokens of the unfinished ones are at `unfinished`.
    """
    partial = scores.unfinished
    if partial is not None:
        partial = replace(partial, data=unfinished)
    if scores.ended is not None:
        rows = scores.ended
        chunk = replace(
            chunk,
            indices=chunk.indices[rows],
            lengths=chunk.lengths[rows],
            num_sampled=None if chunk.num_sampled is None else chunk.num_sampled[rows],
            data=ended,
        )
    if scores.is_stopped is not None:
        chunk = replace(chunk, is_stopped=scores.is_stopped)
    return ScoredChunk(
        chunk=chunk,
        rewards=scores.rewards,
        num_failed=scores.num_failed,
        repetition=scores.repetition,
        keys=scores.keys,
        log_probs=scores.log_probs,
        answers=scores.answers,
        evidence=scores.evidence,
        turns=scores.turns,
        unfinished=partial,
        period=scores.period,
        reasons=scores.reasons,
        failed=scores.failed,
    )


def _key(first_index: int, chunk: RolloutChunk) -> tuple[str, int]:
    """Return the key of a chunk's unfinished trajectories in the table of the workers that hold their environments.

    It is the uid of the prompt and the index of the first unfinished trajectory.
    """
    return chunk.request.prompt.uid, first_index


class Submission(NamedTuple):
    """A chunk that is being scored or waits for its worker."""

    chunk: RolloutChunk
    worker: int
    ended: Any  # reference to the arrays of the ended responses, if some have not ended
    unfinished: Any  # reference to the arrays of the unfinished responses


class VerifierPool:
    """A pool of `rewards.num_workers` workers that score chunks while later chunks are still being sampled.

    The constructor starts the workers and returns at once. `wait_ready` waits for them. Then call `submit` and `poll`
    in any order, or `score`, which does both. `verifiers` are loaded before `wait_ready` returns, and others when a
    prompt first needs them. With `with_answers`, scored chunks have their answers. `record_folder` stores the replies
    of services. Prompts may use the names that are allowed in this process (`graders/brorl_graders/base/names.py`).

    Raises ConfigError for a name that is not allowed, and ModelError when the tokenizer is unusable.
    """

    def __init__(
        self,
        config: RewardsConfig,
        model_folder: Path | str,
        verifiers: Sequence[str] = (),
        with_answers: bool = False,
        record_folder: Path | None = None,
        template: TemplateSettings = BY_DEFAULT,
    ) -> None:
        import ray

        from nemo_brorl.scoring.worker import VerifierWorker

        for verifier in verifiers:
            check_name(verifier)
        load_tokenizer(model_folder, template=template)  # a wrong folder raises here, and not in an actor
        options = {"num_cpus": CPUS_PER_WORKER, "max_concurrency": CHUNKS_AT_ONCE}
        actor: Any = ray.remote(max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS, **options)(VerifierWorker)
        shaping = config.shaping
        ngram = shaping.repetition_ngram if shaping.repetition_penalty > 0 else 0
        arguments = (
            str(Path(model_folder).absolute()),
            config.timeout_s,
            tuple(verifiers),
            ngram,
            config,
            with_answers,
        )
        self.workers: list[Any] = []
        for index in range(config.num_workers):
            worker = actor.remote(*arguments, (record_folder, index), allowed(), template)
            self.workers.append(worker)
        self._usage: dict[str, float] = {}  # use of services and processes since the last call of `metrics`
        self._load = [0] * len(self.workers)  # responses submitted and not yet scored, per worker
        self._moved_at = [time.monotonic()] * len(
            self.workers
        )  # time when each worker last got work after idling, or finished a chunk
        self._scoring: dict[Any, Submission] = {}  # key: reference to the scores; oldest first
        self._empty: list[ScoredChunk] = []
        self._holders: dict[tuple[str, int], int] = {}  # unfinished trajectories → worker with their environments

    def wait_ready(self) -> None:
        """Block until every verifier worker can score responses.

        Raises ConfigError when a verifier cannot be loaded, and ResourceError when a worker cannot start.
        """
        self._get([worker.wait_ready.remote() for worker in self.workers])

    def submit(
        self,
        chunk: RolloutChunk,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Send a chunk of rollouts to a verifier worker for scoring, in one Ray call.

        The worker is the one that holds the environments of the chunk's trajectories, or else the one with the least
        work. Among about equal ones it is the worker that scored the prompt's other chunks and knows their verdicts. If
        a service scores the prompt, all its chunks go to one fixed worker, so that each text is sent to the service
        once. A chunk without responses goes to no worker, and the next `poll` returns it. `rows`: indices of the
        responses to score, the others get reward 0. None: all.
        """
        if not len(chunk.lengths):
            self._empty.append(scored_chunk(chunk, NO_SCORES))
            return
        prompt = chunk.request.prompt
        if endpoints_in(prompt.verifier, prompt.payload):
            index = self._home(repr(prompt.token_ids))
        else:
            index = self._holders.pop(_key(chunk.request.first_index, chunk), self._least_busy(prompt.uid))
        # The reference is an argument of its own, so Ray fetches the tokens on the worker's side.
        judge = self.workers[index].judge.options(num_returns=3)
        without_data = replace(chunk, data=None, partial=None)
        reference, ended, unfinished = judge.remote(without_data, chunk.data, rows)
        self._scoring[reference] = Submission(chunk, index, ended, unfinished)
        if not self._load[index]:
            self._moved_at[index] = time.monotonic()
        self._load[index] += len(chunk.lengths)

    def _least_busy(self, uid: str) -> int:
        home = self._home(uid)
        cost = list(self._load)
        cost[home] -= HOME_ADVANTAGE
        return cost.index(min(cost))

    def _home(self, name: str) -> int:
        """Return the index of the verifier worker to which a prompt is assigned, always the same one for its `name`."""
        digest = zlib.crc32(name.encode())
        return digest % len(self.workers)

    def poll(self) -> list[ScoredChunk]:
        """Return the chunks of rollouts that were scored since the last call, in at most two Ray calls.

        Raises ResourceError when a worker died too often.
        """
        import ray

        scored = self._empty
        self._empty = []
        if not self._scoring:
            return scored
        finished, _ = ray.wait(list(self._scoring), num_returns=len(self._scoring), timeout=0)
        if not finished:
            return scored
        for reference, scores in zip(finished, self._get(finished), strict=True):
            submission = self._end(reference)
            for name, num in (scores.usage or {}).items():
                before = self._usage.get(name, 0.0)
                self._usage[name] = before + num
            judged = scored_chunk(submission.chunk, scores, submission.ended, submission.unfinished)
            if judged.unfinished is not None:
                first_index = int(judged.unfinished.indices[0])
                self._holders[_key(first_index, submission.chunk)] = submission.worker
            scored.append(replace(judged, worker=submission.worker))
        return scored

    def metrics(self) -> dict[str, float]:
        """Return metrics of late verifiers and of requests to scoring services, the latter only where there are any.

        They are about the chunks of rollouts that `poll` has returned since the last call of `metrics`.
        """
        usage = self._usage
        self._usage = {}
        late = {"reward/late_s": usage.pop("late_s", 0.0)}
        if not usage:
            return late
        num_requests = max(usage.get("requests", 0.0), 1.0)
        request_s = usage["request_s"] / num_requests
        metrics = {**late, "service/request_s": request_s}
        for name in SERVICE_COUNTS:
            metrics[f"service/{name}"] = usage.get(name, 0.0)
        return metrics

    def pending(self) -> list[Any]:
        """Return Ray references to wait on: when one of them resolves, `poll` may return newly scored rollouts."""
        return list(self._scoring)

    def stalled(self, seconds: float) -> list[str]:
        """Describe each verifier worker that has rollouts to score and has finished none for more than `seconds`.

        Safe to call from any thread.
        """
        import ray

        scoring = dict(self._scoring)
        if not scoring:
            return []
        _, unfinished = ray.wait(list(scoring), num_returns=len(scoring), timeout=0)
        busy_workers = {scoring[reference].worker for reference in unfinished}
        late: list[str] = []
        for worker in sorted(busy_workers):
            waited = time.monotonic() - self._moved_at[worker]
            if waited > seconds:
                late.append(f"verifier {worker} for {waited:.0f} s")
        return late

    def forget(self) -> None:
        """Drop all chunks of rollouts that were submitted and not polled. No later `poll` returns them.

        Environments of unfinished trajectories end. They are made again if the trajectory is resumed.
        """
        self._empty = []
        holders = set(self._holders.values())
        for reference in list(self._scoring):
            holders.add(self._end(reference).worker)
        self._holders.clear()
        for worker in holders:
            self.workers[worker].end_episodes.remote()

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        """Score chunks of rollouts as `chunks` yields them, and yield each as soon as it is scored.

        No other chunk may be submitted meanwhile. Chunks that were submitted before are dropped.
        """
        self.forget()
        try:
            for chunk in chunks:
                self.submit(chunk)
                yield from self.poll()
            while self.pending() or self._empty:
                wait_any(self.pending(), WAIT_S)
                yield from self.poll()
        finally:
            self.forget()

    def close(self) -> None:
        """Stop all verifier workers and their child processes."""
        import ray

        for worker in self.workers:
            ray.kill(worker)
        self.workers = []

    def _end(self, reference: Any) -> Submission:
        """Remove a chunk of rollouts from those that are being scored, and return it with the index of its worker."""
        submission = self._scoring.pop(reference)
        self._moved_at[submission.worker] = time.monotonic()
        self._load[submission.worker] -= len(submission.chunk.lengths)
        return submission

    def _get(self, references: Any) -> Any:
        import ray

        try:
            return ray.get(references)
        except ray.exceptions.RayActorError as error:
            raise ResourceError(
                f"a verifier worker died {MAX_RESTARTS + 1} times; is the machine out of memory? ({error})"
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
