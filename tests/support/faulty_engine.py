"""An engine actor that misbehaves on purpose, for tests of slots and sessions; no vLLM."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.generation.chunk_task import (
    BeginningsMeta,
    ChunkFailure,
    ChunkMeta,
    ChunkProgress,
    Withdrawn,
    no_arrays,
)
from nemo_brorl.generation.engine_actor import EngineReady
from nemo_brorl.generation.weights.incoming import LoadReport
from nemo_brorl.types import ChunkArrays, RolloutRequest


class FaultyEngine:
    """Answers chunks with its version; misbehaves as `fault` says, once per process or (`always`) for ever.

    A file in `folder` remembers that the fault happened, so that the replacement behaves.
    """

    def __init__(self, index: int, folder: str, fault: str) -> None:
        self.index = index
        self.version = 0
        self.marker = Path(folder) / f"{index}"
        self.fault = fault
        self.words: dict[int, asyncio.Future[str]] = {}  # by flight
        self.has_got_on = asyncio.Event()  # there is news

    def is_due(self, fault: str) -> bool:
        if self.fault.removeprefix("always ") != fault or (
            self.marker.exists() and not self.fault.startswith("always ")
        ):
            return False
        self.marker.touch()
        return True

    async def ready(self) -> EngineReady:
        return EngineReady(self.index, os.getpid(), 0.0, 0.0)

    async def restore(self, manifest: Sequence[Any], version: int, *buckets: Any) -> EngineReady:
        self.version = version
        return await self.ready()

    @ray.method(num_returns=3)
    async def generate(
        self, flight: int, request: RolloutRequest, beginnings: ChunkArrays | None
    ) -> tuple[Any, Any, Any]:
        if self.is_due("fail"):
            return ChunkFailure("RuntimeError: broken kernel"), None, None
        if self.is_due("die"):
            os._exit(1)
        if self.is_due("hang"):
            time.sleep(60)
        if self.fault.startswith("slow"):
            return await self.wait_for_word(flight, request)
        n = request.num_rollouts
        arrays = ChunkArrays(np.zeros(n, np.int32), np.zeros(n, np.float32), np.arange(n + 1))
        number, version = (
            flight + self.is_due("answer another"),
            self.version + 9 * self.is_due("answer of another version"),
        )
        indices = request.indices + self.is_due("answer other rollouts")
        meta = ChunkMeta(number, request.prompt.uid, indices, np.ones(n, np.int32), np.ones(n, bool), version, version)
        return meta, arrays, None

    async def wait_for_word(self, flight: int, request: RolloutRequest) -> tuple[Any, Any, Any]:
        """Samples nothing until somebody says what to do."""
        word: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.words[flight] = word
        if self.fault == "slow and tells" and len(self.words) == 1:
            self.has_got_on.set()
        if await word == "give back":
            return Withdrawn(), None, None
        indices, none, version = request.indices, np.zeros(0, np.int32), self.version
        rest = BeginningsMeta(indices, np.zeros(len(indices), np.int32), version)
        meta = ChunkMeta(flight, request.prompt.uid, none, none, np.zeros(0, bool), version, version, rest)
        return meta, no_arrays(0), no_arrays(len(indices))

    async def news(self, every: int, within_s: float) -> tuple[ChunkProgress, ...]:
        """Under "slow and tells", that half of the first chunk has ended, once it is here, and then never anything
        more."""
        await self.has_got_on.wait()
        self.has_got_on.clear()
        return (ChunkProgress(next(iter(self.words)), num_begun=4, num_ended=3, age=1.0),)

    async def withdraw(self, flight: int) -> bool:
        word = self.words.get(flight)
        if word is not None and not word.done() and self.fault != "slow and keeps":
            word.set_result("give back")
            return True
        return False

    async def cut(self, flights: Sequence[int]) -> None:
        if self.fault == "slow and dies when cut":
            os._exit(1)
        for flight in flights:
            self.words[flight].set_result("cut")

    async def abort(self, flights: Sequence[int]) -> None:
        for flight in self.words.keys() & flights:
            self.words[flight].set_result("give back")

    async def begin_weights(self, manifest: Sequence[Any]) -> None:
        if self.is_due("refuse"):
            raise WeightSyncError("weight stream lacks embed")

    async def receive_weights(self, bucket: Any) -> None:
        if self.is_due("die loading"):
            os._exit(1)

    async def finish_weights(self, version: int) -> LoadReport:
        return LoadReport(version, 1, 4, checksum=self.index if self.fault == "differ" else 7)
