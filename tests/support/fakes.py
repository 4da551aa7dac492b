"""Small stand-ins behind the ports, and makers of carriers, for unit tests of the loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.ports import Forecast, WeightTarget
from nemo_brorl.rollouts.ledger import close_group
from nemo_brorl.types import (
    ChunkArrays,
    EngineStats,
    FailedRollouts,
    Float32,
    PartialRollouts,
    Prompt,
    RankRehearsal,
    RolloutChunk,
    RolloutRequest,
    Sampling,
    ScoredChunk,
    ScoredGroup,
    StepRecord,
    StreamedBucket,
    TensorInfo,
    UpdatePlan,
    UpdateReport,
    WeightLink,
)

SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_tokens=8)


def make_prompt(uid: str = "train/0", num_tokens: int = 3, task: str = "toy") -> Prompt:
    return Prompt(uid, task, "toy", tuple(range(num_tokens)), {"answer": "1"})


def make_chunk(request: RolloutRequest, lengths: Sequence[int], version: int = 0) -> RolloutChunk:
    """Tokens are 10 · rollout + position, so a test can tell whose they are."""
    sizes = np.asarray(lengths, np.int32)
    arrays = make_arrays(request.indices.tolist(), lengths)
    return RolloutChunk(
        request, request.indices, sizes, np.ones(len(sizes), bool), version, version, engine=0, data=arrays
    )


def make_arrays(indices: Sequence[int], lengths: Sequence[int]) -> ChunkArrays:
    tokens = [10 * index + position for index, size in zip(indices, lengths, strict=True) for position in range(size)]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ChunkArrays(np.asarray(tokens, np.int32), np.full(len(tokens), -0.5, np.float32), offsets)


def make_group(
    rewards: Sequence[float],
    uid: str = "train/0",
    lengths: Sequence[int] | None = None,
    version: int = 0,
    prompt_tokens: int = 3,
) -> ScoredGroup:
    prompt = make_prompt(uid, prompt_tokens)
    chunk = make_chunk(RolloutRequest(prompt, 0, len(rewards), 0, SAMPLING), lengths or [2] * len(rewards), version)
    return close_group(prompt, [score_chunk(chunk, rewards)])


def score_chunk(chunk: RolloutChunk, rewards: Sequence[float]) -> ScoredChunk:
    """Every response another one, of probability 1/8."""
    num = len(rewards)
    keys, log_probs = chunk.indices.astype(np.uint64), np.full(num, -np.log(8), np.float32)
    return ScoredChunk(chunk, np.asarray(rewards, np.float32), 0, np.zeros(num, np.float32), keys, log_probs)


class FakePrompts:
    """Prompts train/0, train/1, …"""

    def __init__(self) -> None:
        self.accepted_changes: list[str] = []
        self.position = 0
        self.taken: list[str] = []

    def take_prompts(self, num: int) -> list[Prompt]:
        prompts = [make_prompt(f"train/{self.position + index}") for index in range(num)]
        self.position += num
        self.taken += [prompt.uid for prompt in prompts]
        return prompts

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        return []

    def metrics(self) -> dict[str, float]:
        return {"prompts/too_long": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


class FakeGenerator:
    """Answers every request with two tokens per rollout, last request first."""

    loses_weights = False  # when it sleeps
    num_per_poll: int | None = None  # of its sessions
    held_from: int | None = None  # of its sessions

    def __init__(self) -> None:
        self.version = 0
        self.num_samples = 0
        self.loads: list[tuple[int, list[Any]]] = []
        self.calls: list[str] = []  # sleep, wake_weights, wake_cache: in order

    def open_session(self, forecast: Forecast | None = None) -> FakeSession:
        session = FakeSession(self)
        session.num_per_poll = self.num_per_poll
        session.held_from = self.held_from
        return session

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        for request in reversed(requests):
            yield self.answer(request, request.num_rollouts)

    def answer(self, request: RolloutRequest, num_ended: int) -> RolloutChunk:
        """The first `num_ended` rollouts have two tokens; the others are unfinished after one."""
        self.num_samples += num_ended
        oldest = self.version if request.partial is None else min(self.version, request.partial.version)
        chunk = make_chunk(request, [2] * request.num_rollouts, oldest)
        chunk = replace(chunk, newest_version=self.version, indices=request.indices[:num_ended])
        if num_ended == request.num_rollouts:
            return chunk
        ended, rest = request.indices[:num_ended], request.indices[num_ended:]
        return replace(
            chunk,
            lengths=chunk.lengths[:num_ended],
            is_stopped=chunk.is_stopped[:num_ended],
            data=make_arrays(ended.tolist(), [2] * len(ended)),
            partial=PartialRollouts(
                rest, np.ones(len(rest), np.int32), oldest, make_arrays(rest.tolist(), [1] * len(rest))
            ),
        )

    def on_lost_weights(self, publish_again: Callable[[WeightTarget], None]) -> None:
        self.publish_again = publish_again

    def weight_receivers(self) -> tuple[str, ...]:
        return ("engine 0",)

    def join_weight_link(self, link: WeightLink) -> None:
        raise AssertionError("the fake policy opens no link")

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[StreamedBucket], version: int) -> int:
        self.loads.append((version, [bucket.message for bucket in buckets]))
        self.version = version
        return 0

    def stats(self) -> list[EngineStats]:
        return [
            EngineStats(
                0,
                self.version,
                100 * self.num_samples,
                90 * self.num_samples,
                0,
                2 * self.num_samples,
                self.num_samples,
            )
        ]

    def sleep(self) -> Mapping[str, float]:
        self.calls.append("sleep")
        return {"generation/residual_gib_max": 0.5}

    def stalled(self, seconds: float) -> list[str]:
        return []

    def wake_weights(self) -> bool:
        self.calls.append("wake_weights")
        return self.loses_weights

    def wake_cache(self) -> None:
        self.calls.append("wake_cache")

    def close(self) -> None:
        pass


class FakeSession:
    """Last request first, `num_per_poll` chunks at a time; requests of `held` prompts, or for places in a group from
    `held_from` on, end only when they are cut."""

    num_per_poll: int | None = None  # None: all there are
    held: frozenset[str] = frozenset()
    held_from: int | None = None
    num_ended_when_cut = 0  # rollouts of a request that had ended when it was cut

    def __init__(self, generator: FakeGenerator) -> None:
        self.generator = generator
        self.waiting: list[RolloutRequest] = []
        self.was_cut: list[RolloutChunk] = []
        self.submitted: list[RolloutRequest] = []
        self.is_closed = False

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        assert not self.is_closed
        self.waiting += requests
        self.submitted += requests

    def cut(self, uids: Collection[str]) -> None:
        for request in [request for request in self.waiting if request.prompt.uid in uids]:
            self.waiting.remove(request)
            self.was_cut.append(self.generator.answer(request, self.num_ended_when_cut))

    def poll(self) -> list[RolloutChunk]:
        free = [request for request in reversed(self.waiting) if not self._is_held(request)][: self.num_per_poll]
        self.waiting = [request for request in self.waiting if not any(request is taken for taken in free)]
        cut, self.was_cut = self.was_cut, []
        return cut + [self.generator.answer(request, request.num_rollouts) for request in free]

    def _is_held(self, request: RolloutRequest) -> bool:
        is_late = self.held_from is not None and request.first_index >= self.held_from
        return is_late or request.prompt.uid in self.held

    def pending(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.waiting, self.is_closed = [], True


class FakeVerifier:
    """Rewards rollout i of prompt train/k with 1 if i % (k % period + 1) == 0: k % period == 0 makes an all-correct
    group."""

    def __init__(self, period: int = 3) -> None:
        self.period = period
        self.submitted: list[RolloutChunk] = []

    def submit(self, chunk: RolloutChunk, places: Sequence[int] | None = None) -> None:
        self.submitted.append(chunk)

    def poll(self) -> list[ScoredChunk]:
        chunks, self.submitted = self.submitted, []
        return [self.scored(chunk) for chunk in chunks]

    def metrics(self) -> dict[str, float]:
        return {}

    def pending(self) -> list[Any]:
        return []

    def forget(self) -> None:
        self.submitted = []

    def stalled(self, seconds: float) -> list[str]:
        return []

    def score(self, chunks: Iterable[RolloutChunk]) -> Iterator[ScoredChunk]:
        return map(self.scored, chunks)

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        key = int(chunk.request.prompt.uid.rsplit("/", 1)[1]) % self.period + 1
        return score_chunk(chunk, (chunk.indices % key == 0).tolist())

    def close(self) -> None:
        pass


class FailingVerifier(FakeVerifier):
    """Fails on the rollouts with these indices in every group."""

    def __init__(self, failing: Collection[int], error: str = "crashed") -> None:
        super().__init__()
        self.failing = failing
        self.error = error

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        scored = super().scored(chunk)
        lost = np.array([index in self.failing for index in chunk.indices.tolist()])
        if not lost.any():
            return scored
        kept = chunk.indices[~lost]
        left = replace(
            chunk,
            indices=kept,
            lengths=chunk.lengths[~lost],
            is_stopped=chunk.is_stopped[~lost],
            data=make_arrays(kept.tolist(), [2] * len(kept)),
        )
        return replace(
            scored,
            chunk=left,
            rewards=scored.rewards[~lost],
            repetition=scored.repetition[~lost],
            keys=scored.keys[~lost],
            log_probs=scored.log_probs[~lost],
            num_failed=int(lost.sum()),
            failed=FailedRollouts(chunk.indices[lost], (self.error,) * int(lost.sum())),
        )


class FakePolicy:
    """Its weight is one number: the sum of what it was trained on, so that two runs can be compared."""

    data_parallel_size = 1
    weight_transport = "object_store"

    def __init__(self, num_skipped: int = 0) -> None:
        self.weight = 0.0
        self.plans: list[UpdatePlan] = []
        self.num_skipped = num_skipped
        self.mismatch = 0.0  # of every update, in nats
        self.exports: list[Path] = []
        self.reference_resets: list[bool] = []  # whether the optimizer was cleared
        self.calls: list[str] = []  # offload, onload, update, publish: in order
        self.pending: tuple[Path, float] | None = None  # a save under way and the weight it is of
        self.num_turns = 0  # of finish_update until an update that was begun is over
        self.num_polls = 1  # of finish_save until the files of a save are written
        self.rehearsals = [RankRehearsal(1.0, 0.0, 1.0, is_unchanged=True, peak_gib=None, room_gib=None)]
        self.write_errors: list[str] = []  # for the next saves, one each

    def update(self, plan: UpdatePlan) -> UpdateReport:
        self.calls.append("update")
        self.plans.append(plan)
        moved = float(sum(np.abs(group.advantages).sum() for group in plan.groups))
        self.weight += plan.loss_scale * moved + plan.version
        metrics = {"policy/loss": 0.0, "policy/grad_norm": 1.0, "policy/log_prob_mismatch": self.mismatch}
        seconds = {"fetch": 0.0, "log_prob": 0.0, "update": 0.0}
        return UpdateReport(plan.version, metrics, seconds, len(plan.mini_batches) - self.num_skipped, self.num_skipped)

    def stalled(self, seconds: float) -> list[str]:
        return []

    def begin_update(self, plan: UpdatePlan) -> None:
        self.calls.append("begin_update")
        self.started: tuple[UpdatePlan, int] = (plan, self.num_turns)

    def finish_update(self, timeout_s: float | None = None) -> UpdateReport | None:
        plan, turns_left = self.started
        if turns_left and timeout_s is not None:
            self.started = (plan, turns_left - 1)
            return None
        return self.update(plan)

    def rehearse(self, num_tokens: int) -> list[RankRehearsal]:
        self.calls.append("rehearse")
        return self.rehearsals

    def log_probs(
        self, prompt_ids: Sequence[Sequence[int]], response_ids: Sequence[Sequence[int]], with_fp8: bool = True
    ) -> list[Float32]:
        return [np.full(len(response), -0.5, np.float32) for response in response_ids]

    hf_log_probs = log_probs

    def weight_manifest(self) -> list[TensorInfo]:
        return [TensorInfo("w", (1,), "float32")]

    def open_weight_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        return None

    def weight_stream(self) -> Iterator[StreamedBucket]:
        self.calls.append("publish")
        yield StreamedBucket(self.weight, 4)

    def begin_save(self, folder: Path) -> None:
        assert self.pending is None, "one save at a time"
        self.pending, self.polls_left = (folder, self.weight), self.num_polls

    def finish_save(self, wait: bool) -> float | None:
        assert self.pending is not None
        self.polls_left -= 1
        if self.polls_left > 0 and not wait:
            return None
        (folder, weight), self.pending = self.pending, None
        if self.write_errors:
            raise CheckpointError(f"{folder}: {self.write_errors.pop(0)}")
        (folder / "weight.json").write_text(json.dumps(weight))
        return 0.5

    def load(self, folder: Path) -> None:
        try:
            self.weight = json.loads((folder / "weight.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{folder}: {error}") from error

    def export(self, folder: Path) -> None:
        self.exports.append(folder)

    def reset_reference(self, clear_optimizer: bool) -> None:
        self.reference_resets.append(clear_optimizer)

    def release(self) -> None:
        self.calls.append("release")

    def offload(self) -> None:
        self.calls.append("offload")

    def onload(self) -> None:
        self.calls.append("onload")

    def close(self) -> None:
        pass


class ListSink:
    """Keeps rows in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))

    def close(self) -> None:
        pass


class ListStore:
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.dropped_after: list[int | None] = []
        self.num_flushes = 0

    def write(self, record: StepRecord) -> None:
        self.records.append(record)

    def flush(self) -> None:
        self.num_flushes += 1

    def drop_after(self, step: int | None) -> None:
        self.dropped_after.append(step)
