"""The Generator port over a pool of vLLM engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from nemo_brorl.cluster.process_placement import Places
from nemo_brorl.config.derived import num_engines, weight_transport
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.core.object_store import wait_any
from nemo_brorl.generation import device
from nemo_brorl.generation.engine_actor import EngineReady, RolloutEngine
from nemo_brorl.generation.engine_handle import EngineSlot, check_weights, get_or_failure
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.generation.staged_sleep import StagedSleep
from nemo_brorl.generation.weights.incoming import read_shapes
from nemo_brorl.generation.weights.receivers import WeightReceivers
from nemo_brorl.ports import Forecast
from nemo_brorl.types import EngineStats, RolloutChunk, RolloutRequest, TensorInfo, WeightLink

_POLL_S = 1.0  # how often silent engines are looked for


class VllmPool:
    """`num_engines` engines with the same weights.

    The constructor starts the actors and returns; a session uses each engine as soon as it is ready, `wait_ready` waits
    for all. Engines may die at any time: they are replaced, get the last published weights, and what they were sampling
    is sampled again with the same seeds. An engine that is lost more than `generation.max_restarts` times before it
    returns a chunk, and a chunk that is lost with more engines than that, end the run. Weights may be loaded while a
    session is open. Needs an initialised Ray; raises ConfigError or ModelError before an actor is started.
    """

    def __init__(self, config: BroRLConfig, model_folder: Path, places: Places | None = None) -> None:
        """`places` on a machine with GPUs."""
        places = places or Places(None)
        device.check(config)
        read_shapes(model_folder)  # a broken folder is refused here, not in an actor
        self._generation = config.generation
        self._placement = config.rollouts.placement
        self._versions = {0}  # that were published, and the model folder's
        self._numbers = itertools.count()
        self._session: VllmSession | None = None
        actor_class: Any = ray.remote(**device.actor_options(config))(RolloutEngine)
        self._slots = [
            EngineSlot(
                index,
                partial(
                    actor_class.options(**places.engine_options(index)).remote,
                    device.engine_settings(config, model_folder, index, places.worker_environment(index)),
                ),
                config.generation.max_restarts,
                config.generation.timeout_s,
            )
            for index in range(num_engines(config))
        ]
        self._sleep = StagedSleep(self._slots, config.generation)
        num_workers = len(self._slots) * config.generation.tensor_parallel_size
        is_collective = weight_transport(config) == "collective"
        self._receivers = WeightReceivers(self._slots, config.generation.weight_timeout_s, num_workers, is_collective)

    def wait_ready(self) -> list[EngineReady]:
        """Block until all engines are ready. Raises GenerationError naming the engine that does not start."""
        return [slot.wait() for slot in self._slots]

    def open_session(self, forecast: Forecast | None = None) -> VllmSession:
        """Begin to sample. Raises GenerationError while another session is open, or when no engine has the published
        weights."""
        self._sleep.check_awake("open_session")
        check_weights(self._slots)
        if self._session is not None and self._session.is_open:
            raise GenerationError(
                "a session was opened while another is unfinished; close it, or exhaust `generate`, first"
            )
        placement = ChunkPlacement([], self._generation.max_num_seqs, self._placement, forecast)
        self._session = VllmSession(self._slots, placement, self._generation, self._numbers, self._versions)
        return self._session

    def stalled(self, seconds: float) -> list[str]:
        """Engines that are starting, or sample, and were not heard of for longer than this. Any thread may ask."""
        busy = self._session.busy_engines() if self._session is not None and self._session.is_open else frozenset()
        return [
            f"{slot.name} {'is starting' if slot.starting is not None else 'samples'}, last heard of "
            f"{slot.silence_s:.0f} s ago"
            for slot in self._slots
            if slot.silence_s > seconds and (slot.starting is not None or slot.index in busy)
        ]

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Chunks as they finish, in any order, one per request. Closing the iterator aborts what is unfinished.

        Raises ConfigError for a request that does not fit `generation.max_model_len`, GenerationError when an engine
        cannot be brought back.
        """
        session = self.open_session()
        try:
            session.submit(requests)
            num_left = len(requests)
            while num_left:
                wait_any(session.pending(), _POLL_S)
                chunks = session.poll()
                num_left -= len(chunks)
                yield from chunks
        finally:
            session.close()

    def weight_receivers(self) -> tuple[str, ...]:
        """The engines by name; one that was replaced has another."""
        return self._receivers.names()

    def join_weight_link(self, link: WeightLink) -> None:
        """Bring all engines into a broadcast. Raises ReceiverLostError that names those that do not come in time."""
        self._receivers.join(link)

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> int:
        """Load a stream of StreamedBucket into every engine, see `WeightReceivers.load`; what an open session has in
        flight waits meanwhile and goes on under the new weights."""
        self._sleep.check_has_room_for_weights()
        num_bytes = self._receivers.load(manifest, buckets, version)
        self._versions.add(version)
        self._sleep.note_loaded()
        return num_bytes

    def sleep(self) -> Mapping[str, float]:
        """See `StagedSleep`. Unless sleep is off, no session may be open."""
        if self._generation.sleep != "off" and self._session is not None and self._session.is_open:
            raise GenerationError("sleep was called while a session is open; close it, or exhaust `generate`, first")
        return self._sleep.sleep()

    def wake_weights(self) -> bool:
        return self._sleep.wake_weights()

    def wake_cache(self) -> None:
        self._sleep.wake_cache()

    def stats(self) -> list[EngineStats]:
        """Every engine's counters; they never fall, also when an engine was replaced."""
        references = [slot.actor.stats.remote() for slot in self._slots]
        snapshots = []
        for slot, reference in zip(self._slots, references, strict=True):
            snapshot = get_or_failure(reference, self._generation.timeout_s)
            if isinstance(snapshot, Exception):
                slot.replace(snapshot)
                slot.wait_or_replace()
                snapshot = ray.get(slot.actor.stats.remote())
            snapshots.append(slot.count(snapshot))
        return snapshots

    def close(self) -> None:
        """Stop all engines. May be called twice."""
        for slot in self._slots:
            slot.close()
        self._slots = []
