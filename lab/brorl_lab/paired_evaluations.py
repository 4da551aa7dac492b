"""Compare two models on the same prompts with paired tests, from the `evaluation.json` of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from brorl_graders.base.foreign import LARGE, record_object

from brorl_lab.paired_test import PairedTest, paired_test
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.files import MALFORMED, why_unreadable
from nemo_brorl.core.statistics import Float64, mean_of_means
from nemo_brorl.evaluation.estimates import BOOTSTRAP_SEED
from nemo_brorl.evaluation.identity import differing
from nemo_brorl.evaluation.tables import ALL_PROMPTS, MEAN_OF_BENCHMARKS

Successes = dict[str, float]  # share of right samples by prompt uid


@dataclass(frozen=True)
class EvaluationScores:
    """The scores of one model in an `evaluation.json`."""

    model: str
    confidence: float  # confidence of its intervals
    questions: Mapping[str, str]  # digest of the questions by benchmark
    settings: Mapping[str, Mapping[str, Any]]  # settings by benchmark
    successes: Mapping[str, Successes]  # success rates by benchmark


@dataclass(frozen=True)
class BenchmarkComparison:
    """The comparison of two models on one benchmark, or on all, prompt by prompt."""

    num_prompts: int
    before: float  # pass@1 of the other model
    after: float  # pass@1 of this model
    test: PairedTest
    wins: int  # prompts on which this model gets more samples right
    ties: int
    losses: int


def read_evaluation(path: Path) -> EvaluationScores:
    """Read a model's scores from an evaluation.json.

    Raises CheckpointError when the file cannot be read or was written by another version.
    """
    try:
        record = record_object(path, LARGE)
        items = record["benchmarks"].items()
        return EvaluationScores(
            str(record["model"]),
            _share(record["confidence"]),
            {name: str(item["questions"]) for name, item in items},
            {name: dict(item["settings"]) for name, item in items},
            {name: _successes(item["prompts"]) for name, item in items},
        )
    except OSError as error:
        reason = why_unreadable(error)
        raise CheckpointError(f"{path} cannot be read ({reason}): pass the path of an evaluation.json") from error
    except MALFORMED as error:
        raise CheckpointError(
            f"{path} is no evaluation.json of this version ({why_unreadable(error)}): evaluate that model again"
        ) from error


def _share(value: Any) -> float:
    number = float(value)
    if not 0 < number < 1:
        raise ValueError(f"{number} is no share")
    return number


def _successes(prompts: Mapping[str, str]) -> Successes:
    """Return the share of right samples of each prompt, which has a digit for each sample, 1 for a right one."""
    if not prompts:
        raise ValueError("a benchmark has no prompts")
    return {uid: digits.count("1") / len(digits) for uid, digits in prompts.items()}


def compare_evaluations(
    other: EvaluationScores, this: EvaluationScores, num_resamples: int
) -> dict[str, BenchmarkComparison]:
    """Compare two models' evaluations on each benchmark, and if there are several also over all of them.

    Several benchmarks are also compared as "all prompts" and as "mean of benchmarks". Raises CheckpointError when the
    two models were asked different questions, or with different settings. The message names the differences.
    """
    wrong = _misfits(other, this)
    if wrong:
        raise CheckpointError(f"{other.model} and {this.model} cannot be compared: {'; '.join(wrong)}")
    pairs: dict[str, Float64] = {}  # success rates [prompts, 2] of the other model and of this one, by benchmark
    for name, successes in this.successes.items():
        theirs = other.successes[name]
        pairs[name] = np.array([(theirs[uid], success) for uid, success in successes.items()])
    compared = {}
    for name, values in pairs.items():
        compared[name] = _compare_strata([values], this.confidence, num_resamples)
    if len(pairs) > 1:
        strata = list(pairs.values())
        compared[ALL_PROMPTS] = _compare_strata([np.concatenate(strata)], this.confidence, num_resamples)
        compared[MEAN_OF_BENCHMARKS] = _compare_strata(strata, this.confidence, num_resamples)
    return compared


def _compare_strata(strata: Sequence[Float64], confidence: float, num_resamples: int) -> BenchmarkComparison:
    """Compare two models with a paired test over strata of prompts, such as one stratum for each benchmark.

    A stratum holds success rates [prompts, 2]: of the earlier model in column 0, of the later model in column 1.
    """
    differences = [values[:, 1] - values[:, 0] for values in strata]
    signs = np.sign(np.concatenate(differences))
    return BenchmarkComparison(
        num_prompts=len(signs),
        before=mean_of_means([values[:, 0] for values in strata]),
        after=mean_of_means([values[:, 1] for values in strata]),
        test=paired_test(differences, confidence, num_resamples, BOOTSTRAP_SEED),
        wins=int((signs > 0).sum()),
        ties=int((signs == 0).sum()),
        losses=int((signs < 0).sum()),
    )


def _misfits(other: EvaluationScores, this: EvaluationScores) -> list[str]:
    """Return the reasons why two evaluations cannot be compared."""
    found = []
    for name in sorted(this.successes.keys() - other.successes.keys()):
        found.append(f"the first has no {name}: evaluate both on the same benchmarks")
    for name in sorted(other.successes.keys() - this.successes.keys()):
        found.append(f"the second has no {name}: evaluate both on the same benchmarks")
    for name in this.successes:
        if name in other.successes:
            found.extend(_differences(name, other, this))
    return found


def has_same_questions(name: str, other: EvaluationScores, this: EvaluationScores) -> bool:
    """Return whether two models answered the same questions of a benchmark."""
    is_same = other.questions.get(name) == this.questions[name]
    return is_same and other.successes[name].keys() == this.successes[name].keys()


def _differences(name: str, other: EvaluationScores, this: EvaluationScores) -> Iterator[str]:
    num_there = len(other.successes[name])
    num_here = len(this.successes[name])
    if num_there != num_here:
        yield f"{name} has {num_there} prompts in the first and {num_here} in the second: ask as many of both models"
    elif not has_same_questions(name, other, this):
        yield (
            f"{name} holds other questions or scores them otherwise: "
            f"evaluate both models on the same files and settings"
        )
    before, after = other.settings[name], this.settings[name]
    for key in differing(before, after):
        yield f"{name} was asked with {key}={before.get(key)}, then with {after.get(key)}"
