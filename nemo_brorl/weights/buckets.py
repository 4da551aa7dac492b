"""Cut the weight stream into buckets, from names and sizes alone, so that every rank and the driver cut it alike.

The driver imports this module, so it does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.types import TensorInfo

Item = TypeVar("Item")


def bucket_bytes(config: GenerationConfig) -> int:
    """Return the most bytes that a weight bucket may have, which only a single larger tensor exceeds."""
    return int(config.weight_bucket_mib * 2**20)


def cut(
    items: Iterable[Item],
    num_bytes: Callable[[Item], int],
    limit: int,
) -> Iterator[list[Item]]:
    """Yield lists of consecutive tensors, or descriptions of tensors, of at most `limit` bytes together.

    A larger tensor is a list alone.
    """
    held: list[Item] = []
    held_bytes = 0
    for item in items:
        size = num_bytes(item)
        if held and held_bytes + size > limit:
            yield held
            held = []
            held_bytes = 0
        held.append(item)
        held_bytes += size
    if held:
        yield held


def bucket_sizes(manifest: Sequence[TensorInfo], limit: int) -> list[int]:
    """Return the size in bytes of every bucket in which a weight sync sends the tensors of a manifest."""
    sizes = []
    for bucket in cut(manifest, lambda info: info.num_bytes, limit):
        sizes.append(sum(info.num_bytes for info in bucket))
    return sizes
