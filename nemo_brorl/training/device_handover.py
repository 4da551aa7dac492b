"""Handover of the devices between engines and policy, and publication of the weights on the way: engines have them
while rollouts are sampled, the policy while it learns. One place for the order of the steps.

Between turns of the policy the engines are awake and the policy is offloaded, as far as `generation.sleep` and
`policy.offload` say; where roles have devices of their own both say nothing, and every step here is a no-op. A turn
goes in stages, so that at no time both need all of their memory:

    engines sleep → policy onload → … learn … → policy release → engines wake for weights → publish → policy offload →
    engines wake their cache

The policy's `release` gives back memory that its allocator keeps (activations, gathered tensors, buckets), whatever is
offloaded: an engine that wakes cannot make another process give it up. `offload` ends with one, too.

A publication streams the policy's current weights to every engine, stamped with their version.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ReceiverLostError
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.ports import Generator, Policy


@dataclass(frozen=True)
class SyncReport:
    """What one publication moved."""

    version: int
    transport: str
    seconds: float
    num_bytes: int  # of the weights, once; every engine received them
    num_tensors: int
    # of buckets and kept copies that were alive together, beside the models; as counted by the generator
    peak_extra_bytes: int
    num_attempts: int  # more than one when an engine was lost in a collective

    def metrics(self) -> dict[str, float]:
        """Flat, for the step's row."""
        return {
            "sync/seconds": self.seconds,
            "sync/gib": self.num_bytes / _GIB,
            "sync/gib_per_s": self.num_bytes / _GIB / max(self.seconds, 1e-9),
            "sync/peak_extra_gib": self.peak_extra_bytes / _GIB,
            "sync/num_attempts": float(self.num_attempts),
        }


def publish(policy: Policy, generator: Generator, version: int) -> SyncReport:
    """Stream the policy's weights to the generator's engines; from then on they sample as `version`.

    Only references pass through the driver. Where bytes are broadcast, engines that have not joined the policy's group
    do so first; when one is lost on the way, all are replaced and the publication is made once more. Raises
    WeightSyncError when an engine refuses the manifest, or did not get every byte; ReceiverLostError when the second
    attempt lost one, too.
    """
    start = time.perf_counter()
    num_attempts = 1
    try:
        peak_extra_bytes = _publish_once(policy, generator, version)
    except ReceiverLostError as cause:
        _log.warning("weights of version %d are published again: %s", version, cause)
        num_attempts = 2
        peak_extra_bytes = _publish_once(policy, generator, version)
    manifest = policy.weight_manifest()
    return SyncReport(
        version=version,
        transport=policy.weight_transport,
        seconds=time.perf_counter() - start,
        num_bytes=sum(info.num_bytes for info in manifest),
        num_tensors=len(manifest),
        peak_extra_bytes=peak_extra_bytes,
        num_attempts=num_attempts,
    )


def _publish_once(policy: Policy, generator: Generator, version: int) -> int:
    manifest = policy.weight_manifest()
    link = policy.open_weight_link(generator.weight_receivers())
    if link is not None:
        generator.join_weight_link(link)
    return generator.load_weights(manifest, policy.weight_stream(), version)


_GIB = 2**30
_log = get_logger(__name__)


class DeviceHandover:
    """Hands the devices from one role to the other."""

    def __init__(self, policy: Policy, generator: Generator, heartbeat: Heartbeat | None = None) -> None:
        """`heartbeat` hears when weights are on their way."""
        self.policy = policy
        self.generator = generator
        self.heartbeat = heartbeat or Heartbeat()
        self.version = 0  # that the engines have
        self.last_sync: SyncReport | None = None
        self.residual: Mapping[str, float] = {}  # what sleeping engines still held, as metrics

    def metrics(self) -> dict[str, float]:
        """Metrics of the policy's last turn."""
        metrics = dict(self.residual)
        if self.last_sync is not None:
            metrics.update(self.last_sync.metrics())
        return metrics

    def begin(self, version: int, is_published: bool) -> None:
        """Both roles are on their devices, after start-up or a resume: the engines get the weights unless they have
        them, and the devices."""
        self.version = version
        if not is_published:
            self._publish(version)
        self.policy.offload()

    @contextmanager
    def policy_turn(self, watch: Stopwatch) -> Iterator[PolicyTurn]:
        """Inside, the policy may be used and engines may not. A turn that makes new weights says so with `made`; they
        are published at its end."""
        turn = PolicyTurn(self.version)
        with watch.measure("offload"):
            self.residual = self.generator.sleep()
            self.policy.onload()
        yield turn
        with watch.measure("offload"):
            self.policy.release()
            lacks_weights = self.generator.wake_weights()
        if turn.version != self.version or lacks_weights:
            with watch.measure("sync"):
                self._publish(turn.version)
            self.version = turn.version
        with watch.measure("offload"):
            self.policy.offload()
            self.generator.wake_cache()

    def _publish(self, version: int) -> None:
        with self.heartbeat.stage("publish", self.generator.stalled):
            self.last_sync = publish(self.policy, self.generator, version)


class PolicyTurn:
    """What the policy did with its turn."""

    def __init__(self, version: int) -> None:
        self.version = version

    def made(self, version: int) -> None:
        """There are new weights."""
        self.version = version
