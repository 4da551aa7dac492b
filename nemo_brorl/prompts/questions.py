"""A question before tokenisation, the protocol of a source, and how the held-out split is told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brorl_graders import ENVIRONMENT

from nemo_brorl.prompts.levels import TaskLevel

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

    @property
    def has_episodes(self) -> bool:
        """Whether an environment answers, over several turns."""
        return self.verifier == ENVIRONMENT


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be used."""

    reason: str
    is_refused: bool = False  # it names code or an address that no setting names: the run does not start


Row = dict[str, Any] | BadRow


class Source(Protocol):
    """Questions of one split. Question i is a function of the seed and i alone, so a stream is resumed by its
    position."""

    @property
    def size(self) -> int | None:
        """Questions of one epoch: those from `k · size` to `(k + 1) · size` are each of them once. None: generated
        without end. 0: nothing of it is held out."""

    @property
    def fingerprint(self) -> str:
        """Changes with the questions behind the indices; "" where settings alone decide them."""

    @property
    def levels(self) -> Mapping[str, TaskLevel]:
        """Of those of its tasks that have some."""

    def question(self, index: int) -> Question:
        """Question `index` (0, 1, …, without end)."""


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a question belongs to the held-out split: decided by its text, so the same for every run."""
    limit = fraction * 2**64
    return hash_of(text) < limit


def size_of_drawn(split: str, held_out_fraction: float) -> int | None:
    """Size of a source that draws its questions: None, without end; 0 where none of them is held out."""
    is_empty = split == "held_out" and held_out_fraction == 0
    return 0 if is_empty else None


def hash_of(text: str) -> int:
    """64 bits that do not change between processes (Python's own hash does)."""
    written = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(written, digest_size=8).digest()
    return int.from_bytes(digest, "big")
