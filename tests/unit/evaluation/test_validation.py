"""Evaluation on fakes."""

from dataclasses import replace

import pytest

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, format_table
from nemo_brorl.evaluation.validation import Evaluator, best_constant_answer, result_header, result_rows
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.tables import change_rows, curve_lines
from tests.support.fakes import FakeGenerator, FakeVerifier, make_group, make_prompt


def test_pass_at_1_is_the_mean_over_prompts_and_tasks_are_apart() -> None:
    config = BroRLConfig()
    config.evaluation.samples_per_prompt = 6
    sampler = Sampler(FakeGenerator(), FakeVerifier(), Console(), 4, 0)
    prompts = [
        make_prompt("held_out/0", task="easy"),
        make_prompt("held_out/1", task="hard"),
        make_prompt("held_out/2", task="hard"),
    ]
    result = Evaluator(config, prompts, sampler).evaluate()
    # rollouts 0..5: all right, every second, every third
    assert result.tasks["easy"].pass_at_1 == 1.0
    assert result.tasks["hard"].pass_at_1 == pytest.approx((3 / 6 + 2 / 6) / 2)
    assert result.overall.pass_at_1 == pytest.approx((1 + 3 / 6 + 2 / 6) / 3)
    assert result.overall.pass_at_n == 1.0


def test_the_best_constant_answer_is_taken_task_by_task() -> None:
    groups = [make_group([1.0]) for _ in range(5)]
    tasks = ["easy", "easy", "easy", "hard", "hard"]
    answers = ["1", "1", "2", "3", "4"]
    prompts = [
        replace(group.prompt, task=task, payload={"answer": answer})
        for group, task, answer in zip(groups, tasks, answers, strict=True)
    ]
    groups = [
        replace(scored, group=replace(scored.group, prompt=prompt))
        for scored, prompt in zip(groups, prompts, strict=True)
    ]
    assert best_constant_answer(groups) == pytest.approx((2 + 1) / 5)


def test_tables_line_up() -> None:
    constant = {"validation/constant_answer": 0.4, "validation/constant_answer/toy": 0.4}
    before = {"validation/pass_at_1": 0.25, "validation/pass_at_1/toy": 0.25, **constant}
    after = {"validation/pass_at_1": 0.5, "validation/pass_at_1/toy": 0.5, **constant}
    lines = format_table(["task", "before", "after", "change", "constant"], change_rows(before, after))
    assert lines[2] == "toy         25.0%  50.0%  +25.0 points     40.0%"
    assert len({len(line) for line in lines}) == 1


def test_result_tables_have_a_row_per_task_and_one_for_all() -> None:
    result = Evaluator(
        BroRLConfig(), [make_prompt("held_out/1")], Sampler(FakeGenerator(), FakeVerifier(), Console(), 4, 0)
    ).evaluate()
    assert [row[0] for row in result_rows(result)] == ["toy", "all tasks"]
    assert len(result_header(result)) == len(result_rows(result)[0])


def test_a_curve_has_a_bar_of_60_characters_for_100_percent() -> None:
    lines = curve_lines([{"step": 0, "validation/pass_at_1": 0.1}, {"step": 5, "validation/pass_at_1": 0.25}])
    assert lines == ["step     0   10.0%  " + "█" * 6, "step     5   25.0%  " + "█" * 15]
