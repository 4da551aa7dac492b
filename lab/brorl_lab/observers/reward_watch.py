"""Watch a run for reward hacking: signs that a policy earns rewards without solving its prompts.

brorl train … 'trainer.observers=[{name: "brorl_lab.observers.reward_watch:reward_watch", params: {rise: 6.0}}]'

Workers leave evidence with each chunk (`scoring/evidence.py`), which is added up over a step's groups. Four alarms:

    no_answer    a response earned a reward although its verifier reads no answer in it
    same_answer  one answer earned on several prompts of a task that have another right answer. Where it is the right
                 answer, as in a task of yes and no, its frequency explains the reward
    rise         the mean reward of a verifier's responses is far above its recent steps, by a robust z-score: the
                 distance from their median over 1.4826 times their median absolute deviation
    failures     verifiers failed on several prompts: they raised, or were ended at their deadline

An alarm changes only its metric. Its first examples are kept in `reward_watch.jsonl` of the run folder, and each kind
is logged as a warning once.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.core.console import get_logger
from nemo_brorl.core.files import append_line
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.training.observers import Observer, StepMade
from nemo_brorl.training.records import drop_after
from nemo_brorl.types import ScoredGroup

KINDS = ("no_answer", "same_answer", "rise", "failures")
HISTORY = 32  # steps remembered
MIN_HISTORY = 8
NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
MIN_SPREAD = 0.03  # smallest spread of a mean reward that is assumed
MIN_FAILING = 3  # prompts with failures from which on it is an alarm
log = get_logger(__name__)

FILE = "reward_watch.jsonl"  # file in the run folder


@dataclass(frozen=True)
class RewardWatchParams:
    """The parameters of the reward watch."""

    same_answer_prompts: int = (
        3  # prompts of a step with another right answer on which one answer must earn for an alarm
    )
    rise: float = 6.0  # robust z-score of a verifier's mean reward that is an alarm
    max_examples: int = 50  # examples kept of each kind of alarm

    def __post_init__(self) -> None:
        if self.same_answer_prompts < 2:
            raise ValueError(f"same_answer_prompts={self.same_answer_prompts} must be 2 or more")
        if self.rise <= 0:
            raise ValueError(f"rise={self.rise} must be above 0")


@dataclass(frozen=True)
class Alarm:
    """One sign of reward hacking, with an example."""

    kind: str  # one of KINDS
    where: str  # task or verifier
    text: str  # message for the log
    prompt: str = ""  # uid of a prompt with this sign
    example: str = ""  # part of a response


class RewardWatch(Observer):
    """An observer that looks for reward hacking in the groups of each step, and writes the file of examples."""

    def __init__(self, run_folder: Path, params: RewardWatchParams) -> None:
        self.path = run_folder / FILE
        self.params = params
        self.warned: set[str] = set()  # kinds that this process has warned of
        self.history: dict[str, list[float]] = {}  # mean reward of each step by verifier
        self.num_kept: Counter[str] = Counter()  # number of written examples by kind

    def step_ended(self, made: StepMade) -> Mapping[str, float]:
        """Return a step's metrics of reward hacking, write examples of suspicious responses, and log warnings."""
        return self.record_step(made.step, made.filled.sampled)

    def record_step(self, step: int, groups: Sequence[ScoredGroup]) -> dict[str, float]:
        """Return metrics of reward hacking in groups of rollouts, write examples of suspicious responses, and warn."""
        metrics, found = self.find_alarms(groups)
        for alarm in self.select_kept(found):
            append_line(self.path, json.dumps({"step": step, **asdict(alarm)}))
        for alarm in found:
            if alarm.kind not in self.warned:
                self.warned.add(alarm.kind)
                log.warning("rewards of %s: %s (%s)", alarm.where, alarm.text, self.path)
        return metrics

    def find_alarms(self, groups: Sequence[ScoredGroup]) -> tuple[dict[str, float], list[Alarm]]:
        """Return metrics of reward hacking over a step's groups, and the alarms that they raise."""
        if not groups:
            return {}, []
        without_answer = self._without_answer(groups)
        same_answer, num_same = self._same_answer(groups)
        rises, highest = self._rises(groups)
        failures, num_failing, num_late = self._failures(groups)
        found = [*without_answer, *same_answer, *rises, *failures]
        num_without = 0
        for group in groups:
            num_without += sum(item.num_without_answer for item in group.evidence)
        metrics = {
            "reward_watch/alarms": float(len(found)),
            "reward_watch/without_answer": float(num_without),
            "reward_watch/same_answer_prompts": float(num_same),
            "reward_watch/highest_rise": highest,
            "reward_watch/failing_prompts": float(num_failing),
            "reward_watch/late": float(num_late),
        }
        return metrics, found

    def select_kept(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        """Return the alarms of reward hacking whose example responses are to be written to a file.

        They are the first `max_examples` of each kind in a run.
        """
        kept = []
        for alarm in alarms:
            if self.num_kept[alarm.kind] < self.params.max_examples:
                self.num_kept[alarm.kind] += 1
                kept.append(alarm)
        return kept

    def state_dict(self) -> dict[str, Any]:
        """Return the verifiers' past mean rewards and the counts of written examples, in a form that JSON can hold."""
        return {"history": self.history, "num_kept": dict(self.num_kept)}

    def resume(self, step: int | None, state: Mapping[str, Any] | None) -> None:
        """Restore the verifiers' past mean rewards at the checkpoint of `step`, and remove examples of later steps.

        A `step` of None means that a new run starts.
        """
        drop_after(self.path, step)
        if state is None:
            return
        self.history = {verifier: list(means) for verifier, means in state["history"].items()}
        self.num_kept = Counter(state["num_kept"])

    def _without_answer(self, groups: Sequence[ScoredGroup]) -> list[Alarm]:
        found = []
        for group in groups:
            num = 0
            example = ""
            for item in group.evidence:
                num += item.num_without_answer
                if item.num_without_answer:
                    example = item.example
            if num:
                text = f"{num} responses earned without an answer"
                found.append(Alarm("no_answer", group.prompt.task, text, group.prompt.uid, example))
        return found

    def _same_answer(self, groups: Sequence[ScoredGroup]) -> tuple[list[Alarm], int]:
        """Return alarms for an answer that earned rewards on several prompts whose reference answer it is not.

        Also returns the number of prompts of the most frequent such answer.
        """
        prompts: dict[tuple[str, str], set[str]] = {}
        for group in groups:
            for answer in _answers_beside_the_reference(group):
                key = (group.prompt.task, answer)
                prompts.setdefault(key, set()).add(group.prompt.uid)
        found = []
        most = 0
        for (task, answer), uids in prompts.items():
            most = max(most, len(uids))
            if len(uids) >= self.params.same_answer_prompts:
                text = f"the answer {answer!r} earned on {len(uids)} prompts whose answer it is not"
                found.append(Alarm("same_answer", task, text, min(uids), answer))
        return found, most

    def _rises(self, groups: Sequence[ScoredGroup]) -> tuple[list[Alarm], float]:
        """Return alarms for verifiers whose mean reward rose suddenly, and the highest z-score of such a rise.

        The z-score is 0 while too few earlier steps are known.
        """
        rewards: dict[str, list[Any]] = {}
        for group in groups:
            rewards.setdefault(group.prompt.verifier, []).append(group.rewards)
        found = []
        highest = 0.0
        for verifier, of_groups in rewards.items():
            mean = float(np.concatenate(of_groups).mean())
            earlier = self.history.setdefault(verifier, [])
            if len(earlier) >= MIN_HISTORY:
                score = robust_z(mean, earlier)
                highest = max(highest, score)
                if score >= self.params.rise:
                    usual = statistics.median(earlier)
                    text = f"the mean reward rose from {usual:.3f} to {mean:.3f}, a z-score of {score:.1f}"
                    found.append(Alarm("rise", verifier, text))
            earlier.append(mean)
            del earlier[:-HISTORY]
        return found, highest

    def _failures(self, groups: Sequence[ScoredGroup]) -> tuple[list[Alarm], int, int]:
        """Return alarms for failing verifiers, the number of prompts with failures, and the number of late responses.

        A late response is one whose verifier was ended at its deadline.
        """
        failing: dict[str, list[ScoredGroup]] = {}
        num_late = 0
        for group in groups:
            num_late += sum(item.num_late for item in group.evidence)
            if group.num_failed:
                failing.setdefault(group.prompt.verifier, []).append(group)
        found = []
        for verifier, own in failing.items():
            if len(own) >= MIN_FAILING:
                worst = max(own, key=_num_failed)
                num = sum(map(_num_failed, own))
                text = f"it failed on {num} responses to {len(own)} prompts"
                text = "; ".join((text, *FailureCount(own).lines()))
                found.append(Alarm("failures", verifier, text, worst.prompt.uid, _example(worst)))
        return found, sum(map(len, failing.values())), num_late


def robust_z(value: float, earlier: Sequence[float]) -> float:
    """Return a robust z-score: the distance of a value from the median of earlier ones, in robust standard deviations.

    The standard deviation counts as at least MIN_SPREAD.
    """
    median = statistics.median(earlier)
    deviations = [abs(one - median) for one in earlier]
    spread = max(NORMAL * statistics.median(deviations), MIN_SPREAD)
    return (value - median) / spread


def _answers_beside_the_reference(group: ScoredGroup) -> set[str]:
    """Return the answers in a group that earned a reward although they are not the prompt's reference answer."""
    found: set[str] = set()
    for item in group.evidence:
        found.update(paid.answer for paid in item.paid if not paid.is_reference)
    return found


def _num_failed(group: ScoredGroup) -> int:
    return group.num_failed


def _example(group: ScoredGroup) -> str:
    """Return an example of a response on which a verifier failed."""
    for item in group.evidence:
        if item.num_late or item.num_raised:
            return item.example
    return ""


def reward_watch(run_folder: Path, params: RewardWatchParams) -> RewardWatch:
    """Make an observer that looks for signs of reward hacking, for the setting `trainer.observers`."""
    return RewardWatch(run_folder, params)
