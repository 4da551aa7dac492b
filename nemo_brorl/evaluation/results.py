"""Write the results of an evaluation to evaluation.json and evaluation.md.

Everything is computed from the answers, so a restart changes nothing.

OUTPUT/evaluation.json  evaluation.md    the latest
OUTPUT/evaluations/answers/              `answers.py`, one file for each benchmark and identity
OUTPUT/evaluations/MODEL-ID/             each evaluation's own copy, and its samples
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from brorl_graders.base.environment_values import as_written

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.core.files import write_atomically
from nemo_brorl.evaluation.answers import AnswerFile, PromptAnswers
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.estimates import Scores, group_by, scores_of
from nemo_brorl.evaluation.identity import short_id


@dataclass(frozen=True)
class BenchmarkScores:
    """Results of one benchmark, and of each of its tasks."""

    scores: Scores
    tasks: dict[str, Scores]


@dataclass(frozen=True)
class Results:
    """All results of an evaluation."""

    model: str
    benchmarks: dict[str, BenchmarkScores]
    domains: dict[str, Scores]  # results by domain; empty if prompts have none
    overall: Scores  # every prompt has equal weight
    mean_of_benchmarks: Scores | None  # every benchmark has equal weight; None: there is only one


def results_of(
    model: str,
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    config: EvaluationConfig,
) -> Results:
    """Return all results of an evaluation, from the benchmarks in which every prompt has answers."""
    answers = {}
    for benchmark in benchmarks:
        answers[benchmark.name] = ordered(benchmark, files[benchmark.name])
    every = list(chain.from_iterable(answers.values()))
    scores_by_benchmark = {}
    for name, group in answers.items():
        scores_by_task = _scores_by(group, attrgetter("task"), config)
        scores_by_benchmark[name] = BenchmarkScores(scores_of([group], config), scores_by_task)
    scores_by_domain = _scores_by(every, attrgetter("domain"), config)
    scores_by_domain.pop("", None)  # prompts without a domain
    mean_of_benchmarks = None
    if len(answers) > 1:
        mean_of_benchmarks = scores_of(list(answers.values()), config)
    return Results(
        model=model,
        benchmarks=scores_by_benchmark,
        domains=scores_by_domain,
        overall=scores_of([every], config),
        mean_of_benchmarks=mean_of_benchmarks,
    )


def ordered(benchmark: Benchmark, file: AnswerFile) -> list[PromptAnswers]:
    """Return a benchmark's answers in the order of its prompts."""
    return [file.found[prompt.uid] for prompt in benchmark.prompts]


def as_json(
    results: Results,
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    config: EvaluationConfig,
) -> dict[str, Any]:
    """Return an evaluation's results as the contents of evaluation.json."""
    first = files[benchmarks[0].name].identity
    mean_of_benchmarks = None
    if results.mean_of_benchmarks is not None:
        mean_of_benchmarks = results.mean_of_benchmarks.as_json()
    by_benchmark = {}
    for benchmark in benchmarks:
        name = benchmark.name
        prompts = ordered(benchmark, files[name])
        by_benchmark[name] = _benchmark_json(benchmark, results.benchmarks[name], prompts)
    return {
        "model": results.model,
        "weights": first["weights"],
        "seed": first["seed"],
        "confidence": config.confidence,
        "overall": results.overall.as_json(),
        "mean_of_benchmarks": mean_of_benchmarks,
        "domains": _scores_json(results.domains),
        "benchmarks": by_benchmark,
    }


def folder_of(
    output: Path,
    model_folder: Path,
    files: Mapping[str, AnswerFile],
) -> Path:
    """Return the folder of an evaluation's results, whose name identifies model and settings."""
    identities = [file.identity for file in files.values()]
    name = f"{model_folder.absolute().name}-{short_id(identities)}"
    return output / "evaluations" / name


def write(
    output: Path,
    folder: Path,
    record: Mapping[str, Any],
    markdown: str,
) -> None:
    """Write evaluation.json and evaluation.md into the evaluation's own folder, and as the latest into `output`.

    Each file is complete or absent.
    """
    text = json.dumps(as_written(record), indent=1) + "\n"
    for place in (folder, output):
        place.mkdir(parents=True, exist_ok=True)
        # The numbers are written first, so that a reader who finds the page finds them, too.
        write_atomically(place / "evaluation.json", text, is_synced=True)
        write_atomically(place / "evaluation.md", markdown, is_synced=True)


def _benchmark_json(benchmark: Benchmark, found: BenchmarkScores, prompts: Sequence[PromptAnswers]) -> dict[str, Any]:
    samples = {}  # one digit for each sample, 1 if it is right, by the prompt's uid
    for prompt in prompts:
        digits = [str(int(right)) for right in prompt.is_correct]
        samples[prompt.uid] = "".join(digits)
    return {
        "scores": found.scores.as_json(),
        "tasks": _scores_json(found.tasks),
        "settings": benchmark.settings,
        "questions": benchmark.questions,
        "prompts": samples,
    }


def _scores_json(by_name: Mapping[str, Scores]) -> dict[str, Any]:
    return {name: scores.as_json() for name, scores in by_name.items()}


def _scores_by(
    group: Sequence[PromptAnswers], key: Callable[[PromptAnswers], str], config: EvaluationConfig
) -> dict[str, Scores]:
    scores = {}
    for name, part in group_by(group, key).items():
        scores[name] = scores_of([part], config)
    return scores
