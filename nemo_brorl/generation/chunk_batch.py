"""The chunks in one vLLM engine's batch. Everything here happens on the engine's vLLM thread."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection
from typing import Any

from nemo_brorl.generation.chunk_work import ChunkFailure, ChunkMeta, ChunkProgress, ChunkWork, Withdrawn, continuation_of


class ChunkBatch:
    """Life of a chunk: `add` puts its rollouts into vLLM, each as a request of its own (vLLM would keep those of one request to
    itself until the last has ended) → `step`s sample them together with everything else → answered when its last one has
    ended, or earlier by `cut`; `withdraw` and `abort` drop it, with `Withdrawn` as the answer.

    `cut` and `abort` may overtake the chunk on its way here: flights that are not known are remembered.
    """

    def __init__(self, engine: Any) -> None:
        self.version = 0
        self.num_tokens = 0  # sampled so far
        self.num_samples = 0  # rollouts that have ended
        self._engine = engine  # vllm.LLMEngine
        self._vocab_size: int = engine.model_config.get_vocab_size()
        self._chunks: dict[int, ChunkWork] = {}  # by flight
        self._rollouts: dict[str, tuple[ChunkWork, int]] = {}  # by the name vLLM was given: chunk and row
        self._cut_early: set[int] = set()
        self._dropped_early: set[int] = set()
        self._failure: ChunkFailure | None = None
        self.set_version(0)

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing, or must not be made."""
        return not self._chunks or self._failure is not None

    def set_version(self, version: int) -> None:
        """Tokens sampled from now on are of this policy version."""
        self.version = version
        self._engine.engine_core.set_weight_version(str(version))

    def add(self, chunk: ChunkWork) -> None:
        """Queue a chunk's rollouts."""
        if self._failure is not None:
            chunk.answer.set_result((self._failure, None, None))
            return
        self._chunks[chunk.flight] = chunk
        if chunk.flight in self._dropped_early:
            self._drop(chunk)
            return
        self._submit(chunk)
        if chunk.flight in self._cut_early:
            self.cut([chunk.flight])

    def step(self) -> None:
        """One step of vLLM; answers the chunks it finishes."""
        for output in self._engine.step():
            if output.finished and output.request_id in self._rollouts:
                chunk, row = self._rollouts.pop(output.request_id)
                chunk.put(row, continuation_of(output.outputs[0]))
                if chunk.is_finished:
                    self._answer(chunk)
        self._cut_overdue()

    def cut(self, flights: Collection[int]) -> None:
        """End these chunks with what they have."""
        from vllm.v1.engine import FinishReason

        self._cut_early |= set(flights) - self._chunks.keys()
        for chunk in [self._chunks[flight] for flight in flights if flight in self._chunks]:
            for row in chunk.missing():
                # What vLLM itself makes of a request that is aborted; `abort_request` would keep it to itself.
                output = self._state(chunk.ids[row]).make_request_output([], None, FinishReason.ABORT, None)
                chunk.put(row, continuation_of(output.outputs[0]))
            self._forget(chunk)
            self._answer(chunk)

    def withdraw(self, flight: int) -> bool:
        """Drop a chunk unless a token of it was sampled; whether it was dropped."""
        chunk = self._chunks.get(flight)
        if chunk is None or any(self._num_tokens(identity) for identity in chunk.ids):
            return False
        self._drop(chunk)
        return True

    def abort(self, flights: Collection[int]) -> None:
        """Drop these chunks. Nothing else is in flight, here or on its way."""
        self._cut_early.clear()
        self._dropped_early = set(flights) - self._chunks.keys()
        for chunk in list(self._chunks.values()):
            self._drop(chunk)

    def fail(self, failure: ChunkFailure) -> None:
        """Answer everything in flight, and everything that comes later, with this."""
        self._failure = failure
        for chunk in self._chunks.values():
            chunk.answer.set_result((failure, None, None))
        self._chunks.clear()
        self._rollouts.clear()

    def _submit(self, chunk: ChunkWork) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = chunk.request.sampling
        for task in chunk.tasks():
            params = SamplingParams(
                seed=task.seed,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=task.max_tokens,
                logprobs=0,  # of the sampled token only
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            name = f"{chunk.flight}/{task.row}"
            chunk.ids.append(self._engine.add_request(name, {"prompt_token_ids": task.token_ids}, params))
            self._rollouts[name] = chunk, task.row

    def _cut_overdue(self) -> None:
        now = time.monotonic()
        for chunk in list(self._chunks.values()):
            limit = chunk.request.deadline_s
            if limit is None:
                continue
            if chunk.begun_at is None and self._num_tokens(chunk.ids[0]):  # vLLM begins with the first of a chunk
                chunk.begun_at = now
            if chunk.begun_at is not None and now - chunk.begun_at > limit:
                self.cut([chunk.flight])

    def _progress(self) -> tuple[ChunkProgress, ...]:
        """Of every chunk in the batch that has begun."""
        news = []
        for chunk in self._chunks.values():
            missing = chunk.missing()
            num_ended = len(chunk.ids) - len(missing)
            num_begun = num_ended + sum(self._num_tokens(chunk.ids[row]) > 0 for row in missing)
            if num_begun:
                news.append(ChunkProgress(chunk.flight, num_begun, num_ended))
        return tuple(news)

    def _num_tokens(self, identity: str) -> int:
        """Tokens sampled for a rollout; 1 for one that has ended."""
        state = self._engine.output_processor.request_states.get(identity)
        return 1 if state is None else int(state.detokenizer.num_output_tokens())

    def _state(self, identity: str) -> Any:
        """vLLM's own record of an unfinished rollout."""
        return self._engine.output_processor.request_states[identity]

    def _answer(self, chunk: ChunkWork) -> None:
        del self._chunks[chunk.flight]
        reply = chunk.reply(self.version, self._vocab_size)
        meta = reply[0]
        if isinstance(meta, ChunkMeta):
            reply = (dataclasses.replace(meta, progress=self._progress()), *reply[1:])
            self.num_samples += len(meta.lengths)
            self.num_tokens += chunk.num_sampled
        chunk.answer.set_result(reply)

    def _drop(self, chunk: ChunkWork) -> None:
        self._forget(chunk)
        del self._chunks[chunk.flight]
        chunk.answer.set_result((Withdrawn(), None, None))

    def _forget(self, chunk: ChunkWork) -> None:
        """Take what is left of a chunk out of the batch."""
        self._engine.abort_request(chunk.ids, internal=True)
        for row in range(len(chunk.ids)):
            self._rollouts.pop(f"{chunk.flight}/{row}", None)
