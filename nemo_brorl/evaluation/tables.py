"""Format the results of an evaluation as tables, for the console and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nemo_brorl.core.statistics import Estimate
from nemo_brorl.evaluation.estimates import Scores
from nemo_brorl.evaluation.results import Results

NONE = "–"
ALL_PROMPTS, MEAN_OF_BENCHMARKS = "all prompts", "mean of benchmarks"
NOTES = (
    "n: samples of each prompt. s.e.: standard error of pass@1 over prompts. "
    "Interval: Clopper and Pearson's with the effective number of samples. "
    "maj@k: the answer that most of k samples give is right. Truncated, no answer: shares of samples. "
    "Constant: pass@1 of always giving each task's most frequent answer.",
)


def named_scores(results: Results) -> list[tuple[str, Scores]]:
    """Return the names and scores for the rows of an evaluation's results table.

    The rows are the benchmarks, each followed by its tasks if it has several, the domains if they differ from the
    benchmarks, and the totals.
    """
    rows: list[tuple[str, Scores]] = []
    for name, benchmark in results.benchmarks.items():
        rows.append((name, benchmark.scores))
        if len(benchmark.tasks) > 1:
            for task, scores in benchmark.tasks.items():
                rows.append((f"  {task}", scores))
    are_benchmarks = list(results.domains) == sorted(results.benchmarks)
    if len(results.domains) > 1 and not are_benchmarks:
        for name, scores in results.domains.items():
            rows.append((f"domain {name}", scores))
    if results.mean_of_benchmarks is not None:
        rows.append((ALL_PROMPTS, results.overall))
        rows.append((MEAN_OF_BENCHMARKS, results.mean_of_benchmarks))
    return rows


def score_table(results: Results, confidence: float) -> list[list[str]]:
    """Return header and rows of an evaluation's results table as text cells."""
    named = named_scores(results)
    pass_ks: set[int] = set()
    majority_ks: set[int] = set()
    for _, scores in named:
        pass_ks.update(scores.pass_at)
        majority_ks.update(scores.majority_at)
    majority_ks.discard(1)
    header = [
        "benchmark",
        "prompts",
        "n",
        "pass@1",
        "s.e.",
        f"{100 * confidence:g}% interval",
        *(f"pass@{k}" for k in sorted(pass_ks)),
        *(f"maj@{k}" for k in sorted(majority_ks)),
        "tokens",
        "truncated",
        "no answer",
        "constant",
    ]
    has_turns = any(scores.turns is not None for _, scores in named)
    if has_turns:
        header += ["turns", "tool errors"]
    rows = [header]
    for name, scores in named:
        cells = _cells(scores, sorted(pass_ks), sorted(majority_ks))
        if has_turns:
            cells += [_count_of(scores.turns), _count_of(scores.tool_errors)]
        rows.append([name, *cells])
    return rows


def _count_of(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def markdown(results: Results, record: Mapping[str, Any]) -> str:
    """Return an evaluation's results as the text of evaluation.md."""
    settings = next(iter(record["benchmarks"].values()))["settings"]
    lines = [
        f"# Evaluation of {results.model}",
        "",
        f"Temperature {settings['temperature']:g}, top-p {settings['top_p']:g}, seed {record['seed']}; "
        f"weights `{record['weights']}`.",
        "",
        *markdown_table(score_table(results, record["confidence"])),
        "",
        *NOTES,
    ]
    return "\n".join(lines) + "\n"


def markdown_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with the first column left-aligned and all others right-aligned."""
    header, *others = rows
    yield f"| {' | '.join(header)} |"
    yield f"|---|{'---:|' * (len(header) - 1)}"
    for name, *cells in others:
        first = name.replace("|", "\\|")
        if first.startswith(" "):
            first = f"&emsp;{first.strip()}"
        yield f"| {first} | {' | '.join(cells)} |"


def _cells(scores: Scores, pass_ks: Sequence[int], majority_ks: Sequence[int]) -> list[str]:
    num_samples = NONE if scores.num_samples is None else str(scores.num_samples)
    cells = [
        str(scores.num_prompts),
        num_samples,
        share(scores.pass_at_1.value),
        share(scores.pass_at_1.standard_error),
        interval(scores.pass_at_1),
    ]
    for k in pass_ks:
        cells.append(_value(scores.pass_at.get(k)))
    for k in majority_ks:
        cells.append(_value(scores.majority_at.get(k)))
    return [
        *cells,
        f"{scores.response_tokens:,.1f}",
        share(scores.truncated),
        share(scores.no_answer),
        share(scores.constant_answer),
    ]


def _value(estimate: Estimate | None) -> str:
    if estimate is None:
        return NONE
    return share(estimate.value)


def share(value: float | None) -> str:
    """Return a fraction as text in per cent, or a dash for None and NaN."""
    if value is None or np.isnan(value):
        return NONE
    return f"{value:.1%}"


def interval(estimate: Estimate, sign: str = "") -> str:
    """Return an interval as text in percentage points, or a dash for a single prompt."""
    if np.isnan(estimate.standard_error):
        return NONE
    low, high = estimate.interval
    return f"{100 * low:{sign}.1f} … {100 * high:{sign}.1f}"
