"""Load synced weights into the engines of a pool, or into some of them, sync after sync."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nemo_brorl.cluster.actor_transport import ActorTransport
from nemo_brorl.core.errors import ReceiverLostError
from nemo_brorl.core.timeline import WEIGHTS, Exchange, Timeline, Work
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights.broadcast import PublishedWeights, Receiver, WeightBroadcast


class WeightReceivers:
    """All or some engines of a pool as receivers of weight syncs, a `WeightTarget`.

    For each sync call `join_weight_link` if there is a link to join, then `load_weights`. Engines that fail are
    replaced. The transport object_store keeps the buckets for engines that start later. They take the size of the
    weights in Ray's object store, and twice that during a sync: the old ones go once all engines have the new ones. Ray
    moves what does not fit to files. With other transports only a few buckets exist at a time.
    """

    def __init__(
        self,
        handles: Sequence[Receiver],
        timeout_s: float,
        num_workers: int,
        weight_transport: str,
        transport: ActorTransport,
        timeline: Timeline | None = None,
    ) -> None:
        self._handles = handles
        self._timeout_s = timeout_s
        self._num_workers = num_workers  # workers of all engines together
        self._weight_transport = weight_transport
        self._transport = transport
        self._timeline = timeline or Timeline(is_on=False)

    def weight_receivers(self) -> tuple[str, ...]:
        """Return the Ray actor names of the inference engines after waiting until all are alive.

        A replaced engine has a new name.
        """
        self._wait_ready()
        return tuple(handle.name for handle in self._handles)

    def join_weight_link(self, link: WeightLink) -> None:
        """Make all inference engines join the weight broadcast group that `link` describes.

        Raises ReceiverLostError naming the engines that did not come in time. They have been replaced by then.
        """
        names = self.weight_receivers()
        if names != link.receivers:
            raise ReceiverLostError(
                f"the weight group was opened for {', '.join(link.receivers)}; now there are {', '.join(names)}"
            )
        broadcast = self._new_broadcast()
        try:
            broadcast.join(link)
        finally:
            self._replace(broadcast.lost)

    def load_weights(
        self,
        manifest: Sequence[TensorInfo],
        buckets: Iterable[StreamedBucket],
        version: int,
    ) -> int:
        """Load a stream of weight buckets into these inference engines, and drop prefix caches.

        The next bucket is taken from the stream while the engines load the one before. Returns the most bytes that
        existed at once on top of the models. Raises WeightSyncError naming the engine that failed. If the manifest does
        not fit the engines' model, no engine has been touched. Otherwise all engines have been replaced.
        """
        self._wait_ready()
        broadcast = self._new_broadcast()
        announced_at = self._timeline.now()
        broadcast.announce(manifest)
        is_whole = False
        try:
            messages = broadcast.send(buckets)
            broadcast.finish(version)
            is_whole = True
        finally:
            # An engine whose load stopped half-way has an unusable model.
            if not is_whole:
                for handle in self._handles:
                    handle.replace(f"weights of version {version} arrived in part")
        self._note_loading(broadcast, announced_at)
        kept = messages if self._weight_transport == "object_store" else None
        return self._note_published(PublishedWeights(tuple(manifest), kept, version), broadcast)

    def _note_loading(self, broadcast: WeightBroadcast, announced_at: float) -> None:
        """Record in the timeline when each inference engine loaded the weights of a sync."""
        known_at = self._timeline.now()
        for engine, report in broadcast.reports.items():
            period = report.period
            if period is not None:
                work = Work("load weights", period.began_at, period.ended_at, WEIGHTS)
                exchange = Exchange(announced_at, period.received_at, period.ended_at, known_at)
                self._timeline.record_work(f"engine {engine}", [work], exchange)

    def _note_published(self, published: PublishedWeights, broadcast: WeightBroadcast) -> int:
        before = self._handles[0].published
        num_bytes = published.num_bytes + broadcast.bytes_alive(self._num_workers)
        if before is not None:
            num_bytes += before.num_bytes
        for handle in self._handles:
            handle.published = published
            handle.lacks_weights = False
            # Loading takes long, but the engine was alive.
            handle.touch()
        # Lost engines come last, because their replacements load the weights published just now.
        self._replace(broadcast.lost)
        return num_bytes

    def _replace(self, lost: Mapping[int, Exception]) -> None:
        for handle in self._handles:
            if handle.index in lost:
                handle.replace(lost[handle.index])

    def _wait_ready(self) -> None:
        for handle in self._handles:
            handle.wait_or_replace()

    def _new_broadcast(self) -> WeightBroadcast:
        is_collective = self._weight_transport == "collective"
        return WeightBroadcast(self._handles, self._timeout_s, self._transport, is_collective)
