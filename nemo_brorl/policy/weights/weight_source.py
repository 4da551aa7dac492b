"""The driver's side of the weight stream: rank 0's buckets as they come, every wait bounded, a rank that stops
named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from nemo_brorl.config.derived import weight_transport
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.policy.weights.bucket_plan import bucket_bytes, bucket_sizes
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink

# Of rank 0's stream: it makes the next message only when the one before is taken, so few buckets are alive at once.
_MESSAGES_AHEAD = 1
SLICE_S = 5.0  # ranks that take longer are asked where they are, this often

Wait = Callable[
    [list[tuple[int, Any]], str], list[Any]
]  # results of calls given as (rank, reference); explains what fails


class WeightSource:
    """Publications of one policy, one at a time."""

    def __init__(self, ranks: Sequence[Any], config: BroRLConfig, wait: Wait) -> None:
        self.transport = weight_transport(config)
        self._ranks = ranks
        self._wait = wait
        self._timeout_s = config.generation.weight_timeout_s
        self._limit = bucket_bytes(config)
        self._with_copies = config.generation.keep_published
        self._manifest: list[TensorInfo] | None = None
        self._receivers: tuple[str, ...] | None = None  # who the open group was made for; None: no group
        self._joining: Any = None  # rank 0's wait for them

    def manifest(self) -> list[TensorInfo]:
        """It is the model's, so it stays as it is."""
        if self._manifest is None:
            self._manifest = self._wait([(0, self._ranks[0].weight_manifest.remote())], "weight_manifest")[0]
        return self._manifest

    def open_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        """Where these receivers shall join; None: there is nothing to join, or they have joined."""
        if self.transport != "collective" or receivers == self._receivers:
            return None
        self._receivers = None
        link: WeightLink = self._wait([(0, self._ranks[0].open_weight_link.remote(receivers))], "open_weight_link")[0]
        self._joining = (receivers, self._ranks[0].join_weight_link.remote(link))
        return link

    def stream(self, ask: Callable[[], None]) -> Iterator[StreamedBucket]:
        """`ask` is called while ranks take their time. Raises WeightSyncError that names the rank that is late; a
        rank's own error as it is."""
        if self._joining is not None:
            (receivers, reference), self._joining = self._joining, None
            self._wait([(0, reference)], "join_weight_link")
            self._receivers = receivers
        receivers, self._receivers = (
            self._receivers,
            None,
        )  # a publication that breaks off leaves no group to go on with
        sizes = bucket_sizes(self.manifest(), self._limit)
        streams = WeightStreams(self._ranks, len(sizes), self._timeout_s, self._wait, ask)
        has_copies = self._with_copies and self.transport != "object_store"
        for num_bytes in sizes:
            copy = streams.next_message() if has_copies else None
            message = streams.next_message(is_last_of_bucket=True)
            yield StreamedBucket(message, message if self._with_copies and not has_copies else copy, num_bytes)
        streams.finish()
        self._receivers = receivers


class WeightStreams:
    """The streaming calls of one publication, on all ranks."""

    def __init__(
        self, ranks: Sequence[Any], num_buckets: int, timeout_s: float, wait: Wait, ask: Callable[[], None]
    ) -> None:
        self.num_buckets = num_buckets
        self._ask = ask
        self._timeout_s = timeout_s
        self._wait = wait
        streaming: dict[str, Any] = {"num_returns": "streaming"}
        options = [streaming] * len(ranks)
        options[0] = {**streaming, "_generator_backpressure_num_objects": _MESSAGES_AHEAD}  # rank 0 has the messages
        self._generators = [
            rank.stream_weights.options(**option).remote() for rank, option in zip(ranks, options, strict=True)
        ]
        self._num_sent = [0] * len(self._generators)  # buckets, by rank

    def next_message(self, is_last_of_bucket: bool = False) -> Any:
        """The reference to rank 0's next message."""
        first = self._generators[0]
        deadline = time.monotonic() + self._timeout_s
        while not ray.wait([first], timeout=min(SLICE_S, max(0.0, deadline - time.monotonic())), fetch_local=False)[0]:
            self._ask()
            if time.monotonic() > deadline:
                raise WeightSyncError(self._late())
        reference = next(first, None)
        if reference is None or ray.wait([first.completed()], timeout=0)[0]:
            self._check_ended()
        if reference is None:
            raise WeightSyncError(
                f"policy rank 0 ended its weight stream after {self._num_sent[0]} of {self.num_buckets} buckets"
            )
        self._num_sent[0] += is_last_of_bucket
        return reference

    def finish(self) -> None:
        """Wait until all ranks are through. Raises WeightSyncError that names the late one."""
        deadline = time.monotonic() + self._timeout_s
        self._count(deadline)
        ended = [generator.completed() for generator in self._generators]
        if ray.wait(ended, num_returns=len(ended), timeout=max(0.0, deadline - time.monotonic()))[1]:
            raise WeightSyncError(self._late())
        self._check_ended()

    def _check_ended(self) -> None:
        """Raise what a rank that is through has raised."""
        ended = [(number, generator.completed()) for number, generator in enumerate(self._generators)]
        self._wait([(number, end) for number, end in ended if ray.wait([end], timeout=0)[0]], "weight_stream")

    def _late(self) -> str:
        """Which ranks are furthest behind."""
        self._count(deadline=0.0)
        least = min(self._num_sent)
        late = [str(number) for number, num in enumerate(self._num_sent) if num == least]
        if len(late) == len(self._num_sent):
            late = late[:1]  # all wait for the one that sends
        ranks = "policy ranks" if len(late) > 1 else "policy rank"
        return (
            f"{ranks} {', '.join(late)} sent bucket {least} of {self.num_buckets} and nothing for {self._timeout_s:g} s"
        )

    def _count(self, deadline: float) -> None:
        """Take what the other ranks' streams have, without waiting beyond the deadline. Rank 0's is counted as it is
        used."""
        for number, generator in enumerate(self._generators[1:], start=1):
            while ray.wait([generator], timeout=max(0.0, deadline - time.monotonic()), fetch_local=False)[0]:
                if next(generator, None) is None:
                    break
                self._num_sent[number] += 1
