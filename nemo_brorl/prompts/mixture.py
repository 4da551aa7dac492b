"""Mix several sources in fixed shares; seed and position alone determine which source a question comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import Question, Source, hash_of
from nemo_brorl.types import Int64

BLOCK = 4096  # draws in which every source has exactly its share, rounded to whole draws


@dataclass(frozen=True)
class Domain:
    """One source of questions in a mixture, with its weight and the settings of its prompts."""

    name: str  # "" for a source without a mixture
    source: Source
    weight: float
    system_prompt: str | None
    max_prompt_tokens: int
    success_reward: float | None = None  # full mark of the rewards; None: 1


class Mixture:
    """Sources of questions mixed in fixed shares, each with its own epochs.

    Block b of draws is shuffled by the seed and b.
    """

    size = None

    def __init__(self, domains: Sequence[Domain], seed: str) -> None:
        """Compute how many of every `BLOCK` consecutive questions each domain of a data mixture provides.

        Raises DataError if all weights are 0 or a domain with a weight provides no question.
        """
        self.domains = tuple(domains)
        self.seed = seed
        self._counts = _counts(self.domains)
        self._block = lru_cache(maxsize=2)(self._make_block)

    def draw(self, position: int) -> tuple[int, int]:
        """Return the domain that question `position` of a data mixture comes from, and its index in the domain."""
        if len(self.domains) == 1:
            return 0, position
        block, place = divmod(position, BLOCK)
        numbers, ranks = self._block(block)
        number = int(numbers[place])
        before = block * self._counts[number]
        return number, before + int(ranks[place])

    def draws_before(self, position: int) -> list[int]:
        """Return how many of the first `position` questions of a data mixture come from each domain."""
        if len(self.domains) == 1:
            return [position]
        block, place = divmod(position, BLOCK)
        numbers, _ = self._block(block)
        in_block = np.bincount(numbers[:place], minlength=len(self.domains))
        draws = block * np.array(self._counts) + in_block
        return [int(num) for num in draws]

    def question(self, index: int) -> Question:
        """Return question `index` of a data mixture, which comes from one of the mixture's domains."""
        number, rank = self.draw(index)
        domain = self.domains[number]
        return domain.source.question(rank)

    def _make_block(self, block: int) -> tuple[Int64, Int64]:
        """Return the domain of each question in a block of a data mixture, and its rank in that domain, both [BLOCK].

        The rank of a question is the number of questions of the same domain that precede it in the block.
        """
        order: list[int] = []
        for number, count in enumerate(self._counts):
            order += [number] * count
        # Each block has its own seed, so that any position is reached without computing earlier blocks.
        random = Random(hash_of(f"{self.seed}/{block}"))
        random.shuffle(order)
        numbers = np.array(order, np.int64)
        ranks = np.zeros(BLOCK, np.int64)
        for number, count in enumerate(self._counts):
            ranks[numbers == number] = np.arange(count)
        return numbers, ranks


def _counts(domains: Sequence[Domain]) -> list[int]:
    """Return how many of `BLOCK` consecutive questions each domain of a data mixture provides.

    The count is the domain's share of the sum of all weights, rounded by largest remainders so that the counts sum to
    BLOCK.
    """
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
