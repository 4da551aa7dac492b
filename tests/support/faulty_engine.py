"""An engine actor that misbehaves on purpose, for tests on real Ray; no vLLM."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from nemo_brorl.generation.chunk_messages import ChunkMeta, ChunkProgress
from nemo_brorl.generation.engine_handle import EngineReady
from nemo_brorl.types import ChunkArrays, RolloutRequest
from nemo_brorl.weights.incoming import LoadReport


class FaultyEngine:
    """Answers chunks with its version; dies or hangs once, as `fault` says.

    A file in `folder` remembers that the fault happened, so that the replacement behaves.
    """

    def __init__(self, index: int, folder: str, fault: str, cache_bytes: int = 0) -> None:
        self.index = index
        self.version = 0
        self.marker = Path(folder) / f"{index}"
        self.fault = "none" if self.marker.exists() else fault

    def misbehave(self, fault: str) -> None:
        if fault != self.fault:
            return
        self.marker.touch()
        if fault == "hang":
            time.sleep(60)
        os._exit(1)

    async def ready(self) -> EngineReady:
        return EngineReady(self.index, os.getpid(), 0.0, 0.0)

    async def restore(self, manifest: Sequence[Any], version: int, *buckets: Any) -> EngineReady:
        self.version = version
        return await self.ready()

    @ray.method(num_returns=3)
    async def generate(
        self, call_id: int, request: RolloutRequest, partial: ChunkArrays | None
    ) -> tuple[ChunkMeta, ChunkArrays, None]:
        self.misbehave("hang")
        self.misbehave("die")
        num = request.num_rollouts
        arrays = ChunkArrays(np.zeros(num, np.int32), np.zeros(num, np.float32), np.arange(num + 1))
        meta = ChunkMeta(
            call_id=call_id,
            uid=request.prompt.uid,
            indices=request.indices,
            lengths=np.ones(num, np.int32),
            is_stopped=np.ones(num, bool),
            version=self.version,
            newest_version=self.version,
        )
        return meta, arrays, None

    async def progress(self, every: int, within_s: float) -> tuple[ChunkProgress, ...]:
        """Nothing, never."""
        await asyncio.Event().wait()
        return ()

    async def withdraw(self, call_id: int) -> bool:
        return False

    async def abort(self, call_ids: Sequence[int]) -> None:
        pass

    async def begin_weights(self, manifest: Sequence[Any]) -> None:
        pass

    async def receive_weights(self, bucket: Any) -> None:
        self.misbehave("die loading")

    async def finish_weights(self, version: int) -> LoadReport:
        self.version = version
        return LoadReport(version, 1, 4, checksum=7)
