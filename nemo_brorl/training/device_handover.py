"""Handover of the devices between engines and policy, and publication of the weights on the way: engines have them
while rollouts are sampled, the policy while it learns. One place for the order of the steps.

Between turns of the policy the engines are awake and the policy is offloaded, as far as `generation.sleep` and
`policy.offload` say; where roles have devices of their own both say nothing, and every step here is a no-op. A turn
goes in stages, so that at no time both need all of their memory:

    engines sleep → policy onload → … learn … → policy release → engines wake for weights → publish → policy offload →
    engines wake their cache

The policy's `release` gives back memory that its allocator keeps (activations, gathered tensors, buckets), whatever is
offloaded: an engine that wakes cannot make another process give it up. `offload` ends with one, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.ports import Generator, Policy
from nemo_brorl.weights.publication import SyncReport, publish


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
    def policy_phase(self, watch: Stopwatch) -> Iterator[PolicyPhase]:
        """Give the devices to the policy for the length of a `with` block; the engines may not be used in it.

        A block that makes new weights calls `set_version`. They are published to the engines at its end.
        """
        phase = PolicyPhase(self.version)
        with watch.measure("offload"):
            self.residual = self.generator.sleep()
            self.policy.onload()
        yield phase
        with watch.measure("offload"):
            self.policy.release()
            lacks_weights = self.generator.wake_weights()
        if phase.version != self.version or lacks_weights:
            with watch.measure("sync"):
                self._publish(phase.version)
            self.version = phase.version
        with watch.measure("offload"):
            self.policy.offload()
            self.generator.wake_cache()

    def _publish(self, version: int) -> None:
        with self.heartbeat.stage("publish", self.generator.stalled):
            self.last_sync = publish(self.policy, self.generator, version)


class PolicyPhase:
    """What the policy did with its turn."""

    def __init__(self, version: int) -> None:
        self.version = version

    def set_version(self, version: int) -> None:
        """There are new weights."""
        self.version = version
