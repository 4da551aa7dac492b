"""The table of a validation: a row for each task, one for all, a dash where there is nothing to say."""

from __future__ import annotations

import math

from brorl_lab.bases.result_table import result_header, result_rows

from nemo_brorl.evaluation.validation import EvaluationResult, TaskResult

ONE = TaskResult(
    num_prompts=1,
    num_samples=4,
    pass_at_1=0.25,
    standard_error=math.nan,
    pass_at_n=1.0,
    constant_answer=None,
    response_tokens=12.0,
    truncated=0.5,
    trajectories={},
)


def test_there_is_a_row_for_each_task_and_one_for_all() -> None:
    result = EvaluationResult(ONE, {"toy": ONE})
    assert [row[0] for row in result_rows(result)] == ["toy", "all tasks"]
    assert len(result_header(result)) == len(result_rows(result)[0])


def test_a_task_without_a_constant_answer_or_of_one_prompt_has_a_dash() -> None:
    (row, _) = result_rows(EvaluationResult(ONE, {"toy": ONE}))
    assert row == ["toy", "1", "25.0%", "–", "100.0%", "–", "12.0", "50.0%"]
