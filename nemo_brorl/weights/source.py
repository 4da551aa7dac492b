"""Drive the policy's weight stream: take rank 0's buckets, bound every wait, and name a rank that is late.

The driver imports this module, so it does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray

from nemo_brorl.cluster.ray_adapter import start_stream
from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.types import StreamedBucket, TensorInfo, WeightLink
from nemo_brorl.weights.buckets import bucket_bytes, bucket_sizes

# Messages that rank 0 makes before the driver has taken them. One, so that few buckets exist at a time.
_MESSAGES_AHEAD = 1
# Seconds between two requests of the driver for the progress of ranks while it waits for a message.
SLICE_S = 5.0
Calls = list[tuple[int, Any]]  # pairs of a rank and the reference to its result
Wait = Callable[[Calls, str], list[Any]]  # takes calls and the method's name, returns the results, explains a failure
Ask = Callable[[], None]


class WeightSource:
    """The sending side of weight syncs, on the driver. One sync runs at a time."""

    def __init__(
        self,
        ranks: Sequence[Any],
        generation: GenerationConfig,
        transport: str,
        wait: Wait,
    ) -> None:
        self.transport = transport
        self._ranks = ranks
        self._wait = wait
        self._timeout_s = generation.weight_timeout_s
        self._limit = bucket_bytes(generation)
        self._manifest: list[TensorInfo] | None = None
        self._receivers: tuple[str, ...] | None = None  # receivers that the open group was made for; None: no group
        self._joining: tuple[tuple[str, ...], Any] | None = None  # receivers, and reference to rank 0's wait for them

    def manifest(self) -> list[TensorInfo]:
        """Return name, shape and dtype of the tensors in the policy's weight stream, in order, which never change."""
        if self._manifest is None:
            reference = self._ranks[0].call.remote("weight_manifest")
            self._manifest = self._of_first_rank(reference, "weight_manifest")
        return self._manifest

    def open_link(self, receivers: tuple[str, ...]) -> WeightLink | None:
        """Return where inference engines must join the weight broadcast group, or None if there is none to join.

        That is so when the transport needs no group, or when these engines have joined already.
        """
        if self.transport != "collective" or receivers == self._receivers:
            return None
        self._receivers = None
        opened = self._ranks[0].open_weight_link.remote(receivers)
        link: WeightLink = self._of_first_rank(opened, "open_weight_link")
        joined = self._ranks[0].join_weight_link.remote(link)
        self._joining = (receivers, joined)
        return link

    def stream(self, ask: Ask) -> Iterator[StreamedBucket]:
        """Yield the buckets of one weight sync from the policy to the inference engines.

        `ask` is called while the driver waits for the policy ranks. Raises WeightSyncError naming a rank that is late.
        A rank's own error is raised unchanged.
        """
        self._finish_joining()
        receivers = self._receivers
        # A sync that fails leaves no group that could be used again.
        self._receivers = None
        sizes = bucket_sizes(self.manifest(), self._limit)
        streams = WeightStreams(self._ranks, len(sizes), self._timeout_s, self._wait, ask)
        for num_bytes in sizes:
            yield StreamedBucket(streams.next_message(), num_bytes)
        streams.finish()
        self._receivers = receivers

    def _finish_joining(self) -> None:
        if self._joining is None:
            return
        receivers, reference = self._joining
        self._joining = None
        self._of_first_rank(reference, "join_weight_link")
        self._receivers = receivers

    def _of_first_rank(self, reference: Any, method: str) -> Any:
        """Return the result of a call to policy rank 0."""
        (result,) = self._wait([(0, reference)], method)
        return result


class WeightStreams:
    """The streaming calls of one weight sync on all policy ranks."""

    def __init__(
        self,
        ranks: Sequence[Any],
        num_buckets: int,
        timeout_s: float,
        wait: Wait,
        ask: Ask,
    ) -> None:
        self.num_buckets = num_buckets
        self._ask = ask
        self._timeout_s = timeout_s
        self._wait = wait
        self._generators: list[Any] = []
        for number, rank in enumerate(ranks):
            # Only rank 0 has messages. Other ranks report that they have finished a bucket.
            num_ahead = _MESSAGES_AHEAD if number == 0 else None
            self._generators.append(start_stream(rank.stream_weights, num_ahead))
        self._num_sent = [0] * len(self._generators)  # buckets that each rank has finished

    def next_message(self) -> Any:
        """Return the reference to policy rank 0's message about the next weight bucket.

        Raises WeightSyncError when it takes longer than the time limit, or when the stream has ended early.
        """
        first = self._generators[0]
        deadline = time.monotonic() + self._timeout_s
        while not _has_next(first, min(SLICE_S, deadline - time.monotonic())):
            self._ask()
            if time.monotonic() > deadline:
                raise WeightSyncError(self._late())
        reference = next(first, None)
        if reference is None or _is_done(first.completed()):
            self._check_ended()
        if reference is None:
            sent = f"{self._num_sent[0]} of {self.num_buckets} buckets"
            raise WeightSyncError(f"policy rank 0 ended its weight stream after {sent}")
        self._num_sent[0] += 1
        return reference

    def finish(self) -> None:
        """Wait until all policy ranks have ended their weight streams.

        Raises WeightSyncError naming a rank that is late.
        """
        deadline = time.monotonic() + self._timeout_s
        self._count(deadline)
        ended = [generator.completed() for generator in self._generators]
        left_s = max(0.0, deadline - time.monotonic())
        _, pending = ray.wait(ended, num_returns=len(ended), timeout=left_s)
        if pending:
            raise WeightSyncError(self._late())
        self._check_ended()

    def _check_ended(self) -> None:
        """Raise the error of a policy rank whose weight stream has failed."""
        ended = []
        for number, generator in enumerate(self._generators):
            completed = generator.completed()
            if _is_done(completed):
                ended.append((number, completed))
        self._wait(ended, "weight_stream")

    def _late(self) -> str:
        """Return a sentence that says which policy ranks are furthest behind in the weight stream."""
        self._count(deadline=0.0)
        fewest = min(self._num_sent)
        late = []
        for number, num_sent in enumerate(self._num_sent):
            if num_sent == fewest:
                late.append(number)
        if len(late) == len(self._num_sent):
            # If all are equally far, they wait for rank 0, which sends.
            late = late[:1]
        ranks = "policy ranks" if len(late) > 1 else "policy rank"
        numbers = ", ".join(map(str, late))
        progress = f"sent bucket {fewest} of {self.num_buckets} and nothing for {self._timeout_s:g} s"
        return f"{ranks} {numbers} {progress}"

    def _count(self, deadline: float) -> None:
        """Count the weight buckets that policy ranks other than 0 have finished, waiting at most until `deadline`.

        The buckets of rank 0 are counted by `next_message`.
        """
        for number, generator in enumerate(self._generators[1:], start=1):
            while _has_next(generator, deadline - time.monotonic()):
                if next(generator, None) is None:
                    break
                self._num_sent[number] += 1


def _has_next(generator: Any, seconds: float) -> bool:
    """Return whether a rank's weight stream has its next message, or has ended, within `seconds`."""
    timeout_s = max(0.0, seconds)
    ready, _ = ray.wait([generator], timeout=timeout_s, fetch_local=False)
    return bool(ready)


def _is_done(reference: Any) -> bool:
    ready, _ = ray.wait([reference], timeout=0)
    return bool(ready)
