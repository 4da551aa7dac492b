"""Evaluation on fakes."""

import math
from dataclasses import replace
from typing import Any

import pytest

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.rollouts import RolloutsConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console, format_table
from nemo_brorl.evaluation.validation import EvaluationResult, Evaluator, best_constant_answer, summarise
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.tables import change_rows, curve_lines
from nemo_brorl.types import ScoredGroup
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
    result = Evaluator(config.evaluation, config.rollouts, prompts, sampler).evaluate()
    # rollouts 0..5: all right, every second, every third
    assert result.tasks["easy"].pass_at_1 == 1.0
    assert result.tasks["hard"].pass_at_1 == pytest.approx((3 / 6 + 2 / 6) / 2)
    assert result.overall.pass_at_1 == pytest.approx((1 + 3 / 6 + 2 / 6) / 3)
    assert result.overall.pass_at_n == 1.0


def asked(payloads: list[dict[str, Any]], tasks: list[str]) -> list[ScoredGroup]:
    """A group for each prompt."""
    groups: list[ScoredGroup] = []
    for payload, task in zip(payloads, tasks, strict=True):
        scored = make_group([1.0])
        prompt = replace(scored.prompt, task=task, payload=payload)
        groups.append(replace(scored, group=replace(scored.group, prompt=prompt)))
    return groups


def test_the_best_constant_answer_is_taken_task_by_task() -> None:
    answers = [{"answer": answer} for answer in ("1", "1", "2", "3", "4")]
    groups = asked(answers, ["easy", "easy", "easy", "hard", "hard"])
    assert best_constant_answer(groups) == pytest.approx((2 + 1) / 5)


def test_prompts_without_a_written_answer_have_no_constant_one() -> None:
    instructions = [{"instruction_id_list": ["a"]}] * 3
    assert best_constant_answer(asked(instructions, ["follow"] * 3)) is None
    mixed = [*instructions, {"answer": "1"}, {"answer": "2"}]
    assert best_constant_answer(asked(mixed, ["follow"] * 3 + ["count"] * 2)) == 0.5


def test_the_written_answer_of_an_environment_is_that_of_the_question_it_asks() -> None:
    products = [{"environment": "calculator", "task": {"payload": {"answer": answer}}} for answer in ("6", "8", "6")]
    assert best_constant_answer(asked(products, ["products"] * 3)) == pytest.approx(2 / 3)
    games = [{"environment": "mastermind", "task": {"code": "abca"}}]
    assert best_constant_answer(asked(games, ["mastermind"])) is None


def test_what_has_no_constant_answer_has_no_such_metric_and_a_dash_in_tables() -> None:
    result = summarise(asked([{"rubric": "kind"}], ["prose"]))
    assert result.constant_answer is None
    both = EvaluationResult(result, {"prose": result})
    assert not any("constant" in name for name in both.metrics())
    row = {"validation/pass_at_1": 0.5}
    assert change_rows(row, row) == [["all tasks", "50.0%", "50.0%", "+0.0 points", "–"]]


def test_tables_line_up() -> None:
    constant = {"validation/constant_answer": 0.4, "validation/constant_answer/toy": 0.4}
    before = {"validation/pass_at_1": 0.25, "validation/pass_at_1/toy": 0.25, **constant}
    after = {"validation/pass_at_1": 0.5, "validation/pass_at_1/toy": 0.5, **constant}
    lines = format_table(["task", "before", "after", "change", "constant"], change_rows(before, after))
    assert lines[2] == "toy         25.0%  50.0%  +25.0 points     40.0%"
    assert len({len(line) for line in lines}) == 1


def test_one_prompt_has_no_standard_error() -> None:
    sampler = Sampler(FakeGenerator(), FakeVerifier(), Console(), 4, 0)
    result = Evaluator(EvaluationConfig(), RolloutsConfig(), [make_prompt("held_out/1")], sampler).evaluate()
    assert math.isnan(result.overall.standard_error)
    assert result.overall.error_text == "–"


def test_a_curve_has_a_bar_of_60_characters_for_100_percent() -> None:
    lines = curve_lines([{"step": 0, "validation/pass_at_1": 0.1}, {"step": 5, "validation/pass_at_1": 0.25}])
    assert lines == ["step     0   10.0%  " + "█" * 6, "step     5   25.0%  " + "█" * 15]
