"""An evaluation's numbers, as evaluation.json and evaluation.md. Everything follows from the answers: nothing in it
changes with a restart.

OUTPUT/evaluation.json  evaluation.md    the latest
OUTPUT/evaluations/answers/              `answers.py`, one file for each benchmark and identity
OUTPUT/evaluations/MODEL-ID/             each evaluation's own copy, and its samples
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_brorl.config.schema import EvaluationConfig
from nemo_brorl.core.files import write_whole
from nemo_brorl.evaluation.answers import AnswerFile, PromptAnswers, short_id
from nemo_brorl.evaluation.benchmarks import Benchmark
from nemo_brorl.evaluation.comparison import Compared, Other, compare
from nemo_brorl.evaluation.estimates import Scores, by, scores_of


@dataclass(frozen=True)
class BenchmarkScores:
    """One benchmark's numbers."""

    scores: Scores
    tasks: dict[str, Scores]


@dataclass(frozen=True)
class Results:
    """All numbers of an evaluation."""

    model: str
    benchmarks: dict[str, BenchmarkScores]
    domains: dict[str, Scores]  # none where prompts have none
    overall: Scores  # every prompt counts the same
    mean_of_benchmarks: Scores | None  # every benchmark counts the same; None where there is one
    other: str | None  # model that is compared with
    comparison: dict[str, Compared]  # by benchmark; empty: with none


def results_of(
    model: str,
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    config: EvaluationConfig,
    other: Other | None,
) -> Results:
    """Numbers of benchmarks whose prompts all have answers."""
    answers = {benchmark.name: ordered(benchmark, files[benchmark.name]) for benchmark in benchmarks}
    every = [prompt for group in answers.values() for prompt in group]
    return Results(
        model=model,
        benchmarks={
            name: BenchmarkScores(scores_of([group], config), _scores_by_task(group, config))
            for name, group in answers.items()
        },
        domains={
            name: scores_of([group], config) for name, group in by(every, lambda prompt: prompt.domain).items() if name
        },
        overall=scores_of([every], config),
        mean_of_benchmarks=scores_of(list(answers.values()), config) if len(answers) > 1 else None,
        other=other.model if other is not None else None,
        comparison=compare(other, answers, config) if other is not None else {},
    )


def ordered(benchmark: Benchmark, file: AnswerFile) -> list[PromptAnswers]:
    """Answers in the order of the prompts, whichever came first."""
    return [file.found[prompt.uid] for prompt in benchmark.prompts]


def as_json(
    results: Results, benchmarks: Sequence[Benchmark], files: Mapping[str, AnswerFile], config: EvaluationConfig
) -> dict[str, Any]:
    """What evaluation.json holds."""
    first = files[benchmarks[0].name].identity
    return {
        "model": results.model,
        "weights": first["weights"],
        "seed": first["seed"],
        "confidence": config.confidence,
        "overall": results.overall.as_json(),
        "mean_of_benchmarks": None if results.mean_of_benchmarks is None else results.mean_of_benchmarks.as_json(),
        "domains": {name: scores.as_json() for name, scores in results.domains.items()},
        "comparison": None
        if results.other is None
        else {"model": results.other, **{name: found.as_json() for name, found in results.comparison.items()}},
        "benchmarks": {
            benchmark.name: {
                "scores": results.benchmarks[benchmark.name].scores.as_json(),
                "tasks": {name: scores.as_json() for name, scores in results.benchmarks[benchmark.name].tasks.items()},
                "settings": benchmark.settings,
                "questions": benchmark.questions,
                "prompts": {
                    prompt.uid: "".join("1" if right else "0" for right in prompt.is_correct)
                    for prompt in ordered(benchmark, files[benchmark.name])
                },
            }
            for benchmark in benchmarks
        },
    }


def folder_of(output: Path, model_folder: Path, files: Mapping[str, AnswerFile]) -> Path:
    """Of this evaluation: another model, or other settings, have another one."""
    return (
        output
        / "evaluations"
        / f"{model_folder.absolute().name}-{short_id([file.identity for file in files.values()])}"
    )


def write(output: Path, folder: Path, record: Mapping[str, Any], markdown: str) -> None:
    """Write both files into the evaluation's own folder, and as the latest into `output`. Each is there whole or not at
    all."""
    text = json.dumps(record, indent=1) + "\n"
    for place in (folder, output):
        place.mkdir(parents=True, exist_ok=True)
        write_whole(place / "evaluation.json", text, is_synced=True)
        write_whole(place / "evaluation.md", markdown, is_synced=True)


def _scores_by_task(group: Sequence[PromptAnswers], config: EvaluationConfig) -> dict[str, Scores]:
    return {name: scores_of([part], config) for name, part in by(group, lambda prompt: prompt.task).items()}
