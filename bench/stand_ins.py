"""Stand in for engines and verifier workers around the driver's real code, for `driver_bulk.py`.

The stand-ins are Ray actors with real arrays in the object store that compute nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import ray

from nemo_brorl.cluster.actor_transport import RayTransport
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.generation.chunk_messages import ChunkMeta, ChunkProgress
from nemo_brorl.generation.engine_handle import EngineHandle, EngineReady
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.ports import Forecast
from nemo_brorl.scoring.response_arrays import response_keys
from nemo_brorl.scoring.turns import Judged, ResponseScores
from nemo_brorl.types import ChunkArrays, EngineStats, Prompt, RolloutChunk, RolloutRequest

VOCAB_SIZE = 290
TAIL = 0.8  # sigma of the log-normal lengths: the longest of 512 takes about eight times the mean
EASY_SHARE, HARD_SHARE = 0.1, 0.15  # of prompts that every rollout gets right, or none
PROMPT_TOKENS = 200
ROUND_TRIP_S = 0.002  # of a question for news: two in one would be answered at once


class StandInEngine:
    """Answers like `RolloutEngine`, with random arrays; every so many rollouts there is progress to tell."""

    def __init__(self, index: int, mean_tokens: int, cache_bytes: int = 0) -> None:
        self.index, self.mean_tokens = index, mean_tokens
        self.num_untold, self.every = 0, 1
        self.is_due = asyncio.Event()

    def ready(self) -> EngineReady:
        return EngineReady(self.index, 0, 0.0, 0.0)

    @ray.method(num_returns=3)
    async def generate(
        self, call_id: int, request: RolloutRequest, partial: None
    ) -> tuple[ChunkMeta, ChunkArrays, None]:
        for first in range(
            0, request.num_rollouts, self.every
        ):  # the driver hears of them as of a real chunk: in parts
            self.num_untold += min(self.every, request.num_rollouts - first)
            if self.num_untold >= self.every:
                self.is_due.set()
            await asyncio.sleep(ROUND_TRIP_S)
        random = np.random.default_rng(request.seed + request.first_index)
        drawn = random.lognormal(np.log(self.mean_tokens) - TAIL**2 / 2, TAIL, request.num_rollouts)
        lengths = np.clip(drawn, 1, request.sampling.max_tokens).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = random.integers(3, VOCAB_SIZE, int(offsets[-1]), np.int32)
        arrays = ChunkArrays(tokens, np.full(len(tokens), -2.0, np.float32), offsets)
        is_stopped = lengths < request.sampling.max_tokens
        return ChunkMeta(call_id, request.prompt.uid, request.indices, lengths, is_stopped, 0, 0), arrays, None

    async def progress(self, every: int, within_s: float) -> tuple[ChunkProgress, ...]:
        self.every = every
        await self.is_due.wait()
        self.is_due.clear()
        self.num_untold = 0
        return ()

    def stats(self) -> EngineStats:
        return EngineStats(self.index, 0, 0, 0, 0, 0, 0)

    def withdraw(self, call_id: int) -> bool:
        return False

    def abort(self, call_ids: Sequence[int]) -> None:
        return None


class StandInVerifier:
    """Answers like `rewards.worker.VerifierWorker`: reads everything, throws a die for each response."""

    def judge(self, chunk: RolloutChunk, data: ChunkArrays, places: Sequence[int] | None = None) -> Judged:
        payload = chunk.request.prompt.payload
        keys, num = response_keys(data), len(data.offsets) - 1
        rewards = (keys / 2.0**64 < payload["rate"]).astype(np.float32)
        log_probs = np.add.reduceat(data.log_probs, data.offsets[:-1])
        return ResponseScores(rewards, 0, np.zeros(num, np.float32), keys, log_probs), None, None

    def end_episodes(self) -> None:
        """Do nothing, because there are no episodes."""


class StandInGenerator:
    """The Generator port as far as a collection needs it: the real session over stand-in engines."""

    def __init__(self, config: BroRLConfig, mean_tokens: int) -> None:
        self.config = config
        actor: Any = ray.remote(num_cpus=0.1)(StandInEngine)
        num = config.generation.num_engines or 1
        self.transport = RayTransport()
        self.call_ids = itertools.count()
        self.handles = []
        for index in range(num):
            start_actor = partial(actor.remote, index, mean_tokens)
            self.handles.append(EngineHandle(index, start_actor, 0, 600.0, self.transport))

    def open_session(self, forecast: Forecast | None = None) -> VllmSession:
        generation = self.config.generation
        placement = ChunkPlacement([], RunSizes.from_config(self.config).max_num_seqs, forecast=forecast)
        return VllmSession(self.handles, placement, generation, self.call_ids, {0}, self.transport, lambda: None)

    def stats(self) -> list[EngineStats]:
        references = [handle.actor.stats.remote() for handle in self.handles]
        return [handle.count(ray.get(reference)) for handle, reference in zip(self.handles, references, strict=True)]

    def stalled(self, seconds: float) -> list[str]:
        return []

    def close(self) -> None:
        for handle in self.handles:
            handle.close()


class BulkPrompts:
    """Prompts of 200 tokens; a share of them is too easy or too hard."""

    def __init__(self) -> None:
        self.num_taken = 0

    def take_prompts(self, num: int) -> list[Prompt]:
        numbers = range(self.num_taken, self.num_taken + num)
        self.num_taken += num
        return [self._prompt(number) for number in numbers]

    def _prompt(self, number: int) -> Prompt:
        random = np.random.default_rng(number)
        place = random.random()
        rate = 1.0 if place < EASY_SHARE else 0.0 if place < EASY_SHARE + HARD_SHARE else random.beta(0.5, 0.5)
        tokens = tuple(random.integers(3, VOCAB_SIZE, PROMPT_TOKENS).tolist())
        return Prompt(f"train/{number}", "bulk", "exact_match", tokens, {"answer": "1", "rate": rate})

    def record_outcomes(self, outcomes: Sequence[tuple[Prompt, float]]) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {"num_taken": self.num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_taken = state["num_taken"]
