"""Questions before tokenisation, rows that give none, the protocol of a source, and how the held-out split is told
apart; several sources in fixed shares.

Which source of a mixture a position draws from is a function of seed and position alone. Of generated tasks difficulty
may follow success: which level is asked is moved by what its rollouts earn. A question is of the level reached, or of
one of the `level_width` − 1 below it. Groups of the level reached are counted. Once there are `level_window` of them,
their share of correct rollouts decides: from `promote_from` on the next level is reached, below `demote_below` the one
before. Counting then begins anew, whatever was decided (RLVE, arXiv 2511.07317, which widens the range of levels
upwards and never goes back).

Levels move between steps alone, by `PromptStream.learn`. So question i of a source is a function of the seed, i and the
levels, and a stream is resumed by its position and these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, Protocol

import numpy as np

from nemo_brorl.config.data import TaskConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.types import Int64, Prompt

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


class TaskLevel:
    """The level that a task has reached, from 0, and what was seen of it."""

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self.reached = 0
        self.num_groups = 0  # of this level, since the last decision
        self.weight = 0.0  # of these, prompts that were passed over included
        self.correct = 0.0  # weight times share of correct rollouts

    def draw(self, random: Random) -> int:
        """Level of a question."""
        lowest = max(0, self.reached + 1 - self.task.level_width)
        return random.randint(lowest, self.reached)

    def learn(self, prompt: Prompt, rate: float) -> None:
        """Take in a group: the share of its rollouts that were correct."""
        if prompt.level != self.reached:
            return
        self.num_groups += 1
        self.weight += prompt.weight
        self.correct += prompt.weight * rate

    def decide(self) -> str | None:
        """Move if it is time and success says so; why."""
        if self.num_groups < self.task.level_window:
            return None
        rate = self.correct / self.weight
        before = self.reached
        if rate >= self.task.promote_from:
            self.reached = min(before + 1, len(self.task.levels) - 1)
        elif rate < self.task.demote_below:
            self.reached = max(before - 1, 0)
        reason = f"{rate:.1%} correct in {self.num_groups} groups of level {before}"
        self.num_groups = 0
        self.weight = 0.0
        self.correct = 0.0
        return None if self.reached == before else reason

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "reached": self.reached,
            "num_groups": self.num_groups,
            "weight": self.weight,
            "correct": self.correct,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.reached = state["reached"]
        self.num_groups = state["num_groups"]
        self.weight = state["weight"]
        self.correct = state["correct"]


BLOCK = 4096  # draws among which every source has its share exactly, to the nearest whole number


@dataclass(frozen=True)
class Domain:
    """A source, how its prompts are made, and how many there are of it."""

    name: str  # "" where it is the only one
    source: Source
    weight: float
    system_prompt: str | None
    max_prompt_tokens: int
    levels: Mapping[str, TaskLevel] = field(default_factory=dict)  # of those of its tasks that have some


class Mixture:
    """Sources in shares; each has epochs of its own. Block b of draws is shuffled by the seed and b."""

    size = None

    def __init__(self, domains: Sequence[Domain], seed: str) -> None:
        """Raises DataError when the weights leave nothing, or a source less than one draw in a block."""
        self.domains = tuple(domains)
        self.seed = seed
        self._counts = _counts(self.domains)
        self._block = lru_cache(maxsize=2)(self._make_block)

    @property
    def fingerprint(self) -> str:
        """Of all sources."""
        fingerprints = [domain.source.fingerprint for domain in self.domains]
        return "/".join(fingerprints)

    def draw(self, position: int) -> tuple[int, int]:
        """(number of the domain, which of its draws this is) for the draw at `position`."""
        if len(self.domains) == 1:
            return 0, position
        block, place = divmod(position, BLOCK)
        numbers, ranks = self._block(block)
        number = int(numbers[place])
        before = block * self._counts[number]
        return number, before + int(ranks[place])

    def draws_before(self, position: int) -> list[int]:
        """Draws of each domain before `position`."""
        if len(self.domains) == 1:
            return [position]
        block, place = divmod(position, BLOCK)
        numbers, _ = self._block(block)
        in_block = np.bincount(numbers[:place], minlength=len(self.domains))
        draws = block * np.array(self._counts) + in_block
        return [int(num) for num in draws]

    def question(self, index: int) -> Question:
        """Question `index`: that of its domain."""
        number, rank = self.draw(index)
        domain = self.domains[number]
        return domain.source.question(rank)

    def _make_block(self, block: int) -> tuple[Int64, Int64]:
        """([BLOCK] domain of each draw, [BLOCK] how many draws of that domain lie before it in the block)."""
        order: list[int] = []
        for number, count in enumerate(self._counts):
            order += [number] * count
        random = Random(hash_of(f"{self.seed}/{block}"))
        random.shuffle(order)
        numbers = np.array(order, np.int64)
        ranks = np.zeros(BLOCK, np.int64)
        for number, count in enumerate(self._counts):
            ranks[numbers == number] = np.arange(count)
        return numbers, ranks


def _counts(domains: Sequence[Domain]) -> list[int]:
    """Draws of each domain in a block: its share of BLOCK, rounded so that they sum to BLOCK (largest remainders)."""
    weights = np.array([domain.weight for domain in domains])
    total = sum(weights)
    if total <= 0:
        names = ", ".join(domain.name for domain in domains) or "no domains"
        raise DataError(f"the weights of {names} sum to {total}; give one above 0")
    exact = weights / total * BLOCK
    counts = exact.astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    num_left = BLOCK - counts.sum()
    rounded_up = by_remainder[:num_left]
    counts[rounded_up] += 1
    for domain, count in zip(domains, counts, strict=True):
        if domain.weight <= 0 or count > 0:
            continue
        share = domain.weight / total
        raise DataError(f"domain {domain.name} has {share:.2g} of all weight, less than the smallest share, 1/{BLOCK}")
    return [int(count) for count in counts]
