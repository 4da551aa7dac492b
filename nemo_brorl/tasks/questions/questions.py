"""Questions before tokenisation, rows that give none, the protocol of a source, and how the held-out split is told
apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

SPLITS = ("train", "held_out")


@dataclass(frozen=True)
class Question:
    """A question before tokenisation."""

    task: str
    verifier: str
    text: str
    payload: Mapping[str, Any]  # JSON-able
    messages: tuple[Mapping[str, str], ...] = ()  # role and content of a conversation; empty: `text` from the user
    tools: tuple[Mapping[str, Any], ...] = ()  # that the model may call, as its chat template takes them
    level: int | None = None  # of its task's difficulty; None: the task has no levels


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be used."""

    reason: str


Row = dict[str, Any] | BadRow


class Source(Protocol):
    """Questions of one split. Question i is a function of the seed and i alone, so a stream is resumed by its
    position."""

    @property
    def size(self) -> int | None:
        """Questions of one epoch: those from `k · size` to `(k + 1) · size` are each of them once. None: generated
        without end."""

    @property
    def fingerprint(self) -> str:
        """Changes with the questions behind the indices; "" where settings alone decide them."""

    def question(self, index: int) -> Question:
        """Question `index` (0, 1, …, without end)."""


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a question belongs to the held-out split: decided by its text, so the same for every run."""
    limit = fraction * 2**64
    return hash_of(text) < limit


def hash_of(text: str) -> int:
    """64 bits that do not change between processes (Python's own hash does)."""
    written = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(written, digest_size=8).digest()
    return int.from_bytes(digest, "big")
