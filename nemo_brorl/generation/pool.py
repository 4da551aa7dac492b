"""A pool of vLLM engines that implements the Generator port."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from nemo_brorl.cluster.actor_transport import RayTransport
from nemo_brorl.cluster.object_store import wait_any
from nemo_brorl.cluster.process_placement import Places
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.generation import device
from nemo_brorl.generation.engine_actor import RolloutEngine
from nemo_brorl.generation.engine_handle import EngineHandle, EngineReady, check_weights
from nemo_brorl.generation.placement.placement import ChunkPlacement
from nemo_brorl.generation.session import VllmSession
from nemo_brorl.generation.sleep import StagedSleep
from nemo_brorl.ports import Forecast, WeightTarget
from nemo_brorl.types import EngineStats, RolloutChunk, RolloutRequest, StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights.receivers import WeightReceivers

logger = get_logger(__name__)

# Seconds between two checks for silent engines.
_POLL_S = 1.0


class VllmPool:
    """A pool of `num_engines` engines that have the same weights.

    The constructor starts the actors and returns. A session uses each engine as soon as it is ready, and `wait_ready`
    waits for all. An engine may die at any time: it is replaced, gets the weights published last, and its rollouts are
    sampled again with the same seeds. The run ends when an engine is lost more than `generation.max_restarts` times
    before it returns a chunk, or a chunk is lost with more engines than that. Weights may be loaded while a session is
    open.

    Needs an initialised Ray. Raises ConfigError or ModelError before an actor is started.
    """

    def __init__(
        self,
        generation: GenerationConfig,
        sizes: RunSizes,
        model_folder: Path,
        places: Places | None = None,
        heartbeat: Heartbeat | None = None,
        records_routes: bool = False,
    ) -> None:
        """Start the actors of all vLLM engines without waiting for them.

        `places` assigns GPUs to engines, and is needed on machines with GPUs. `heartbeat` records the engines' work.
        With `records_routes` the engines return which experts every token was routed to.
        """
        places = places or Places(None)
        heartbeat = heartbeat or Heartbeat()
        device.check(generation, sizes)
        logger.info("%s", device.choose_scheduler(generation, sizes.num_gpus == 0)[1])
        self._generation = replace(generation, max_num_seqs=sizes.max_num_seqs, max_model_len=sizes.max_model_len)
        self._start_timeout_s = sizes.start_timeout_s
        self._versions = {0}  # published policy versions; 0: the model folder
        self._call_ids = itertools.count()
        self._transport = RayTransport()
        self._session: VllmSession | None = None
        self._handles: list[EngineHandle] = []
        actor_class: Any = ray.remote(**device.actor_options(sizes))(RolloutEngine)
        for index in range(sizes.num_engines):
            environment = places.worker_environment(index)
            settings = device.engine_settings(generation, sizes, model_folder, index, environment, records_routes)
            placed_class = actor_class.options(**places.engine_options(index))
            start_actor = functools.partial(_start_actor, placed_class, settings)
            limits = (generation.max_restarts, generation.timeout_s)
            handle = EngineHandle(index, start_actor, *limits, self._transport, heartbeat.beat)
            self._handles.append(handle)
        self._sleep = StagedSleep(self._handles, self._generation, self._transport)
        self._weight_transport = sizes.weight_transport
        self._timeline = heartbeat.timeline
        self._receivers = self._receivers_of(self._handles)
        self._publish_again: Callable[[WeightTarget], None] | None = None

    def wait_ready(self) -> list[EngineReady]:
        """Block until all engines are ready, and replace an engine that died unnoticed.

        Raises GenerationError that names the engine which does not start.
        """
        return [handle.wait_alive(self._start_timeout_s) for handle in self._handles]

    def open_session(self, forecast: Forecast | None = None) -> VllmSession:
        """Open a session in which the engines sample rollouts.

        Raises GenerationError while another session is open, or when no engine has the published weights.
        """
        self._sleep.check_awake()
        self._restore_weights()
        if self._session is not None and self._session.is_open:
            raise GenerationError(
                "a session was opened while another is unfinished; close it, or exhaust `generate`, first"
            )
        assert self._generation.max_num_seqs is not None
        placement = ChunkPlacement([], self._generation.max_num_seqs, forecast=forecast)
        self._session = VllmSession(
            self._handles,
            placement,
            self._generation,
            self._call_ids,
            self._versions,
            self._transport,
            self._restore_weights,
        )
        return self._session

    def on_lost_weights(self, publish_again: Callable[[WeightTarget], None]) -> None:
        if self._generation.sleep == "off":
            self._publish_again = publish_again

    def _restore_weights(self) -> None:
        """Get the published weights for ready engines that lack them, if the policy may send weights now.

        Raises GenerationError if no engine has them, and engines and policy share devices.
        """
        if self._publish_again is None:
            check_weights(self._handles)
            return
        lacking = [handle for handle in self._handles if handle.lacks_weights and handle.starting is None]
        if lacking:
            self._publish_again(self._receivers_of(lacking))

    def _receivers_of(self, handles: Sequence[EngineHandle]) -> WeightReceivers:
        return WeightReceivers(
            handles,
            self._generation.weight_timeout_s,
            num_workers=len(handles) * self._generation.tensor_parallel_size,
            weight_transport=self._weight_transport,
            transport=self._transport,
            timeline=self._timeline,
        )

    def stalled(self, seconds: float) -> list[str]:
        """Describe each vLLM engine that is starting or sampling and has been silent for longer than `seconds`.

        It is safe to call from any thread.
        """
        busy: frozenset[int] = frozenset()
        if self._session is not None and self._session.is_open:
            busy = self._session.busy_engines()
        late = []
        for handle in self._handles:
            silence_s = handle.silence_s
            if silence_s > seconds and handle.starting is not None:
                late.append(f"{handle.name} is starting, last sign of life {silence_s:.0f} s ago")
            elif silence_s > seconds and handle.index in busy:
                late.append(f"{handle.name} is sampling, last sign of life {silence_s:.0f} s ago")
        return late

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[RolloutChunk]:
        """Yield one chunk of rollouts for each of these requests as it finishes, in any order.

        Closing the iterator aborts unfinished requests. Raises ConfigError for a request that does not fit
        `generation.max_model_len`, and GenerationError when an engine cannot be replaced.
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
        """Return the names of the engines as receivers of policy weights.

        An engine that was replaced has a new name.
        """
        return self._receivers.weight_receivers()

    def join_weight_link(self, link: WeightLink) -> None:
        """Connect all vLLM engines to the broadcast of policy weights.

        Raises ReceiverLostError that names the engines which do not connect in time.
        """
        self._receivers.join_weight_link(link)

    def load_weights(
        self,
        manifest: Sequence[TensorInfo],
        buckets: Iterable[StreamedBucket],
        version: int,
    ) -> int:
        """Load a stream of weight buckets into every engine, and return the number of bytes.

        Rollouts of an open session pause meanwhile, and are continued under the new weights (see
        `WeightReceivers.load_weights`).
        """
        self._sleep.check_has_room_for_weights()
        num_bytes = self._receivers.load_weights(manifest, buckets, version)
        self._versions.add(version)
        self._sleep.note_loaded()
        return num_bytes

    def sleep(self) -> Mapping[str, float]:
        """Put all vLLM engines to sleep, which frees their GPU memory (`StagedSleep.sleep`).

        Nothing is done under generation.sleep=off. Raises GenerationError while a sampling session is open.
        """
        if self._generation.sleep != "off" and self._session is not None and self._session.is_open:
            raise GenerationError("sleep was called while a session is open; close it, or exhaust `generate`, first")
        return self._sleep.sleep()

    def wake_weights(self) -> bool:
        return self._sleep.wake_weights()

    def wake_cache(self) -> None:
        self._sleep.wake_cache()

    def stats(self) -> list[EngineStats]:
        """Return the counters of every vLLM engine, such as sampled tokens.

        The counters never fall, even when an engine is replaced.
        """
        calls = [handle.actor.stats.remote() for handle in self._handles]
        snapshots = self._transport.results(calls, self._generation.timeout_s)
        totals = []
        for handle, snapshot in zip(self._handles, snapshots, strict=True):
            if isinstance(snapshot, Exception):
                handle.replace(snapshot)
                handle.wait_or_replace()
                snapshot = ray.get(handle.actor.stats.remote())
            totals.append(handle.count(snapshot))
        return totals

    def close(self) -> None:
        """Stop all vLLM engines, which is safe to call twice."""
        for handle in self._handles:
            handle.close()
        self._handles = []


def _start_actor(
    placed_class: Any,
    settings: device.EngineSettings,
    cache_bytes: int,
) -> Any:
    """Start the Ray actor of a vLLM engine.

    `cache_bytes` is the KV cache size of the engine that it replaces, or 0.
    """
    if cache_bytes:
        settings = device.with_cache(settings, cache_bytes)
    return placed_class.remote(settings)
