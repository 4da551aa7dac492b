"""Provide a prompt pool that retires solved prompts: it skips them without sampling.

    brorl train … rollouts.prompt_pool.name=brorl_lab.prompt_pool:retiring_pool \
        'rollouts.prompt_pool.params={retire_from: 0.9}'

A prompt is retired once its own rollouts were right in the share `retire_from` of all that are remembered. Near 1 this
retires what is solved (ScaleRL's "no positive resampling", arXiv 2510.13786). Near 0 it leaves only the boundary of
what the policy can do (arXiv 2606.15455). The objective changes, because no weight makes up for what is left out. The
share `recheck` of the prompts asked in a run are retired ones that are sampled again, however many are retired and
however few a step asks, so forgetting is noticed at a known price. Old rollouts count less than new ones, and a prompt
comes back when its newest rollouts were wrong too often.

Only prompts that come again profit. A retired prompt is sampled again when fewer were than the share asks for. That
debt is part of a run's state, and counts change only between steps, so a restart samples the same prompts.
`docs/explanation/when_n_pays.md` says what this is worth.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nemo_brorl.core.errors import StarvationError
from nemo_brorl.ports import PromptSource
from nemo_brorl.types import Prompt, ScoredGroup, is_right

MOST_OWED = 10.0  # retired prompts at most that are asked in a row because none came up before
MAX_RETIRED = 10_000  # retired prompts in a row after which all count as solved


@dataclass(frozen=True)
class RetiringParams:
    """The parameters of the retiring prompt pool."""

    retire_from: float = 0.9  # share of right rollouts that retires a prompt, above 0 and at most 1
    recheck: float = 0.25  # share of the prompts asked that are retired ones; 0: never sampled again
    memory: float = 0.95  # share of older counts kept at each update; 1: all
    max_prompts: int = 50_000  # prompts with counts; the least recently seen ones are dropped

    def __post_init__(self) -> None:
        if not 0 < self.retire_from <= 1:
            raise ValueError(f"retire_from={self.retire_from:g} must be above 0 and at most 1")
        if not 0 <= self.recheck <= 0.9:
            raise ValueError(f"recheck={self.recheck:g} must be from 0 to 0.9")
        if not 0 < self.memory <= 1:
            raise ValueError(f"memory={self.memory:g} must be above 0 and at most 1")
        if self.max_prompts < 1:
            raise ValueError(f"max_prompts={self.max_prompts} must be 1 or more")


class Counts(NamedTuple):
    """Successes and failures of one prompt's rollouts, discounted up to `update`."""

    successes: float
    failures: float
    update: int


class PromptCounts:
    """Successes and failures of the rollouts of each prompt, with older ones discounted.

    A prompt is identified by its tokens, not its uid, because a question that is drawn again has another uid.
    """

    def __init__(self, memory: float, max_prompts: int) -> None:
        self.memory = memory
        self.max_prompts = max_prompts
        self.num_updates = 0
        self._counts: OrderedDict[str, Counts] = OrderedDict()  # counts by prompt key, least recent first

    def counts_of(self, prompt: Prompt) -> tuple[float, float]:
        """Return the discounted numbers of right and wrong rollouts of a prompt."""
        counts = self._counts.get(prompt_key(prompt))
        if counts is None:
            return 0.0, 0.0
        kept = self._kept(counts)
        return kept * counts.successes, kept * counts.failures

    def discount(self) -> None:
        """Discount the counts of right and wrong rollouts of all prompts by one policy update."""
        self.num_updates += 1

    def observe(self, prompt: Prompt, successes: int, num_rollouts: int) -> None:
        """Add a prompt's right and wrong rollouts to its counts.

        When more than `max_prompts` prompts have counts, the least recently seen prompt is dropped.
        """
        old_successes, old_failures = self.counts_of(prompt)
        key = prompt_key(prompt)
        self._counts.pop(key, None)
        failures = num_rollouts - successes
        self._counts[key] = Counts(old_successes + successes, old_failures + failures, self.num_updates)
        while len(self._counts) > self.max_prompts:
            self._counts.popitem(last=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the prompts' counts of right and wrong rollouts, in a form that JSON can hold."""
        prompts = {key: list(counts) for key, counts in self._counts.items()}
        return {"num_updates": self.num_updates, "prompts": prompts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the prompts' counts of right and wrong rollouts from `state_dict`."""
        self.num_updates = int(state["num_updates"])
        self._counts = OrderedDict((key, Counts(*counts)) for key, counts in state["prompts"].items())

    def _kept(self, counts: Counts) -> float:
        """Return the factor that discounts a prompt's success counts for the policy updates since they last changed."""
        return float(self.memory ** (self.num_updates - counts.update))


class RetiringPool:
    """The prompts of a stream without the retired ones. It implements `ports.PromptPool`."""

    def __init__(self, prompts: PromptSource, params: RetiringParams) -> None:
        self.prompts = prompts
        self.params = params
        self.counts = PromptCounts(params.memory, params.max_prompts)
        self.debt = 0.0  # retired prompts asked so far, minus `recheck` of all that were asked
        self.begin_step()

    def begin_step(self) -> None:
        """Reset this step's counts of prompts that were skipped as solved or sampled again."""
        self.num_retired = 0  # prompts that came up and were skipped
        self.num_rechecked = 0

    def take_prompts(self, num: int) -> list[Prompt]:
        """Return the next `num` prompts to sample, without most of the retired (solved) ones.

        Raises StarvationError when all prompts are retired.
        """
        taken: list[Prompt] = []
        while len(taken) < num:
            taken += self._unretired(num - len(taken))
        return taken

    def record_groups(self, sampled: Sequence[ScoredGroup]) -> None:
        """Update the prompts' success counts with the groups of a finished step."""
        self.counts.discount()
        # Sorted by uid, not by the engines' order, so that equal rollouts give equal counts.
        for scored in sorted(sampled, key=lambda group: group.prompt.uid):
            self.counts.observe(scored.prompt, int(is_right(scored).sum()), len(scored.rewards))

    def metrics(self) -> dict[str, float]:
        """Return metrics of a step: how many retired (solved) prompts were skipped and how many were sampled again."""
        return {
            "rollouts/prompts_retired": float(self.num_retired),
            "rollouts/prompts_rechecked": float(self.num_rechecked),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the prompt pool's success counts and debt for a checkpoint, in a form that JSON can hold."""
        return {**self.counts.state_dict(), "debt": self.debt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the prompt pool's success counts and debt from a checkpoint; older ones have no debt."""
        self.counts.load_state_dict(state)
        self.debt = float(state.get("debt", 0.0))

    def is_retired(self, prompt: Prompt) -> bool:
        """Return whether a prompt is retired: so many of its rollouts were right that it has little left to teach."""
        successes, failures = self.counts.counts_of(prompt)
        num = successes + failures
        return num > 0 and successes >= self.params.retire_from * num

    def _unretired(self, num: int) -> list[Prompt]:
        """Return those of the prompt stream's next prompts that are not skipped as solved, at least one.

        Prompts are read `num` at a time. Raises StarvationError when MAX_RETIRED prompts in a row are skipped.
        """
        num_seen = 0
        while num_seen < MAX_RETIRED:
            left = [prompt for prompt in self.prompts.take_prompts(num) if not self._leave_out(prompt)]
            num_seen += num
            if left:
                return left
        raise StarvationError(
            f"{num_seen} prompts in a row were right in rollouts.prompt_pool.params.retire_from="
            f"{self.params.retire_from:g} of their rollouts or more: set a higher one, or give harder questions"
        )

    def _leave_out(self, prompt: Prompt) -> bool:
        """Return whether to skip the prompt stream's next prompt, and count the prompt.

        Only retired (solved) prompts are skipped, unless fewer were sampled again than `recheck` asks for.
        """
        if not self.is_retired(prompt):
            self.debt = max(self.debt - self.params.recheck, -MOST_OWED)
            return False
        # Sums of a share such as 0.1 are not exact.
        if self.debt < -1e-9:
            self.debt += 1 - self.params.recheck
            self.num_rechecked += 1
            return False
        self.num_retired += 1
        return True


def retiring_pool(prompts: PromptSource, seed: int, params: RetiringParams) -> RetiringPool:
    """Make a prompt pool that retires solved prompts, for the setting `rollouts.prompt_pool.name`."""
    return RetiringPool(prompts, params)


def prompt_key(prompt: Prompt) -> str:
    """Return a key that is equal for prompts of the same task and tokens, whenever they are drawn."""
    tokens = np.asarray(prompt.token_ids, np.int32).tobytes()
    content = prompt.task.encode() + b"/" + tokens
    return hashlib.blake2b(content, digest_size=8).hexdigest()
