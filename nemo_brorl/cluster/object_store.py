"""Access to Ray's object store: bulk arrays live there, small control objects hold references to them."""

from collections.abc import Sequence
from typing import Any

from nemo_brorl.types import ChunkArrays


def fetch(data: Any) -> ChunkArrays:
    """The arrays behind `RolloutChunk.data`: the arrays themselves, or a reference into the object store."""
    return fetch_all([data])[0]


def fetch_all(items: Sequence[Any]) -> list[ChunkArrays]:
    """Fetch many references in one call, in order."""
    references = [item for item in items if not isinstance(item, ChunkArrays)]
    if not references:
        return list(items)
    import ray  # only a process that was handed references needs Ray

    arrays = iter(ray.get(references))
    return [item if isinstance(item, ChunkArrays) else next(arrays) for item in items]


def fetch_or_none(data: Any, timeout_s: float) -> ChunkArrays | None:
    """As `fetch`; None for what is gone with the node that held it, or does not come in time."""
    if isinstance(data, ChunkArrays):
        return data
    import ray
    from ray.exceptions import RayError

    try:
        arrays: ChunkArrays = ray.get(data, timeout=timeout_s)
    except RayError:
        return None
    return arrays


def store(data: Any) -> Any:
    """A reference to arrays that are in this process, as those read from a file are; without Ray, and for a reference,
    the thing itself."""
    if not isinstance(data, ChunkArrays):
        return data
    import ray

    return ray.put(data) if ray.is_initialized() else data


def wait_any(references: Sequence[Any], timeout_s: float) -> None:
    """Return when one of the references has resolved, or after `timeout_s` seconds. Without references, at once:
    whoever has nothing pending has its results ready."""
    if not references:
        return
    import ray

    ray.wait(
        list(references),
        timeout=max(timeout_s, 0.0),
        fetch_local=False,
    )
