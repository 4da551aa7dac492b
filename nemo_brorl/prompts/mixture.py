"""Several sources in fixed shares: which one a position draws from is a function of seed and position alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import Question, Source, hash_of
from nemo_brorl.types import Int64

BLOCK = 4096  # draws among which every source has its share exactly, to the nearest whole number


@dataclass(frozen=True)
class Domain:
    """A source, how its prompts are made, and how many there are of it."""

    name: str  # "" where it is the only one
    source: Source
    weight: float
    system_prompt: str | None
    max_prompt_tokens: int


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
        # A seed for each block: any position is reached without those before it.
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
