"""Numbers of a benchmark, worked by hand."""

from __future__ import annotations

import json

import pytest

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.evaluation.estimates import group_by, scores_of
from tests.unit.evaluation.answers import made


def settings(pass_at_k: list[int] | None = None, majority_at_k: list[int] | None = None) -> EvaluationConfig:
    return EvaluationConfig(bootstrap_samples=200, pass_at_k=pass_at_k or [], majority_at_k=majority_at_k or [])


def test_pass_at_k_of_a_benchmark_is_the_mean_of_its_prompts() -> None:
    group = [made("a/0", "1100"), made("a/1", "0000"), made("a/2", "1111"), made("a/3", "1000")]
    scores = scores_of([group], settings([2]))
    assert scores.pass_at_1.value == pytest.approx((0.5 + 0 + 1 + 0.25) / 4)
    # of two samples one is right: 1 - C(2,2)/C(4,2), 0, 1, 1 - C(3,2)/C(4,2)
    assert scores.pass_at[2].value == pytest.approx((5 / 6 + 0 + 1 + 0.5) / 4)
    assert scores.pass_at[4].value == pytest.approx(3 / 4)
    assert (scores.num_prompts, scores.num_samples) == (4, 4)


def test_the_majority_is_counted_where_all_verifiers_know_of_answers() -> None:
    known = [
        made("a/0", "110", answers=["4", "4", "5"]),
        made("a/1", "001", answers=["5", "5", "4"]),
        made("a/2", "000", answers=[None] * 3),
    ]
    scores = scores_of([known], settings(majority_at_k=[1]))
    assert scores.majority_at[3].value == pytest.approx(1 / 3)
    assert scores.majority_at[1].value == pytest.approx(1 / 3)
    assert scores.no_answer == pytest.approx(1 / 3)
    mixed = scores_of([[*known, made("a/3", "111")]], settings())
    assert mixed.majority_at == {}
    assert mixed.no_answer == pytest.approx(1 / 3), "of those that could have given one"


def test_lengths_and_truncation_are_means_over_prompts() -> None:
    scores = scores_of([[made("a/0", "11", tokens=4), made("a/1", "1000", tokens=10)]], settings())
    assert scores.response_tokens == 7
    assert scores.truncated == pytest.approx((0 + 0.75) / 2)
    assert scores.num_samples is None
    assert scores.pass_at == {}, "no k that all prompts share was asked for"


def test_the_best_constant_answer_is_taken_task_by_task_and_only_where_there_are_references() -> None:
    rows = [("easy", "1"), ("easy", "1"), ("easy", "2"), ("hard", "3"), ("hard", "4")]
    group = [made(f"a/{index}", "1", task=task, reference=reference) for index, (task, reference) in enumerate(rows)]
    assert scores_of([group], settings()).constant_answer == pytest.approx((2 + 1) / 5)
    assert scores_of([[made("a/0", "1")]], settings()).constant_answer is None


def test_the_mean_of_benchmarks_counts_each_the_same() -> None:
    small, large = [made("a/0", "11"), made("a/1", "11")], [made(f"b/{index}", "00") for index in range(6)]
    assert scores_of([small, large], settings()).pass_at_1.value == 0.5
    assert scores_of([[*small, *large]], settings()).pass_at_1.value == 0.25


def test_prompts_are_put_together_by_domain() -> None:
    group = [made("a/0", "1", domain="math"), made("b/0", "0", domain="code"), made("c/0", "1", domain="math")]
    assert {
        name: [prompt.uid for prompt in part] for name, part in group_by(group, lambda prompt: prompt.domain).items()
    } == {
        "code": ["b/0"],
        "math": ["a/0", "c/0"],
    }


def test_numbers_are_valid_json_even_where_one_prompt_has_no_error() -> None:
    record = json.loads(json.dumps(scores_of([[made("a/0", "10")]], settings()).as_json(), allow_nan=False))
    assert (record["pass_at_1"], record["standard_error"], record["interval"]) == (0.5, None, [None, None])
    assert record["pass_at_k"]["2"]["value"] == 1.0
