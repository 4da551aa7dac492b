"""Bytes and checksums of buckets."""

import zlib

import pytest
import torch

from nemo_brorl.core.errors import WeightSyncError
from nemo_brorl.types import BucketNotice
from nemo_brorl.weights.flat import (
    check_bytes,
    checksum,
    flatten,
    infos_of,
    unflatten,
    word_checksum,
)

NAMED = [
    ("a", torch.arange(3, dtype=torch.bfloat16)),
    ("b", torch.tensor([[1.5, -2.0]])),
    ("c", torch.ones(1, dtype=torch.float16)),
]


def test_tensors_come_back_from_their_bytes_also_where_they_are_not_aligned() -> None:
    flat = flatten(NAMED)
    assert flat.numel() == 3 * 2 + 2 * 4 + 2
    for (name, tensor), (expected_name, expected) in zip(unflatten(infos_of(NAMED), flat), NAMED, strict=True):
        assert name == expected_name
        assert torch.equal(tensor, expected)


def test_the_checksum_of_bytes_on_the_host_is_their_crc() -> None:
    flat = torch.arange(100, dtype=torch.uint8)
    assert checksum(flat) == zlib.crc32(bytes(range(100)))


def test_a_gpus_checksum_sees_a_changed_bit_and_exchanged_words() -> None:
    flat = torch.arange(103, dtype=torch.uint8)  # no multiple of four
    changed, exchanged = flat.clone(), flat.clone()
    changed[102] ^= 1
    exchanged[:4], exchanged[4:8] = flat[4:8], flat[:4]
    assert len({word_checksum(flat), word_checksum(changed), word_checksum(exchanged)}) == 3


def test_a_gpus_checksum_is_the_two_sums_over_words() -> None:
    words = torch.tensor([5, -7], dtype=torch.int32)
    plain, weighted = 5 - 7, 1 * 5 + 2 * -7
    assert word_checksum(words.view(torch.uint8)) == (plain * 0x9E3779B97F4A7C15 + weighted) % 2**64


def test_a_gpus_checksum_of_whole_words_copies_no_bucket() -> None:
    flat = torch.zeros(1 << 20, dtype=torch.uint8)
    with torch.profiler.profile(profile_memory=True) as profile:
        word_checksum(flat)
    copied = [event.name for event in profile.events() if event.name in ("aten::clone", "aten::constant_pad_nd")]
    assert copied == []


def test_bytes_that_are_not_the_announced_ones_are_refused() -> None:
    flat = flatten(NAMED)
    notice = BucketNotice(infos_of(NAMED), checksum(flat))
    check_bytes(notice, flat)
    flat[0] ^= 1
    with pytest.raises(WeightSyncError, match="bucket a to c arrived with checksum"):
        check_bytes(notice, flat)
