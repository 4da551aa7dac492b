"""Sync weights: stream the policy's current weights to every engine, and stamp them with their version."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ReceiverLostError
from nemo_brorl.ports import Policy, WeightTarget

_GIB = 2**30
_log = get_logger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """Sizes and times of one weight sync."""

    version: int
    transport: str
    seconds: float
    num_bytes: int  # bytes of the weights, counted once for all engines
    num_tensors: int
    # Most bytes of buckets and kept copies that existed at once on top of the models, as the generator counts them.
    peak_extra_bytes: int
    num_attempts: int  # attempts; two when an engine was lost in a collective

    def metrics(self) -> dict[str, float]:
        """Return the metrics `sync/…` of a weight sync, for the metrics of its training step."""
        return {
            "sync/seconds": self.seconds,
            "sync/gib": self.num_bytes / _GIB,
            "sync/gib_per_s": self.num_bytes / _GIB / max(self.seconds, 1e-9),
            "sync/peak_extra_gib": self.peak_extra_bytes / _GIB,
            "sync/num_attempts": float(self.num_attempts),
        }


def publish(
    policy: Policy,
    target: WeightTarget,
    version: int,
) -> SyncReport:
    """Stream the policy's weights to the target's inference engines, which then sample as weight version `version`.

    Only references pass through the driver. With the transport `collective`, engines first join the policy's process
    group if they have not done so. If an engine is lost on the way, all engines are replaced and the sync is tried once
    more. Raises WeightSyncError when an engine refuses the manifest or did not get every byte. Raises ReceiverLostError
    when the second attempt also lost an engine.
    """
    start = time.perf_counter()
    num_attempts = 1
    try:
        peak_extra_bytes = _publish_once(policy, target, version)
    except ReceiverLostError as cause:
        _log.warning("weights of version %d are published again: %s", version, cause)
        num_attempts = 2
        peak_extra_bytes = _publish_once(policy, target, version)
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


def _publish_once(
    policy: Policy,
    target: WeightTarget,
    version: int,
) -> int:
    manifest = policy.weight_manifest()
    link = policy.open_weight_link(target.weight_receivers())
    if link is not None:
        target.join_weight_link(link)
    return target.load_weights(manifest, policy.weight_stream(), version)
