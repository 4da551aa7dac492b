"""How the weight stream is cut into buckets: every rank and the driver cut alike, from names and sizes alone. No torch
here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import TensorInfo

T = TypeVar("T")


def bucket_bytes(config: BroRLConfig) -> int:
    """The size no bucket exceeds, unless one tensor alone does."""
    return int(config.generation.weight_bucket_mib * 2**20)


def cut(items: Iterable[T], num_bytes: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Consecutive items of at most `limit` bytes together, or one that is larger alone."""
    held: list[T] = []
    total = 0
    for item in items:
        if held and total + num_bytes(item) > limit:
            yield held
            held, total = [], 0
        held.append(item)
        total += num_bytes(item)
    if held:
        yield held


def bucket_sizes(manifest: Sequence[TensorInfo], limit: int) -> list[int]:
    """Bytes of every bucket that this manifest is sent in."""
    return [sum(info.num_bytes for info in part) for part in cut(manifest, lambda info: info.num_bytes, limit)]
