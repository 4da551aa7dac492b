"""Read and write arrays in Ray's object store.

Rollouts are large, so the driver never holds their tokens. An engine puts the arrays of a chunk (`ChunkArrays`) into
the object store, and sends the driver a small record with a reference to them. Each function also accepts the arrays
themselves in place of a reference, and then needs no Ray.
"""

from collections.abc import Sequence
from typing import Any

from nemo_brorl.types import ChunkArrays


def fetch(data: Any) -> ChunkArrays:
    """Return the token arrays of one chunk of rollouts from a reference into Ray's object store.

    If `data` is not a reference but `ChunkArrays`, it is returned itself. Raises `ray.exceptions.RayError` when the
    arrays were lost with their node.
    """
    return fetch_all([data])[0]


def fetch_all(items: Sequence[Any]) -> list[ChunkArrays]:
    """Return the token arrays of many chunks of rollouts in order, with one call to Ray's object store.

    Each item is a reference or `ChunkArrays`. Raises `ray.exceptions.RayError` when arrays were lost with their node.
    """
    references = [item for item in items if not isinstance(item, ChunkArrays)]
    if not references:
        return list(items)
    # Only a process that gets references needs Ray.
    import ray

    arrays = iter(ray.get(references))
    return [item if isinstance(item, ChunkArrays) else next(arrays) for item in items]


def fetch_or_none(data: Any, timeout_s: float) -> ChunkArrays | None:
    """Return the token arrays of one chunk of rollouts, or None when they cannot be fetched in time.

    They are lost with the node whose object store held them, and count as late after `timeout_s` seconds.
    """
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
    """Return a Ray object reference to arrays of this process, for example arrays that were read from a file.

    Without Ray the arrays themselves are returned. A reference is returned unchanged.
    """
    if not isinstance(data, ChunkArrays):
        return data
    import ray

    return ray.put(data) if ray.is_initialized() else data


def wait_any(references: Sequence[Any], timeout_s: float) -> None:
    """Block until one of the Ray references has resolved, at most `timeout_s` seconds.

    It returns at once if there are no references, because a caller without pending calls already has its results.
    """
    if not references:
        return
    import ray

    ray.wait(
        list(references),
        timeout=max(timeout_s, 0.0),
        fetch_local=False,
    )
