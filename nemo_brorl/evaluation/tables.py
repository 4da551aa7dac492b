"""An evaluation for people: tables on the console, the same as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nemo_brorl.evaluation.comparison import ALL_PROMPTS, MEAN_OF_BENCHMARKS, Compared
from nemo_brorl.evaluation.confidence import Estimate
from nemo_brorl.evaluation.estimates import Scores
from nemo_brorl.evaluation.results import Results

NONE = "–"
COMPARISON_HEADER = [
    "against other",
    "prompts",
    "other",
    "this",
    "difference",
    "s.e.",
    "interval",
    "t",
    "p",
    "bootstrap p",
    "+ / = / −",
]


def named_scores(results: Results) -> list[tuple[str, Scores]]:
    """Rows of the table: each benchmark, its tasks behind it where there are several; domains where they are not the
    benchmarks; all."""
    rows: list[tuple[str, Scores]] = []
    for name, benchmark in results.benchmarks.items():
        rows.append((name, benchmark.scores))
        if len(benchmark.tasks) > 1:
            rows += [(f"  {task}", scores) for task, scores in benchmark.tasks.items()]
    if len(results.domains) > 1 and list(results.domains) != sorted(results.benchmarks):
        rows += [(f"domain {name}", scores) for name, scores in results.domains.items()]
    if results.mean_of_benchmarks is not None:
        rows += [(ALL_PROMPTS, results.overall), (MEAN_OF_BENCHMARKS, results.mean_of_benchmarks)]
    return rows


def score_table(results: Results, confidence: float) -> list[list[str]]:
    """Header and rows."""
    named = named_scores(results)
    ks = sorted({k for _, scores in named for k in scores.pass_at})
    votes = sorted({k for _, scores in named for k in scores.majority_at if k > 1})
    header = [
        "benchmark",
        "prompts",
        "n",
        "pass@1",
        "s.e.",
        f"{100 * confidence:g}% interval",
        *(f"pass@{k}" for k in ks),
    ]
    header += [*(f"maj@{k}" for k in votes), "tokens", "truncated", "no answer", "constant"]
    return [header, *([name, *_cells(scores, ks, votes)] for name, scores in named)]


def comparison_table(comparison: Mapping[str, Compared]) -> list[list[str]]:
    """Header and rows; none without a comparison."""
    rows = [
        [
            name,
            str(found.num_prompts),
            _share(found.before),
            _share(found.after),
            f"{100 * found.test.difference.value:+.1f}",
            f"{100 * found.test.difference.standard_error:.1f}",
            _interval(found.test.difference, signed=True),
            _number(found.test.t, ".2f"),
            _p(found.test.p_value),
            _p(found.test.bootstrap_p_value),
            f"{found.wins} / {found.ties} / {found.losses}",
        ]
        for name, found in comparison.items()
    ]
    return [COMPARISON_HEADER, *rows] if rows else []


def markdown(results: Results, record: Mapping[str, Any]) -> str:
    """evaluation.md."""
    settings = next(iter(record["benchmarks"].values()))["settings"]
    lines = [
        f"# Evaluation of {results.model}",
        "",
        f"Temperature {settings['temperature']:g}, top-p {settings['top_p']:g}, seed {record['seed']}; weights "
        f"`{record['weights']}`.",
        "",
        *markdown_table(score_table(results, record["confidence"])),
        "",
        *NOTES,
    ]
    if results.comparison:
        lines += [
            "",
            f"## Against {results.other}",
            "",
            *markdown_table(comparison_table(results.comparison)),
            "",
            *COMPARISON_NOTES,
        ]
    return "\n".join(lines) + "\n"


NOTES = (
    "n: samples of each prompt. s.e.: standard error of pass@1 over prompts. Interval: percentiles of a bootstrap "
    "over prompts. "
    "maj@k: the answer that most of k samples give is right. Truncated, no answer: shares of samples. "
    "Constant: pass@1 of always giving each task's most frequent answer.",
)
COMPARISON_NOTES = (
    "Difference of pass@1 in points, prompt by prompt. p: paired t-test, and a bootstrap over prompts, both two-sided. "
    "+ / = / −: prompts of which this model gets more, as many, fewer samples right.",
)


def markdown_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: first column left, the others right."""
    header, *others = rows
    yield f"| {' | '.join(header)} |"
    yield f"|---|{'---:|' * (len(header) - 1)}"
    for name, *cells in others:
        shown = name.replace("|", "\\|")
        yield f"| {'&emsp;' + shown.strip() if shown.startswith(' ') else shown} | {' | '.join(cells)} |"


def _cells(scores: Scores, ks: Sequence[int], votes: Sequence[int]) -> list[str]:
    return [
        str(scores.num_prompts),
        NONE if scores.num_samples is None else str(scores.num_samples),
        _share(scores.pass_at_1.value),
        _share(scores.pass_at_1.standard_error),
        _interval(scores.pass_at_1),
        *(_share(scores.pass_at[k].value if k in scores.pass_at else None) for k in ks),
        *(_share(scores.majority_at[k].value if k in scores.majority_at else None) for k in votes),
        f"{scores.response_tokens:,.1f}",
        _share(scores.truncated),
        _share(scores.no_answer),
        _share(scores.constant_answer),
    ]


def _share(value: float | None) -> str:
    return NONE if value is None or np.isnan(value) else f"{value:.1%}"


def _number(value: float, form: str) -> str:
    return NONE if np.isnan(value) else f"{value:{form}}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else _number(value, ".3f")


def _interval(found: Estimate, signed: bool = False) -> str:
    """The bootstrap's; of one prompt there is none."""
    low, high = found.bootstrap
    sign = "+" if signed else ""
    return NONE if np.isnan(found.standard_error) else f"{100 * low:{sign}.1f} … {100 * high:{sign}.1f}"
