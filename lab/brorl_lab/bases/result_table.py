"""Format a validation as a table, with one row for each task."""

from __future__ import annotations

from nemo_brorl.evaluation.validation import EvaluationResult, TaskResult


def result_rows(result: EvaluationResult) -> list[list[str]]:
    """Return the table rows of a validation's results, one for each task and one for all tasks together."""
    rows = []
    for task, part in result.tasks.items():
        rows.append(_row(task, part))
    rows.append(_row("all tasks", result.overall))
    return rows


def _row(name: str, result: TaskResult) -> list[str]:
    constant = "–"
    if result.constant_answer is not None:
        constant = f"{result.constant_answer:.1%}"
    return [
        name,
        str(result.num_prompts),
        f"{result.pass_at_1:.1%}",
        result.error_text,
        f"{result.pass_at_n:.1%}",
        constant,
        f"{result.response_tokens:.1f}",
        f"{result.truncated:.1%}",
    ]


def result_header(result: EvaluationResult) -> list[str]:
    """Return the column titles of a table of validation results."""
    return [
        "task",
        "prompts",
        "pass@1",
        "s.e.",
        f"pass@{result.overall.num_samples}",
        "constant",
        "tokens",
        "truncated",
    ]
