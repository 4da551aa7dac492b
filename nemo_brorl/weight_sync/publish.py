"""publish: the policy's current weights into every engine, stamped with their version."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nemo_brorl.ports import Generator, Policy


@dataclass(frozen=True)
class SyncReport:
    """What one publication moved."""

    version: int
    seconds: float
    num_bytes: int  # of the weights, once; every engine received them
    num_tensors: int


def publish(policy: Policy, generator: Generator, version: int) -> SyncReport:
    """Stream the policy's weights to the generator's engines; from then on they sample as `version`.

    Only references pass through the driver: buckets go from the policy's ranks to the engines through the object store.
    Raises WeightSyncError when an engine refuses the manifest, or did not get every byte.
    """
    start = time.perf_counter()
    manifest = policy.weight_manifest()
    generator.load_weights(manifest, policy.weight_stream(), version)
    return SyncReport(
        version=version,
        seconds=time.perf_counter() - start,
        num_bytes=sum(info.num_bytes for info in manifest),
        num_tensors=len(manifest),
    )
