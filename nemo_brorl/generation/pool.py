"""The Generator port over a pool of vLLM engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from nemo_brorl.config.derived import num_engines, weight_transport
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.errors import GenerationError, ReceiverLostError
from nemo_brorl.generation import device
from nemo_brorl.generation.broadcast import WeightBroadcast
from nemo_brorl.generation.engine import EngineReady, RolloutEngine
from nemo_brorl.generation.incoming import read_shapes
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.generation.slot import EngineSlot, PublishedWeights, get_or_failure
from nemo_brorl.generation.staged_sleep import StagedSleep
from nemo_brorl.object_store import wait_any
from nemo_brorl.ports import Forecast
from nemo_brorl.rollouts.placement import ChunkPlacement, at_full_length
from nemo_brorl.types import EngineStats, RolloutChunk, RolloutRequest, TensorInfo, WeightLink

_POLL_S = 1.0  # how often silent engines are looked for


class VllmPool:
    """`num_engines` engines with the same weights.

    The constructor starts the actors and returns; a session uses each engine as soon as it is ready, `wait_ready` waits
    for all. Engines may die at any time: they are replaced, get the last published weights, and what they were sampling is
    sampled again with the same seeds. An engine that is lost more than `generation.max_restarts` times before it returns a
    chunk, and a chunk that is lost with more engines than that, end the run. Weights may be loaded while a session is open.
    Needs an initialised Ray; raises ConfigError or ModelError before an actor is started.
    """

    def __init__(self, config: BroRLConfig, model_folder: Path) -> None:
        device.check(config)
        read_shapes(model_folder)  # a broken folder is refused here, not in an actor
        self._generation = config.generation
        self._transport = weight_transport(config)
        self._placement = config.rollouts.placement
        self._versions = {0}  # that were published, and the model folder's
        self._numbers = itertools.count()
        self._session: VllmSession | None = None
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
        self._sleep = StagedSleep(self._slots, config.generation)

    def wait_ready(self) -> list[EngineReady]:
        """Block until all engines are ready. Raises GenerationError naming the engine that does not start."""
        return [slot.wait() for slot in self._slots]

    def open_session(self, forecast: Forecast | None = None) -> VllmSession:
        """Begin to sample. Raises GenerationError while another session is open."""
        self._sleep.check_awake("open_session")
        if self._session is not None and self._session.is_open:
            raise GenerationError("a session was opened while another is unfinished; close it, or exhaust `generate`, first")
        placement = ChunkPlacement([], self._generation.max_num_seqs, self._placement, forecast or at_full_length)
        self._session = VllmSession(self._slots, placement, self._generation, self._numbers, self._versions)
        return self._session

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
        return tuple(slot.name for slot in self._slots)

    def join_weight_link(self, link: WeightLink) -> None:
        """Bring all engines into a broadcast. Raises ReceiverLostError that names those that do not come in time."""
        for slot in self._slots:
            slot.wait_or_replace(is_publishing=True)
        if self.weight_receivers() != link.receivers:
            raise ReceiverLostError(f"the weight group was opened for {link.receivers}, and now there are {self.weight_receivers()}")
        self._new_broadcast().join(link)

    def load_weights(self, manifest: Sequence[TensorInfo], buckets: Iterable[Any], version: int) -> int:
        """Load a stream of StreamedBucket (or of references to WeightBucket) into every engine; prefix caches are dropped.

        What an open session has in flight waits meanwhile and goes on under the new weights. The next bucket is taken from the
        stream while the engines load the one before. Raises WeightSyncError naming the engine: before an engine is touched when
        the manifest does not fit, else after all engines were given up, to be replaced with the weights published before.
        """
        self._sleep.check_has_room_for_weights()
        for slot in self._slots:
            slot.wait_or_replace(is_publishing=True)
        broadcast = self._new_broadcast()
        broadcast.announce(manifest)
        is_whole = False
        try:
            copies = broadcast.send(buckets)
            broadcast.finish(version)
            is_whole = True
        finally:
            if not is_whole:
                self._replace_all(f"weights of version {version} arrived in part")
        return self._note_published(PublishedWeights.of(manifest, copies, version), broadcast)

    def sleep(self) -> Mapping[str, float]:
        """See `StagedSleep`; no session may be open."""
        if self._session is not None and self._session.is_open:
            raise GenerationError("sleep was called while a session is open; close it, or exhaust `generate`, first")
        return self._sleep.sleep()

    def wake_weights(self) -> None:
        self._sleep.wake_weights()

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

    def _new_broadcast(self) -> WeightBroadcast:
        return WeightBroadcast(self._slots, self._generation.weight_timeout_s, is_collective=self._transport == "collective")

    def _note_published(self, published: PublishedWeights, broadcast: WeightBroadcast) -> int:
        """All engines hold new weights, but those that were lost meanwhile. Bytes that were alive beside the models."""
        self._versions.add(published.version)
        before = self._slots[0].published
        for slot in self._slots:
            slot.published = published
            slot.lacks_weights = False
            slot.touch()  # loading was no silence
        for engine, cause in broadcast.lost.items():
            self._slots[engine].replace(cause)
        self._sleep.note_loaded()
        copies = published.num_bytes + (before.num_bytes if before is not None else 0)  # the old ones go when the new ones are whole
        return copies + broadcast.bytes_alive(len(self._slots) * self._generation.tensor_parallel_size)

    def _replace_all(self, cause: str) -> None:
        for slot in self._slots:
            slot.replace(cause, is_publishing=True)
