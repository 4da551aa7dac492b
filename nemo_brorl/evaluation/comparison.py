"""Two models on the same prompts: paired tests, from what their evaluations left on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.config.schema import EvaluationConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.evaluation.answers import PromptAnswers, differing
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.confidence import PairedTest, paired_test
from nemo_brorl.evaluation.estimates import BOOTSTRAP_SEED, estimate_json, number_or_null, success

Successes = dict[str, float]  # by uid: share of a prompt's samples that are right
ALL_PROMPTS, MEAN_OF_BENCHMARKS = "all prompts", "mean of benchmarks"


@dataclass(frozen=True)
class Other:
    """The evaluation that is compared with."""

    path: str
    model: str
    successes: dict[str, Successes]  # by benchmark


@dataclass(frozen=True)
class Compared:
    """One benchmark, or all: this model against the other, prompt by prompt."""

    num_prompts: int
    before: float  # pass@1 of the other model
    after: float  # of this one
    test: PairedTest
    wins: int  # prompts of which this model gets more samples right
    ties: int
    losses: int

    def as_json(self) -> dict[str, Any]:
        """With numbers under plain names."""
        test = self.test
        found = estimate_json(test.difference)
        return {
            "num_prompts": self.num_prompts,
            "other_pass_at_1": self.before,
            "pass_at_1": self.after,
            "difference": found.pop("value"),
            **found,
            "t": number_or_null(test.t),
            "degrees_of_freedom": test.degrees_of_freedom,
            "p_value": number_or_null(test.p_value),
            "bootstrap_p_value": number_or_null(test.bootstrap_p_value),
            "wins": self.wins,
            "ties": self.ties,
            "losses": self.losses,
        }


def read_other(path: Path, benchmarks: Sequence[Benchmark]) -> Other:
    """Read an evaluation.json that may be compared with these benchmarks.

    Raises CheckpointError when there is none, or when it asked other questions or asked them otherwise; the message
    says what differs.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        model, theirs = record["model"], record["benchmarks"]
        successes = {
            name: {uid: right.count("1") / len(right) for uid, right in item["prompts"].items()}
            for name, item in theirs.items()
        }
    except OSError as error:
        raise CheckpointError(
            f"evaluation.compare_with={path} cannot be read ({error}): write the path of an evaluation.json"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"evaluation.compare_with={path} is no evaluation.json of this version ({error!r}): evaluate that model "
            f"again"
        ) from error
    wrong = list(_misfits(theirs, benchmarks))
    if wrong:
        raise CheckpointError(f"evaluation.compare_with={path} cannot be compared: {'; '.join(wrong)}")
    return Other(str(path), model, successes)


def compare(
    other: Other, answers: Mapping[str, Sequence[PromptAnswers]], config: EvaluationConfig
) -> dict[str, Compared]:
    """By benchmark; of several also "all prompts" and "mean of benchmarks"."""
    pairs = {
        name: [(other.successes[name][prompt.uid], success(prompt)) for prompt in group]
        for name, group in answers.items()
    }
    compared = {name: _compared([values], config) for name, values in pairs.items()}
    if len(pairs) > 1:
        compared[ALL_PROMPTS] = _compared([[pair for values in pairs.values() for pair in values]], config)
        compared[MEAN_OF_BENCHMARKS] = _compared(list(pairs.values()), config)
    return compared


def _compared(strata: Sequence[Sequence[tuple[float, float]]], config: EvaluationConfig) -> Compared:
    differences = [[after - before for before, after in values] for values in strata]
    flat = [difference for values in differences for difference in values]
    return Compared(
        num_prompts=len(flat),
        before=float(np.mean([np.mean([before for before, _ in values]) for values in strata])),
        after=float(np.mean([np.mean([after for _, after in values]) for values in strata])),
        test=paired_test(differences, config.confidence, config.bootstrap_samples, BOOTSTRAP_SEED),
        wins=sum(difference > 0 for difference in flat),
        ties=sum(difference == 0 for difference in flat),
        losses=sum(difference < 0 for difference in flat),
    )


def _misfits(theirs: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> list[str]:
    ours = {benchmark.name: benchmark for benchmark in benchmarks}
    found = [f"it has no {name}; ask only {', '.join(theirs)}" for name in ours.keys() - theirs.keys()]
    found += [f"it has {name}, which is not asked here: add it" for name in theirs.keys() - ours.keys()]
    for name, benchmark in ours.items():
        item = theirs.get(name)
        if item is None:
            continue
        if len(item["prompts"]) != len(benchmark.prompts):
            found.append(
                f"{name} has {len(item['prompts'])} prompts there and {len(benchmark.prompts)} here: ask as many of "
                f"both models"
            )
        elif item["questions"] != benchmark.questions:
            found.append(
                f"{name} holds other questions or scores them otherwise: evaluate both models on the same files and "
                f"settings"
            )
        changed = differing(item["settings"], benchmark.settings)
        found += [
            f"{name} was asked with {key}={item['settings'].get(key)}, here {benchmark.settings[key]}"
            for key in changed
        ]
    return found
