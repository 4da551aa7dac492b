"""Demonstrations: right answers, seeded, never a held-out question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from brorl_graders.verifiers.registry import VERIFIERS
from brorl_lab.bases.demonstrations import (
    Calls,
    Demonstrations,
    Habits,
    format_call,
    response_text,
    tokenizer_texts,
)
from brorl_lab.bases.initial_model import TOOL_TEMPLATE, build_tokenizer

from nemo_brorl.config.data import DataConfig, TaskConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.prompts.questions import is_held_out
from nemo_brorl.prompts.reasoning_gym import ReasoningGymSource
from nemo_brorl.prompts.sources import make_source
from tests.support.names import allow_source
from tests.support.source_tree import ROOT

TASKS = [
    TaskConfig(name="chain_sum", config={"max_terms": 2, "max_digits": 2}),
    TaskConfig(name="gcd", config={"max_value": 60}),
]


@pytest.fixture
def source() -> ReasoningGymSource:
    return ReasoningGymSource(TASKS, 0.3, "train", seed=1)


@pytest.fixture
def tokenizer(source: ReasoningGymSource, tmp_path: Path) -> ChatTokenizer:
    build_tokenizer(tokenizer_texts(source, 100, "Be brief."), 400).save_pretrained(tmp_path)
    return load_tokenizer(tmp_path)


def test_every_demonstration_earns_the_full_reward(source: ReasoningGymSource, tokenizer: ChatTokenizer) -> None:
    demonstrations = Demonstrations(source, tokenizer, None, tagged_fraction=1.0).batch(0, 60)
    for index, demonstration in enumerate(demonstrations):
        question = source.question(index)
        assert demonstration.response_ids[-1] == tokenizer.eos_token_id
        assert VERIFIERS[question.verifier].score(question.payload, tokenizer.decode(demonstration.response_ids)) == 1.0


def test_no_held_out_question_is_demonstrated(source: ReasoningGymSource, tokenizer: ChatTokenizer) -> None:
    demonstrations = Demonstrations(source, tokenizer, None, tagged_fraction=1.0)
    for index in range(200):
        assert not is_held_out(source.question(index).text, 0.3)
        prompt_ids = demonstrations.demonstration(index).prompt_ids.tolist()
        assert prompt_ids == tokenizer.prompt_ids(source.question(index).text)


def test_batches_follow_each_other_without_overlap(source: ReasoningGymSource, tokenizer: ChatTokenizer) -> None:
    demonstrations = Demonstrations(source, tokenizer, "Be brief.", tagged_fraction=0.5)
    two, one = demonstrations.batch(1, 4) + demonstrations.batch(2, 4), demonstrations.batch(0, 12)[4:]
    assert [(*item.prompt_ids, *item.response_ids) for item in two] == [
        (*item.prompt_ids, *item.response_ids) for item in one
    ]


def test_a_task_without_written_answers_is_refused() -> None:
    with pytest.raises(DataError, match="boxnet generates questions without a written answer"):
        response_text("boxnet", {"answer": None}, is_tagged=True)


def test_the_share_of_tagged_answers_is_as_set_and_the_rest_are_bare(
    source: ReasoningGymSource, tokenizer: ChatTokenizer
) -> None:
    texts = [
        tokenizer.decode(item.response_ids)
        for item in Demonstrations(source, tokenizer, None, tagged_fraction=0.6).batch(0, 400)
    ]
    answers = [source.question(index).payload["answer"] for index in range(400)]
    assert all(text in (answer, f"<answer>{answer}</answer>") for text, answer in zip(texts, answers, strict=True))
    share = sum(text.startswith("<answer>") for text in texts) / 400
    assert abs(share - 0.6) < 0.08  # three standard deviations are 0.073


def test_a_careful_pupil_works_sums_out_and_other_tasks_as_before(
    source: ReasoningGymSource, tokenizer: ChatTokenizer
) -> None:
    demonstrations = Demonstrations(source, tokenizer, None, tagged_fraction=1.0, habits=Habits(0.0, 0.0))
    num_sums = 0
    for index, demonstration in enumerate(demonstrations.batch(0, 60)):
        question = source.question(index)
        text = tokenizer.decode(demonstration.response_ids)
        answer = question.payload["answer"]
        if question.task == "chain_sum":
            num_sums += 1
            expression = question.payload["metadata"]["expression"].replace(" ", "")
            assert text == f"{expression}={answer}<answer>{answer}</answer>"  # of two terms
        else:
            assert text == f"<answer>{answer}</answer>"
    assert num_sums > 10


def test_a_pupil_who_is_told_that_he_is_wrong_is_right_then_and_what_he_is_told_is_not_learnt() -> None:
    tokenizer = load_tokenizer(ROOT / "models" / "sums")
    data = DataConfig(
        tasks=[TaskConfig("chain_sum")],
        verifier="exact_match",
        environment="verify_and_retry",
        environment_settings={"feedback": "No."},
    )
    allow_source(data)
    told = tokenizer.encode("\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n")
    source = make_source(data, "train", 1)
    careless = Habits(dropped_carry_rate=1.0, slip_rate=0.5)
    num_told = 0
    for index, example in enumerate(Demonstrations(source, tokenizer, None, 1.0, careless).batch(0, 40)):
        ids = example.response_ids
        assert example.has_loss is not None
        heard = ids[~example.has_loss].tolist()
        turns = tokenizer.backend.decode(ids[example.has_loss].tolist(), skip_special_tokens=False)
        *wrong, last, _ = turns.split("<|im_end|>")
        answer = source.domains[0].source.question(index).payload["task"]["payload"]["answer"]
        assert last.endswith(f"<answer>{answer}</answer>")
        assert heard == told * len(wrong)
        num_told += len(wrong)
    assert num_told > 10


CALCULATED = DataConfig(
    tasks=[TaskConfig("products", config={"min_digits": 3, "max_digits": 3})],
    verifier="exact_match",
    environment="calculator",
)


def saved_tokenizer(folder: Path, data: DataConfig) -> ChatTokenizer:
    allow_source(data)
    texts = tokenizer_texts(make_source(data, "train", 1), 20, None)
    build_tokenizer(texts, 400, TOOL_TEMPLATE).save_pretrained(folder)
    return load_tokenizer(folder)


def test_a_pupil_who_calls_a_calculator_reads_its_result_and_learns_only_what_he_says(tmp_path: Path) -> None:
    tokenizer = saved_tokenizer(tmp_path, CALCULATED)
    source = make_source(CALCULATED, "train", 1)
    always = Calls(calling_rate=1.0, slip_rate=0.0)
    for index, example in enumerate(Demonstrations(source, tokenizer, None, 1.0, calls=always).batch(0, 10)):
        question = source.question(index)
        asked = question.payload["task"]["payload"]
        expression, answer = asked["metadata"]["expression"], asked["answer"]
        assert example.prompt_ids.tolist() == tokenizer.prompt_ids(question.text, None, question.tools)
        assert example.has_loss is not None
        heard = example.response_ids[~example.has_loss].tolist()
        told = f"\n<|im_start|>tool\n{answer}<|im_end|>\n<|im_start|>assistant\n"
        assert heard == tokenizer.encode(told)
        said = tokenizer.decode(example.response_ids[example.has_loss].tolist())
        assert said == f"{format_call(expression)}<answer>{answer}</answer>"


def test_a_task_without_an_expression_has_nothing_to_ask_a_calculator(tmp_path: Path) -> None:
    data = replace(CALCULATED, tasks=[TaskConfig("gcd")])
    allow_source(data)
    demonstrations = Demonstrations(
        make_source(data, "train", 1), saved_tokenizer(tmp_path, data), None, 1.0, calls=Calls(1.0, 0.0)
    )
    with pytest.raises(
        DataError, match="task gcd has no arithmetic expression.*set sft.demonstrations.calling_rate=null"
    ):
        demonstrations.demonstration(0)
