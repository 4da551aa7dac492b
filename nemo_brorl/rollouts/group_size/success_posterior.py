"""What a run knows about how often its prompts are answered correctly: a Beta belief per prompt under a prior per task.

The prior of a task is fitted by moments to the groups seen of it. A group's first n rollouts with k correct give k / n
and k (k − 1) / (n (n − 1)), whose expectations are E[p] and E[p²] whatever n is, so sums of two numbers per task say it
all. Only first waves count there: how large a group grew afterwards depended on its rewards, which biases k / n but not
the Beta update of the prompt's own belief. A task with few groups leans on all tasks together, and these on Beta(½, ½).

The policy changes, so what was seen is forgotten by a constant factor per update (`rollouts.posterior.memory`). A
prompt is known by its tokens, not its uid: the same question drawn again has another uid.

Decisions read the belief while groups close in an order that nobody controls. So a step only reads, and `learn` puts in
what it has seen when it is over, in the order of the prompts' uids: the same rollouts lead to the same beliefs.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nemo_brorl.algorithm.theory.rollout_size import SuccessPrior
from nemo_brorl.config.schema import PosteriorConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.types import SUCCESS_REWARD, Prompt, ScoredGroup

_MEAN, _SECOND_MOMENT = 0.5, 0.375  # E[p] and E[p²] of Beta(½, ½)
_MIN_MEAN = 1e-3  # a task that was never answered correctly is not believed to be impossible
_MIN_SHARE, _MAX_SHARE = 0.005, 0.99  # of the largest possible variance, m (1 − m): a + b from 0.01 to 199


@dataclass(frozen=True)
class Seen:
    """Sums over groups of a task, older ones discounted."""

    groups: float = 0.0
    rate: float = 0.0  # k / n
    pairs: float = 0.0  # k (k − 1) / (n (n − 1))
    prompt_tokens: float = 0.0
    response_tokens: float = 0.0  # mean length of a group's responses

    def plus(self, other: Seen, factor: float = 1.0) -> Seen:
        """Sum with `factor` times another."""
        mine, theirs = asdict(self), asdict(other)
        return Seen(**{name: mine[name] + factor * theirs[name] for name in mine})

    def times(self, factor: float) -> Seen:
        return Seen().plus(self, factor)


@dataclass(frozen=True)
class _Counts:
    """Rollouts of one prompt, discounted up to `update`."""

    successes: float
    failures: float
    update: int


class SuccessPosterior:
    """Beliefs of a run; part of its state. Raises nothing but CheckpointError on loading another program's state."""

    def __init__(self, config: PosteriorConfig) -> None:
        self.config = config
        self.num_updates = 0
        self._prompts: OrderedDict[str, _Counts] = OrderedDict()  # by key, least recent first
        self._tasks: dict[str, Seen] = {}

    def posterior(self, prompt: Prompt) -> SuccessPrior:
        """The belief about one prompt: its task's prior, and what it was seen to do."""
        prior, counts = self.prior(prompt.task), self._prompts.get(prompt_key(prompt))
        if counts is None:
            return prior
        memory = self._memory(counts)
        return prior.after(memory * counts.successes, memory * counts.failures)

    def prior(self, task: str) -> SuccessPrior:
        """The belief about a prompt of a task that was not seen yet."""
        weight = self.config.prior_groups
        mean, second = self._moments(self.seen())
        task_sums = self._tasks.get(task, Seen()).plus(Seen(1.0, mean, second), weight)
        return beta_of(task_sums.rate / task_sums.groups, task_sums.pairs / task_sums.groups)

    def mixture_variance(self) -> float:
        """E[p (1 − p)] of the next prompt, over all tasks in their shares."""
        mean, second = self._moments(self.seen())
        return max(mean - second, _MIN_MEAN**2)

    def seen(self, task: str | None = None) -> Seen:
        """Sums over the groups of one task, or of all."""
        if task is not None:
            return self._tasks.get(task, Seen())
        total = Seen()
        for sums in self._tasks.values():
            total = total.plus(sums)
        return total

    def learn(self, groups: Sequence[ScoredGroup]) -> None:
        """After an update: forget a little, then take in all groups that the step sampled, informative or not."""
        self.forget()
        for scored in sorted(groups, key=lambda group: group.prompt.uid):
            is_correct = scored.rewards >= SUCCESS_REWARD
            self.observe(scored.prompt, int(is_correct.sum()), len(is_correct))
            first = is_correct[scored.indices < scored.waves[0].num_rollouts] if scored.waves else is_correct
            self.observe_first(scored.prompt, int(first.sum()), len(first), float(scored.group.lengths.mean()))

    def forget(self) -> None:
        """The policy was updated."""
        self.num_updates += 1
        self._tasks = {task: sums.times(self.config.memory) for task, sums in self._tasks.items()}

    def observe(self, prompt: Prompt, successes: int, rollouts: int) -> None:
        """Take in rollouts of one prompt; the least recently seen prompt is dropped when there are too many."""
        key = prompt_key(prompt)
        old = self._prompts.pop(key, _Counts(0.0, 0.0, self.num_updates))
        memory = self._memory(old)
        self._prompts[key] = _Counts(
            memory * old.successes + successes, memory * old.failures + rollouts - successes, self.num_updates
        )
        while len(self._prompts) > self.config.max_prompts:
            self._prompts.popitem(last=False)

    def observe_first(self, prompt: Prompt, successes: int, rollouts: int, response_tokens: float) -> None:
        """Take in a group's first wave, whose size did not depend on any reward, for the prior of its task. A single
        rollout has no pair and says nothing of the second moment."""
        if rollouts < 2:
            return
        pairs = successes * (successes - 1) / (rollouts * (rollouts - 1))
        group = Seen(1.0, successes / rollouts, pairs, float(len(prompt.token_ids)), response_tokens)
        self._tasks[prompt.task] = self.seen(prompt.task).plus(group)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; at most `rollouts.posterior.max_prompts` prompts."""
        prompts = {key: [counts.successes, counts.failures, counts.update] for key, counts in self._prompts.items()}
        return {
            "num_updates": self.num_updates,
            "prompts": prompts,
            "tasks": {task: asdict(sums) for task, sums in self._tasks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is not one of this program's."""
        if set(state) != set(self.state_dict()):
            raise CheckpointError(
                f"success beliefs have the keys {sorted(self.state_dict())}, the checkpoint has {sorted(state)}"
            )
        self.num_updates = int(state["num_updates"])
        self._prompts = OrderedDict((key, _Counts(*counts)) for key, counts in state["prompts"].items())
        self._tasks = {task: Seen(**sums) for task, sums in state["tasks"].items()}

    def _moments(self, sums: Seen) -> tuple[float, float]:
        """E[p], E[p²] of the groups in `sums`, leaning on Beta(½, ½)."""
        weight = self.config.prior_groups
        total = sums.groups + weight
        return (sums.rate + weight * _MEAN) / total, (sums.pairs + weight * _SECOND_MOMENT) / total

    def _memory(self, counts: _Counts) -> float:
        return self.config.memory ** (self.num_updates - counts.update)


def prompt_key(prompt: Prompt) -> str:
    """The same for the same task and tokens, whenever they are drawn."""
    tokens = np.asarray(prompt.token_ids, np.int32).tobytes()
    return hashlib.blake2b(prompt.task.encode() + b"/" + tokens, digest_size=8).hexdigest()


def beta_of(mean: float, second_moment: float) -> SuccessPrior:
    """The Beta distribution with these moments, or the nearest one with a + b from 0.01 to 199."""
    mean = min(max(mean, _MIN_MEAN), 1 - _MIN_MEAN)
    largest = mean * (1 - mean)  # variance of a prompt that is always or never answered
    share = min(max((second_moment - mean**2) / largest, _MIN_SHARE), _MAX_SHARE)
    total = 1 / share - 1
    return SuccessPrior(mean * total, (1 - mean) * total)
