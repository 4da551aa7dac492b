"""Two models on the same prompts: paired tests, from what their evaluations left on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.statistics import Float64, PairedTest, estimate_json, mean_of_means, number_or_null, paired_test
from nemo_brorl.evaluation.answers import PromptAnswers
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.estimates import BOOTSTRAP_SEED, success
from nemo_brorl.evaluation.identity import differing

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
        difference = estimate_json(test.difference)
        return {
            "num_prompts": self.num_prompts,
            "other_pass_at_1": self.before,
            "pass_at_1": self.after,
            "difference": difference.pop("value"),
            **difference,
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
        model = record["model"]
        theirs = record["benchmarks"]
        successes: dict[str, Successes] = {}
        for name, item in theirs.items():
            successes[name] = {}
            # A digit for each sample, 1 for a right one.
            for uid, digits in item["prompts"].items():
                successes[name][uid] = digits.count("1") / len(digits)
    except OSError as error:
        raise CheckpointError(
            f"evaluation.compare_with={path} cannot be read ({error}): write the path of an evaluation.json"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"evaluation.compare_with={path} is no evaluation.json of this version ({error!r}): evaluate that model "
            "again"
        ) from error
    wrong = _misfits(theirs, benchmarks)
    if wrong:
        raise CheckpointError(f"evaluation.compare_with={path} cannot be compared: {'; '.join(wrong)}")
    return Other(str(path), model, successes)


def compare(
    other: Other, answers: Mapping[str, Sequence[PromptAnswers]], config: EvaluationConfig
) -> dict[str, Compared]:
    """By benchmark; of several also "all prompts" and "mean of benchmarks"."""
    pairs: dict[str, Float64] = {}  # by benchmark: [prompts, 2] success of the other model and of this one
    for name, group in answers.items():
        theirs = other.successes[name]
        successes = []
        for prompt in group:
            successes.append((theirs[prompt.uid], success(prompt)))
        pairs[name] = np.array(successes)
    compared = {}
    for name, values in pairs.items():
        compared[name] = _compared([values], config)
    if len(pairs) > 1:
        strata = list(pairs.values())
        compared[ALL_PROMPTS] = _compared([np.concatenate(strata)], config)
        compared[MEAN_OF_BENCHMARKS] = _compared(strata, config)
    return compared


def _compared(strata: Sequence[Float64], config: EvaluationConfig) -> Compared:
    """`strata`: per stratum [prompts, 2]."""
    befores = []
    afters = []
    differences = []
    for values in strata:
        befores.append(values[:, 0])
        afters.append(values[:, 1])
        differences.append(values[:, 1] - values[:, 0])
    signs = np.sign(np.concatenate(differences))
    return Compared(
        num_prompts=len(signs),
        before=mean_of_means(befores),
        after=mean_of_means(afters),
        test=paired_test(differences, config.confidence, config.bootstrap_samples, BOOTSTRAP_SEED),
        wins=int((signs > 0).sum()),
        ties=int((signs == 0).sum()),
        losses=int((signs < 0).sum()),
    )


def _misfits(theirs: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> list[str]:
    """What keeps another evaluation from being compared with this one."""
    ours = {benchmark.name: benchmark for benchmark in benchmarks}
    found = []
    for name in ours.keys() - theirs.keys():
        found.append(f"it has no {name}; ask only {', '.join(theirs)}")
    for name in theirs.keys() - ours.keys():
        found.append(f"it has {name}, which is not asked here: add it")
    for name, benchmark in ours.items():
        if name in theirs:
            found.extend(_differences(theirs[name], benchmark))
    return found


def _differences(item: Mapping[str, Any], benchmark: Benchmark) -> Iterator[str]:
    name = benchmark.name
    num_there = len(item["prompts"])
    num_here = len(benchmark.prompts)
    if num_there != num_here:
        yield f"{name} has {num_there} prompts there and {num_here} here: ask as many of both models"
    elif item["questions"] != benchmark.questions:
        yield (
            f"{name} holds other questions or scores them otherwise: "
            f"evaluate both models on the same files and settings"
        )
    settings = item["settings"]
    for key in differing(settings, benchmark.settings):
        yield f"{name} was asked with {key}={settings.get(key)}, here {benchmark.settings[key]}"
