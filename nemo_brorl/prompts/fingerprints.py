"""Fingerprints of the questions in data files, from which a resumed run reads which rows have changed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np

from nemo_brorl.prompts.file_tables import Tables
from nemo_brorl.types import Int64, UInt64

VERSION = "2"
NUM_BLOCKS = 64  # blocks of rows that have hashes of their own


def fingerprint(rows: Int64, contents: UInt64, in_use: Int64) -> str:
    """Return hashes of usable rows and of the choice among them, as "2:ROWS:CHOICE:BLOCK:BLOCK:…".

    `rows` are the numbers of the usable rows [n], `contents` the hashes of their questions [n], and `in_use` the
    numbers of the chosen rows.
    """
    blocks = [_digest(rows[block], contents[block]) for block in _blocks(len(rows))]
    return ":".join((VERSION, str(len(rows)), _digest(in_use), *blocks))


def fingerprint_of_texts(hashes: UInt64, in_use: Int64) -> str:
    """Return the fingerprint that checkpoints of version 0.2.0 have, which knows the texts of questions alone."""
    return _digest(hashes, in_use)


def difference(earlier: str, now: str, rows: Int64, tables: Tables) -> str:
    """Return in words where the questions of two fingerprints differ, or "" if they are equal.

    `rows` are the usable rows of `now`.
    """
    if earlier == now:
        return ""
    version, *were = earlier.split(":")
    _, *are = now.split(":")
    if version != VERSION or len(were) < 2:
        return "other questions"
    if were[0] != are[0]:
        return f"{are[0]} questions, {were[0]} before"
    for block, was, digest in zip(_blocks(len(rows)), were[2:], are[2:], strict=False):
        if was != digest:
            first, last = tables.locate_row(int(rows[block][0])), tables.locate_row(int(rows[block][-1]))
            return first if first == last else f"a row from {first} to {last}"
    return "another choice of training rows"


def _blocks(num_rows: int) -> Iterator[slice]:
    bounds = np.linspace(0, num_rows, min(NUM_BLOCKS, num_rows) + 1).astype(int).tolist()
    return (slice(start, end) for start, end in itertools.pairwise(bounds))


def _digest(*arrays: Int64 | UInt64) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
