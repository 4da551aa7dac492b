"""Life of a chunk inside an engine, over requests that are stepped by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nemo_brorl.generation import chunk_batch
from nemo_brorl.generation.chunk_batch import ChunkBatch
from nemo_brorl.generation.chunk_messages import ChunkFailure, ChunkMeta, ChunkProgress, Progress, Reply, ReturnedChunk
from nemo_brorl.generation.chunk_task import ChunkTask, Continuation, RolloutTask
from nemo_brorl.types import ChunkArrays, PartialRollouts, Prompt, RolloutRequest, Sampling

REQUEST = RolloutRequest(Prompt("a", "task", "verifier", (7, 8), {}), 0, 2, 100, Sampling(1.0, 1.0, 3))


class FakeRequests:
    """Room for `room` rollouts at a time; each gets the step's number as its token."""

    vocab_size = 100

    def __init__(self, room: int = 8) -> None:
        self.room = room
        self.tokens: dict[str, list[int]] = {}
        self.limits: dict[str, int] = {}
        self.versions: dict[str, list[int]] = {}  # of the tokens
        self.version = -1
        self.num_steps = 0

    def add(self, names: Sequence[str], tasks: Sequence[RolloutTask], sampling: Sampling) -> list[str]:
        identities = ["id " + name for name in names]
        for identity, task in zip(identities, tasks, strict=True):
            self.tokens[identity], self.versions[identity], self.limits[identity] = [], [], task.max_tokens
        return identities

    def step(self) -> list[tuple[str, Continuation]]:
        self.num_steps += 1
        running = list(self.tokens)[: self.room]
        for identity in running:
            self.tokens[identity].append(self.num_steps)
            self.versions[identity].append(self.version)
        ended = [identity for identity in running if len(self.tokens[identity]) == self.limits[identity]]
        outputs = [(identity[3:], replace(self.so_far(identity), has_ended=True)) for identity in ended]
        self.abort(ended)
        return outputs

    def num_tokens(self, identity: str) -> int | None:
        return len(self.tokens[identity]) if identity in self.tokens else None

    def so_far(self, identity: str) -> Continuation:
        tokens = list(self.tokens[identity])
        return Continuation(tokens, [-1.0] * len(tokens), self.versions[identity], has_ended=False, is_stopped=False)

    def abort(self, identities: Sequence[str]) -> None:
        for identity in identities:
            self.tokens.pop(identity, None)

    def set_version(self, version: int) -> None:
        self.version = version


def add(batch: ChunkBatch, call_id: int, request: RolloutRequest = REQUEST) -> Future[Reply]:
    answer: Future[Reply] = Future()
    batch.add(ChunkTask(call_id, request, None, answer))
    return answer


def meta_of(answer: Future[Reply]) -> Any:
    assert answer.done()
    return answer.result()[0]


def test_a_chunk_is_answered_when_its_last_rollout_ends() -> None:
    batch = ChunkBatch(FakeRequests(room=1))
    answer = add(batch, 1)
    for _ in range(5):
        batch.step()
    assert not answer.done()
    batch.step()
    assert meta_of(answer).lengths.tolist() == [3, 3]
    assert batch.is_idle
    assert (batch.num_samples, batch.num_tokens) == (2, 6)


def test_a_cut_chunk_is_answered_with_what_it_has() -> None:
    requests = FakeRequests(room=1)
    batch = ChunkBatch(requests)
    answer, other = add(batch, 1), add(batch, 2)
    for _ in range(4):
        batch.step()
    batch.cut([1])
    meta = meta_of(answer)
    assert meta.indices.tolist() == [0]
    assert meta.partial.indices.tolist() == [1]
    assert meta.partial.lengths.tolist() == [1]
    assert not any(identity.startswith("id 1/") for identity in requests.tokens), "it leaves the batch"
    assert not other.done()
    assert (batch.num_samples, batch.num_tokens) == (1, 4)


def test_a_cut_and_an_abort_may_overtake_their_chunk() -> None:
    batch = ChunkBatch(FakeRequests())
    batch.cut([1])
    assert meta_of(add(batch, 1)).partial.lengths.tolist() == [0, 0]
    batch.abort([2])
    assert isinstance(meta_of(add(batch, 2)), ReturnedChunk)
    assert batch.is_idle


def test_a_chunk_is_given_back_only_before_its_first_token() -> None:
    requests = FakeRequests(room=2)
    batch = ChunkBatch(requests)
    begun, waiting = add(batch, 1), add(batch, 2)
    batch.step()
    assert not batch.withdraw(1)
    assert batch.withdraw(2)
    assert isinstance(meta_of(waiting), ReturnedChunk)
    assert not begun.done()
    assert not batch.withdraw(3), "unknown"
    for _ in range(2):
        batch.step()
    assert isinstance(meta_of(begun), ChunkMeta)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, to be set."""
    now = [100.0]
    monkeypatch.setattr(chunk_batch.time, "monotonic", lambda: now[0])
    return now


def test_the_answer_tells_how_far_other_chunks_are(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests(room=3))
    first, second, _ = add(batch, 1), add(batch, 2), add(batch, 3)
    clock[0] += 1.0
    for _ in range(3):
        batch.step()
    assert meta_of(first).progress == (ChunkProgress(2, num_started=1, num_ended=1, age=0.0),), "chunk 3 has not begun"
    clock[0] += 1.0
    for _ in range(3):
        batch.step()
    assert meta_of(second).progress == (ChunkProgress(3, num_started=2, num_ended=2, age=0.0),)


def test_an_answer_soon_after_another_tells_nothing_of_other_chunks(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests())
    answers = [add(batch, number, replace(REQUEST, sampling=Sampling(1.0, 1.0, number))) for number in (1, 2, 3, 9)]
    clock[0] += 1.0
    for _ in range(2):
        batch.step()
    clock[0] += 0.25
    batch.step()
    assert [len(meta_of(answer).progress) for answer in answers[:3]] == [3, 0, 1]


def test_the_age_of_a_chunk_counts_what_its_rollouts_came_with(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests())
    first = add(batch, 1, replace(REQUEST, sampling=Sampling(1.0, 1.0, 1)))
    partial = PartialRollouts(np.array([0, 1], np.int32), np.array([2, 0], np.int32), 0, None)
    partial_arrays = ChunkArrays(np.array([5, 6], np.int32), np.array([-1.0, -1.0], np.float32), np.array([0, 2, 2]))
    batch.add(ChunkTask(2, replace(REQUEST, sampling=Sampling(1.0, 1.0, 9), partial=partial), partial_arrays, Future()))
    clock[0] += 1.0
    batch.step()
    assert meta_of(first).progress == (ChunkProgress(2, num_started=2, num_ended=0, age=2.0),), "3 and 1"


def ask(batch: ChunkBatch, every: int, within_s: float = 1000.0) -> Future[Progress]:
    answer: Future[Progress] = Future()
    batch.report(every, within_s, answer)
    return answer


def test_a_report_comes_when_enough_rollouts_have_ended(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests(room=2))
    news = ask(batch, every=2)
    add(batch, 1, replace(REQUEST, num_rollouts=5))
    clock[0] += 1.0
    for _ in range(2):
        batch.step()
    assert not news.done()
    batch.step()
    assert news.result() == (ChunkProgress(1, num_started=2, num_ended=2, age=0.0),)
    news = ask(batch, every=2)
    for _ in range(3):
        batch.step()
    assert not news.done(), "0.0 s after the last one"
    clock[0] += 1.0
    batch.step()
    assert news.result() == (ChunkProgress(1, num_started=5, num_ended=4, age=1.0),)


def test_a_report_comes_after_its_time_whatever_has_ended(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests())
    news = ask(batch, every=100, within_s=5.0)
    clock[0] += 60.0
    add(batch, 1)
    batch.step()
    assert not news.done(), "the engine was idle until now"
    clock[0] += 5.0
    batch.step()
    assert news.result() == (ChunkProgress(1, num_started=2, num_ended=0, age=2.0),)


def test_a_chunk_that_is_done_carries_the_news_itself(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests())
    add(batch, 1)
    add(batch, 2, replace(REQUEST, sampling=Sampling(1.0, 1.0, 5)))
    news = ask(batch, every=2)
    clock[0] += 1.0
    for _ in range(3):
        batch.step()
    assert not news.done(), "two have ended, which the answer to chunk 1 told"
    clock[0] += 1.0
    batch.step()
    batch.step()
    assert batch.is_idle
    assert not news.done(), "an engine without chunks has no news"


def test_only_one_question_is_open_and_an_abort_ends_it(clock: list[float]) -> None:
    batch = ChunkBatch(FakeRequests())
    first, second = ask(batch, every=1), ask(batch, every=1)
    assert first.result() == ()
    add(batch, 1)
    batch.abort([])
    assert second.result() == ()


def test_the_time_of_a_chunk_runs_from_its_first_token() -> None:
    batch = ChunkBatch(FakeRequests(room=2))
    add(batch, 1)
    waiting = add(batch, 2, replace(REQUEST, deadline_s=0.0))
    for _ in range(3):
        batch.step()
    assert not waiting.done(), "it waited for the first chunk"
    batch.step()
    batch.step()
    assert meta_of(waiting).partial is not None


def test_a_chunk_knows_the_oldest_and_the_newest_version_of_its_tokens() -> None:
    batch = ChunkBatch(FakeRequests())
    batch.set_version(4)
    answer = add(batch, 1)
    batch.step()
    batch.set_version(5)
    later = add(batch, 2)
    for _ in range(3):
        batch.step()
    assert (meta_of(answer).version, meta_of(answer).newest_version) == (4, 5)
    assert (meta_of(later).version, meta_of(later).newest_version) == (5, 5)


def test_after_a_failure_nothing_is_sampled() -> None:
    batch = ChunkBatch(FakeRequests())
    before = add(batch, 1)
    batch.fail(ChunkFailure("broken"))
    assert meta_of(before) == ChunkFailure("broken")
    assert meta_of(add(batch, 2)) == ChunkFailure("broken")
    assert batch.is_idle


def test_a_chunk_says_when_it_came_began_and_ended() -> None:
    batch = ChunkBatch(FakeRequests(room=2))
    before = time.time()
    first, second = add(batch, 1), add(batch, 2)
    for _ in range(6):
        batch.step()
    one, other = meta_of(first).period, meta_of(second).period
    assert before - 1e-3 <= one.received_at <= one.began_at <= one.ended_at <= time.time()
    assert other.began_at >= one.ended_at - 1e-3  # it waited for room
    assert other.received_at <= one.ended_at
