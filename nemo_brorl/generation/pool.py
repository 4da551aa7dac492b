"""The Generator port over a pool of vLLM engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from nemo_brorl.config.derived import num_engines
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import ConfigError, GenerationError, WeightSyncError
from nemo_brorl.generation import device
from nemo_brorl.generation.broadcast import WeightBroadcast
from nemo_brorl.generation.engine import EngineReady, RolloutEngine
from nemo_brorl.generation.incoming import read_shapes
from nemo_brorl.generation.sampling_run import SamplingRun
from nemo_brorl.generation.slot import EngineSlot, PublishedWeights, get_or_failure
from nemo_brorl.types import EngineStats, RolloutChunk, RolloutRequest, TensorInfo


class VllmPool:
    """`num_engines` engines with the same weights.

    The constructor starts the actors and returns; `generate` uses each engine as soon as it is ready, `wait_ready` waits
    for all. Engines may die at any time: they are replaced up to `generation.max_restarts` times each, get the last
    published weights, and what they were sampling is sampled again with the same seeds. `generate` and `load_weights`
    take turns. Needs an initialised Ray; raises ConfigError or ModelError before an actor is started.
    """

    def __init__(self, config: BroRLConfig, model_folder: Path) -> None:
        device.check(config)
        read_shapes(model_folder)  # a broken folder is refused here, not in an actor
        self._generation = config.generation
        self._published: PublishedWeights | None = None
        self._is_generating = False
        actor_class: Any = ray.remote(**device.actor_options(config))(RolloutEngine)
        self._slots = [
            EngineSlot(
                index,
                partial(actor_class.remote, device.engine_settings(config, model_folder, index)),
                config.generation.max_restarts,
                config.generation.timeout_s,
            )
            for index in range(num_engines(config))
        ]

    def wait_ready(self) -> list[EngineReady]:
        """Block until all engines are ready. Raises GenerationError naming the engine that does not start."""
        return [slot.wait() for slot in self._slots]

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Chunks as they finish, in any order, one per request. Closing the iterator aborts what is unfinished.

        Raises ConfigError for a request that does not fit `generation.max_model_len`, GenerationError when an engine
        cannot be brought back.
        """
        self._check_lengths(requests)
        if self._is_generating:
            raise GenerationError("generate was called while another is unfinished; exhaust or close it first")
        run = SamplingRun(self._slots, requests, self._published, self._generation.max_num_seqs, self._generation.timeout_s)
        self._is_generating = True
        try:
            yield from run.chunks()
        finally:
            self._is_generating = False
            run.abort()

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> None:
        """Load a stream of WeightBucket references into every engine; prefix caches are dropped.

        The next bucket is taken from the stream while the engines load the one before. Raises WeightSyncError naming the
        engine: before an engine is touched when the manifest does not fit, else after all engines were given up, to be
        replaced with the weights published before.
        """
        if self._is_generating:
            raise WeightSyncError("weights were published during generate; exhaust or close it first")
        self.wait_ready()
        broadcast = WeightBroadcast(self._slots, self._generation.timeout_s)
        broadcast.announce(manifest)
        is_whole = False
        try:
            references = broadcast.send(buckets)
            broadcast.finish(version)
            is_whole = True
        finally:
            if not is_whole:
                self._replace_all(f"weights of version {version} arrived in part")
        self._published = PublishedWeights(tuple(manifest), references, version)
        for engine, cause in broadcast.lost.items():
            self._slots[engine].replace(cause, self._published)

    def stats(self) -> list[EngineStats]:
        """Every engine's counters; they never fall, also when an engine was replaced."""
        references = [slot.actor.stats.remote() for slot in self._slots]
        snapshots = []
        for slot, reference in zip(self._slots, references, strict=True):
            snapshot = get_or_failure(reference, self._generation.timeout_s)
            if isinstance(snapshot, Exception):
                slot.replace(snapshot, self._published)
                slot.wait()
                snapshot = ray.get(slot.actor.stats.remote())
            snapshots.append(slot.count(snapshot))
        return snapshots

    def close(self) -> None:
        """Stop all engines. May be called twice."""
        for slot in self._slots:
            slot.close()
        self._slots = []

    def _check_lengths(self, requests: Sequence[RolloutRequest]) -> None:
        limit = self._generation.max_model_len
        for request in requests:
            num_prompt, num_response = len(request.prompt.token_ids), request.sampling.max_tokens
            if num_prompt + num_response > limit:
                raise ConfigError(
                    f"prompt {request.prompt.uid} has {num_prompt} tokens and may be answered with {num_response}, "
                    f"generation.max_model_len={limit}; write at least {num_prompt + num_response}"
                )

    def _replace_all(self, cause: str) -> None:
        for slot in self._slots:
            slot.replace(cause, self._published)
