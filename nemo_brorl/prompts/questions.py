"""Define questions before tokenisation, the protocol of their sources, and the held-out split."""

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
    """A question before tokenisation, with the data that its verifier needs."""

    task: str
    verifier: str
    text: str
    payload: Mapping[str, Any]  # JSON-able data for the verifier
    # role and content of a conversation; empty: `text` is the user's message
    messages: tuple[Mapping[str, str], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # tools that the model may call, in the form of its chat template
    level: int | None = None  # difficulty level of the task; None: the task has no levels
    others: tuple[str, ...] = ()  # keys of the payload that no setting names: they make no other question

    @property
    def has_episodes(self) -> bool:
        """True if an environment replies to the model's responses, over several turns."""
        return self.verifier == ENVIRONMENT


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be used, with the reason."""

    reason: str
    is_refused: bool = False  # True: it names code or an address that no setting names, so the run does not start


Row = dict[str, Any] | BadRow


class Source(Protocol):
    """Protocol of a source of questions of one split.

    Question i depends on the seed and i alone, so a stream is resumed by its position.
    """

    @property
    def size(self) -> int | None:
        """Number of questions in one epoch of the source. None: generated without end. 0: nothing is held out.

        Questions `k · size` to `(k + 1) · size - 1` are each question once.
        """

    @property
    def fingerprint(self) -> str:
        """Text that changes whenever a data source's questions change, or "" if settings alone determine them."""

    def change_since(self, earlier: str) -> str:
        """Return in words what differs from the questions with the fingerprint `earlier`, or "" if nothing does."""

    @property
    def levels(self) -> Mapping[str, TaskLevel]:
        """Difficulty levels by task name, for those tasks of a question source that have levels."""

    def question(self, index: int) -> Question:
        """Return question `index` (0, 1, …, without end) of a source of questions."""


def is_held_out(text: str, fraction: float) -> bool:
    """Return whether a question belongs to the held-out split, by the hash of its text alone, in every run."""
    limit = fraction * 2**64
    return hash_of(text) < limit


def size_of_drawn(split: str, held_out_fraction: float) -> int | None:
    """Return the size of a source that generates its questions: None (endless), or 0 for an empty held-out split."""
    is_empty = split == "held_out" and held_out_fraction == 0
    return 0 if is_empty else None


def hash_of(text: str) -> int:
    """Return a 64-bit hash of a text that is equal in all processes, unlike Python's own."""
    written = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(written, digest_size=8).digest()
    return int.from_bytes(digest, "big")
