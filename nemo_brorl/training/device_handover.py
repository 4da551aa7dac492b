"""Handover of the devices between engines and policy, with the weight sync in between.

Engines use the devices while rollouts are sampled, and the policy while it trains. Between phases of the policy the
engines are awake and the policy is offloaded, as far as `generation.sleep` and `policy.offload` say. Where engines and
policy have devices of their own, both settings are off and every step here is a no-op. A phase of the policy goes in
stages, so that at no time both need all of their memory:

    engines sleep → policy onload → … update … → policy release → engines wake for weights → publish → policy offload →
    engines wake their cache

At the start of a run the policy has the devices first: engines have started on empty devices and sleep again.

The policy's `release` returns memory that its allocator keeps (activations, gathered tensors, buckets), whatever is
offloaded, because an engine that wakes cannot make another process return memory. `offload` ends with a `release`, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.errors import ResourceError
from nemo_brorl.core.stall_watch import Heartbeat
from nemo_brorl.ports import Generator, Policy, WeightTarget
from nemo_brorl.weights.publication import SyncReport, publish

MAX_GROWTH_GIB = 4.0


class DeviceHandover:
    """Owner of the order in which engines and policy use their devices."""

    def __init__(self, policy: Policy, generator: Generator, heartbeat: Heartbeat | None = None) -> None:
        """Let engines and policy take turns on the devices that they share, starting with the engines.

        `heartbeat` records when weights are sent to the engines.
        """
        self.policy = policy
        self.generator = generator
        self.heartbeat = heartbeat or Heartbeat()
        self.version = 0  # policy version of the engines' weights
        self.last_sync: SyncReport | None = None
        self.residual: Mapping[str, float] = {}  # metrics of the memory that sleeping engines still held
        self.is_policy_phase = False
        generator.on_lost_weights(self.publish_again)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the policy's last use of the devices: memory of sleeping engines, and the weight sync."""
        metrics = dict(self.residual)
        if self.last_sync is not None:
            metrics.update(self.last_sync.metrics())
        return metrics

    def check_growth(self) -> None:
        """Raise ResourceError if a sleeping engine holds some GiB more than in its first sleep."""
        growth = self.residual.get("sleep/residual_growth_gib_max", 0.0)
        if growth > MAX_GROWTH_GIB:
            raise ResourceError(
                f"an engine holds {growth:.1f} GiB more than in its first sleep, and the policy will lack them. A "
                "restart gives them back: run the same command again. If it comes back, set generation.sleep=cache"
            )

    @contextmanager
    def first_phase(self, version: int) -> Iterator[None]:
        """Give the devices to the policy for the first time, and send its weights of this version to the engines."""
        self.version = version
        with self.policy_phase(Stopwatch(), publishes=True):
            yield

    @contextmanager
    def policy_phase(self, watch: Stopwatch, publishes: bool = False) -> Iterator[PolicyPhase]:
        """Give the devices to the policy for the length of a `with` block, in which the engines may not be used.

        A block that makes new weights calls `set_version`. These weights are sent to the engines when the block ends.
        With `publishes` the weights are sent also if they are not new.
        """
        self.is_policy_phase = True
        try:
            phase = PolicyPhase(self.version)
            with watch.measure("offload"):
                self.residual = self.generator.sleep()
                self.policy.onload()
            yield phase
            with watch.measure("offload"):
                self.policy.release()
                lacks_weights = self.generator.wake_weights()
            if phase.version != self.version or lacks_weights or publishes:
                with watch.measure("sync"):
                    self._publish(phase.version)
                self.version = phase.version
            with watch.measure("offload"):
                self.policy.offload()
                self.generator.wake_cache()
        finally:
            self.is_policy_phase = False

    def publish_again(self, target: WeightTarget) -> None:
        """Send the published weights to engines that lost them, unless the policy has newer ones under way."""
        if self.is_policy_phase:
            return
        with self.heartbeat.stage("publish", self.generator.stalled):
            self.policy.onload()
            publish(self.policy, target, self.version)
            self.policy.offload()

    def _publish(self, version: int) -> None:
        with self.heartbeat.stage("publish", self.generator.stalled):
            self.last_sync = publish(self.policy, self.generator, version)


class PolicyPhase:
    """One phase in which the policy has the devices. It records whether new weights were made."""

    def __init__(self, version: int) -> None:
        self.version = version

    def set_version(self, version: int) -> None:
        """Record that the policy has new weights of this version, which must be sent to the engines."""
        self.version = version
