"""Beliefs of a run about how often its prompts are answered correctly: a Beta belief per prompt, a prior per task.

The prior of a task is fitted by moments to the groups seen of it. A group's first n rollouts with k correct give k / n
and k (k − 1) / (n (n − 1)), whose expectations are E[p] and E[p²] whatever n is, so sums of two numbers per task say it
all. Only first waves count there: how large a group grew afterwards depended on its rewards, which biases k / n but not
the Beta update of the prompt's own belief. A task with few groups leans on all tasks together, and these on Beta(½, ½).

The policy changes, so what was seen is forgotten by a constant factor per update (`rollouts.posterior.memory`). A
prompt is known by its tokens, not its uid: the same question drawn again has another uid.

Decisions read the belief while groups close in an order that nobody controls. So a step only reads, and `learn` puts in
what it has seen when it is over, in the order of the prompts' uids: the same rollouts lead to the same beliefs.

Metrics of what rollouts were spent on stand here, too: by them `rollouts.allocation` fixed and waves compare at equal
compute.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nemo_brorl.algorithm.rollout_size import SuccessPrior
from nemo_brorl.config.rollouts import PosteriorConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.types import SUCCESS_REWARD, Float32, Prompt, ScoredGroup

PERCENTILES = (10, 50, 90)


@dataclass(frozen=True)
class Spent:
    """Totals of a run up to now; part of its state."""

    generated_tokens: int = 0  # response tokens, of groups that were not used too
    informative_groups: int = 0
    rollouts: int = 0  # of groups that have closed

    def plus(self, other: Spent) -> Spent:
        """After another step."""
        return Spent(
            generated_tokens=self.generated_tokens + other.generated_tokens,
            informative_groups=self.informative_groups + other.informative_groups,
            rollouts=self.rollouts + other.rollouts,
        )

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole run so far."""
        per_million = 0.0
        if self.generated_tokens:
            per_million = self.informative_groups / (self.generated_tokens / 1e6)
        return {
            "rollouts/generated_tokens": float(self.generated_tokens),
            "rollouts/informative_per_million_tokens": per_million,
        }

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    @staticmethod
    def from_state(state: Mapping[str, int]) -> Spent:
        """What `state_dict` gave."""
        return Spent(**state)


def allocation_metrics(groups: Sequence[ScoredGroup], num_per_prompt: int) -> dict[str, float]:
    """Metrics of all groups sampled in a step.

    group_size         rollouts per group: mean and percentiles
    extended           share of groups that got more than their first wave
    full               share of groups that got all N
    first_wave_reward  mean raw reward of first waves, every group alike: what `reward/mean` is under fixed
    wave_weight        weight of a wave's mean in its group's estimate, times the group's size over the wave's: 1 counts
                       as in a plain mean
    """
    sizes: list[int] = []
    weights: list[float] = []
    first_rewards: list[float] = []
    num_extended = 0
    num_full = 0
    for group in groups:
        size = len(group.rewards)
        sizes.append(size)
        weights.extend(relative_weights(group))
        first_rewards.append(float(first_wave(group).mean()))
        num_extended += len(group.waves) > 1
        num_full += size >= num_per_prompt
    metrics = {
        "rollouts/group_size": float(np.mean(sizes)),
        "rollouts/extended": num_extended / len(groups),
        "rollouts/full": num_full / len(groups),
        "rollouts/first_wave_reward": float(np.mean(first_rewards)),
        "rollouts/wave_weight_mean": float(np.mean(weights)),
        "rollouts/wave_weight_variance": float(np.var(weights)),
        "rollouts/wave_weight_max": float(np.max(np.abs(weights))),
    }
    for share in PERCENTILES:
        metrics[f"rollouts/group_size_p{share}"] = float(np.percentile(sizes, share))
    return metrics


def relative_weights(group: ScoredGroup) -> list[float]:
    """One number per wave; 1 where a rollout counts as in a plain mean over the group."""
    if not group.waves:
        return [1.0]
    size = sum(wave.num_rollouts for wave in group.waves)
    return [wave.weight * size / wave.num_rollouts for wave in group.waves]


def outcomes(groups: Sequence[ScoredGroup]) -> list[tuple[Prompt, float]]:
    """Prompts, by their uids, each with the share of correct rollouts in its first wave."""
    found = []
    for group in sorted(groups, key=lambda group: group.prompt.uid):
        rewards = first_wave(group)
        is_correct = rewards >= SUCCESS_REWARD
        rate = float(is_correct.mean())
        found.append((group.prompt, rate))
    return found


def first_wave(group: ScoredGroup) -> Float32:
    """Raw rewards of the rollouts whose number did not depend on any reward."""
    if not group.waves:
        return group.rewards
    is_first = group.indices < group.waves[0].num_rollouts
    return group.rewards[is_first]


_MEAN = 0.5  # E[p] of Beta(½, ½)
_SECOND_MOMENT = 0.375  # E[p²] of Beta(½, ½)
_MIN_MEAN = 1e-3  # a task that was never answered correctly is not believed to be impossible
# share of the largest possible variance, m (1 − m), that a belief may have: a + b from 0.01 to 199
_MIN_SHARE = 0.005
_MAX_SHARE = 0.99


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
        return Seen(
            groups=self.groups + factor * other.groups,
            rate=self.rate + factor * other.rate,
            pairs=self.pairs + factor * other.pairs,
            prompt_tokens=self.prompt_tokens + factor * other.prompt_tokens,
            response_tokens=self.response_tokens + factor * other.response_tokens,
        )

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
        prior = self.prior(prompt.task)
        successes, failures = self.remembered(prompt)
        return prior.after(successes, failures)

    def remembered(self, prompt: Prompt) -> tuple[float, float]:
        """Successes and failures of one prompt's own rollouts, older ones discounted."""
        counts = self._prompts.get(prompt_key(prompt))
        if counts is None:
            return 0.0, 0.0
        memory = self._memory(counts)
        successes = memory * counts.successes
        failures = memory * counts.failures
        return successes, failures

    def prior(self, task: str) -> SuccessPrior:
        """The belief about a prompt of a task that was not seen yet."""
        mean, second_moment = self._moments(self.seen())
        all_tasks = Seen(1.0, mean, second_moment)
        sums = self.seen(task).plus(all_tasks, self.config.prior_groups)
        mean = sums.rate / sums.groups
        second_moment = sums.pairs / sums.groups
        return beta_of(mean, second_moment)

    def mixture_variance(self) -> float:
        """E[p (1 − p)] of the next prompt, over all tasks in their shares."""
        mean, second_moment = self._moments(self.seen())
        return max(mean - second_moment, _MIN_MEAN**2)

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
            prompt = scored.prompt
            is_correct = scored.rewards >= SUCCESS_REWARD
            successes = int(is_correct.sum())
            self.observe(prompt, successes, len(is_correct))
            is_correct = first_wave(scored) >= SUCCESS_REWARD
            successes = int(is_correct.sum())
            response_tokens = float(scored.group.lengths.mean())
            self.observe_first(prompt, successes, len(is_correct), response_tokens)

    def forget(self) -> None:
        """Discount what was seen, as the policy was updated."""
        self.num_updates += 1
        for task, sums in self._tasks.items():
            self._tasks[task] = sums.times(self.config.memory)

    def observe(self, prompt: Prompt, successes: int, rollouts: int) -> None:
        """Take in rollouts of one prompt; the least recently seen prompt is dropped when there are too many."""
        key = prompt_key(prompt)
        nothing = _Counts(0.0, 0.0, self.num_updates)
        old = self._prompts.pop(key, nothing)
        memory = self._memory(old)
        failures = rollouts - successes
        self._prompts[key] = _Counts(
            successes=memory * old.successes + successes,
            failures=memory * old.failures + failures,
            update=self.num_updates,
        )
        while len(self._prompts) > self.config.max_prompts:
            self._prompts.popitem(last=False)

    def observe_first(
        self,
        prompt: Prompt,
        successes: int,
        rollouts: int,
        response_tokens: float,
    ) -> None:
        """Take in a group's first wave, whose size did not depend on any reward, for the prior of its task. A single
        rollout has no pair and says nothing of the second moment."""
        if rollouts < 2:
            return
        num_pairs = rollouts * (rollouts - 1)
        num_correct_pairs = successes * (successes - 1)
        group = Seen(
            groups=1.0,
            rate=successes / rollouts,
            pairs=num_correct_pairs / num_pairs,
            prompt_tokens=float(len(prompt.token_ids)),
            response_tokens=response_tokens,
        )
        seen = self.seen(prompt.task)
        self._tasks[prompt.task] = seen.plus(group, prompt.weight)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; at most `rollouts.posterior.max_prompts` prompts."""
        prompts: dict[str, list[float]] = {}
        for key, counts in self._prompts.items():
            prompts[key] = [counts.successes, counts.failures, counts.update]
        tasks: dict[str, dict[str, float]] = {}
        for task, sums in self._tasks.items():
            tasks[task] = asdict(sums)
        return {
            "num_updates": self.num_updates,
            "prompts": prompts,
            "tasks": tasks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is not one of this program's."""
        if set(state) != set(self.state_dict()):
            raise CheckpointError(
                f"success beliefs have the keys {sorted(self.state_dict())}, the checkpoint has {sorted(state)}"
            )
        self.num_updates = int(state["num_updates"])
        self._prompts.clear()
        for key, counts in state["prompts"].items():
            self._prompts[key] = _Counts(*counts)
        self._tasks.clear()
        for task, sums in state["tasks"].items():
            self._tasks[task] = Seen(**sums)

    def _moments(self, sums: Seen) -> tuple[float, float]:
        """E[p], E[p²] of the groups in `sums`, leaning on Beta(½, ½)."""
        weight = self.config.prior_groups
        total = sums.groups + weight
        mean = (sums.rate + weight * _MEAN) / total
        second_moment = (sums.pairs + weight * _SECOND_MOMENT) / total
        return mean, second_moment

    def _memory(self, counts: _Counts) -> float:
        """Factor by which counts are discounted by now."""
        age = self.num_updates - counts.update
        return self.config.memory**age


def prompt_key(prompt: Prompt) -> str:
    """The same for the same task and tokens, whenever they are drawn."""
    tokens = np.asarray(prompt.token_ids, np.int32).tobytes()
    content = prompt.task.encode() + b"/" + tokens
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def beta_of(mean: float, second_moment: float) -> SuccessPrior:
    """The Beta distribution with these moments, or the nearest one with a + b from 0.01 to 199."""
    mean = min(max(mean, _MIN_MEAN), 1 - _MIN_MEAN)
    variance = second_moment - mean**2
    largest = mean * (1 - mean)  # variance of a prompt that is always or never answered
    share = min(max(variance / largest, _MIN_SHARE), _MAX_SHARE)
    total = 1 / share - 1
    return SuccessPrior(mean * total, (1 - mean) * total)
