"""Files of public shapes load by themselves, and what cannot be an answer is named."""

from __future__ import annotations

import gzip
import json
import logging
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.config.data import ColumnsConfig, DataConfig
from nemo_brorl.core.errors import DataError
from nemo_brorl.prompts.questions import Question
from nemo_brorl.prompts.sources import make_source
from tests.unit.prompts.files import write_jsonl, write_parquet

TALK = [{"role": "user", "content": "Say 1 + 1."}, {"role": "assistant", "content": "It is easy. The answer is 2."}]
CASES = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])
CALLS = json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}])
VERL = {"prompt": TALK[:1], "reward_model": {"ground_truth": "2", "style": "rule"}, "extra_info": {"index": "1"}}
START = "class Solution:\n    def add(self, a, b):"

# name of the data set -> (row, verifier, text, what the payload has)
SHAPES: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "GSM8K": ({"question": "1 + 1?", "answer": "1 and 1\nare 2.\n#### 2"}, "math", "1 + 1?", {"answer": "2"}),
    "DAPO-Math-17k": ({**VERL, "ability": "MATH", "data_source": "math_dapo"}, "math", "Say 1 + 1.", {"answer": "2"}),
    "Eurus-2, mathematics": ({**VERL, "ability": "math"}, "math", "Say 1 + 1.", {"answer": "2"}),
    "Eurus-2, programs": (
        {**VERL, "ability": "code", "reward_model": {"ground_truth": '{"inputs": ["1"], "outputs": ["2"]}'}},
        "code",
        "Say 1 + 1.",
        {"tests": {"inputs": ["1"], "outputs": ["2"]}},
    ),
    "OpenMathInstruct-2": (
        {"problem": "1 + 1?", "generated_solution": "…", "expected_answer": "2"},
        "math",
        "1 + 1?",
        {"answer": "2"},
    ),
    "NuminaMath": (
        {"problem": "1 + 1?", "solution": r"So \boxed{2}.", "messages": TALK},
        "math",
        "1 + 1?",
        {"answer": "2"},
    ),
    "TRL": (
        {"prompt": [{"role": "user", "content": "1 + 1?"}], "solution": r"$\boxed{2}$"},
        "math",
        "1 + 1?",
        {"answer": "2"},
    ),
    "questions with solutions": (
        {"question": "1 + 1?", "solution": "One and one.\n#### 2"},
        "math",
        "1 + 1?",
        {"answer": "2"},
    ),
    "DeepScaleR": ({"problem": "1 + 1?", "answer": "2", "solution": "It is 2."}, "math", "1 + 1?", {"answer": "2"}),
    "AIME": ({"ID": "2024-I-1", "Problem": "1 + 1?", "Solution": "…", "Answer": 2}, "math", "1 + 1?", {"answer": 2}),
    "conversations": ({"messages": TALK}, "math", "Say 1 + 1.", {"answer": "2"}),
    "conversations as text": ({"messages": json.dumps(TALK)}, "math", "Say 1 + 1.", {"answer": "2"}),
    "trivia": (
        {"question": "Capital of Peru?", "answer": "Lima"},
        "exact_match",
        "Capital of Peru?",
        {"answer": "Lima"},
    ),
    "LiveCodeBench, printed": (
        {"question_content": "Add.", "starter_code": "", "public_test_cases": CASES, "metadata": "{}"},
        "code",
        "Add.",
        {"tests": json.loads(CASES)},
    ),
    "LiveCodeBench, called": (
        {
            "question_content": "Add.",
            "starter_code": START,
            "public_test_cases": CALLS,
            "metadata": json.dumps({"func_name": "add"}),
        },
        "code",
        f"Add.\n\nBegin the program with this code:\n```python\n{START}\n```",
        {"tests": json.loads(CALLS), "fn_name": "add"},
    ),
}


def only_question(path: Path, **settings: Any) -> Question:
    config = DataConfig(source="jsonl", path=str(path), held_out_fraction=0.0, **settings)
    return make_source(config, "train", 1).question(0)


@pytest.mark.parametrize("name", SHAPES)
def test_a_public_shape_loads_by_itself(name: str, tmp_path: Path) -> None:
    row, verifier, text, payload = SHAPES[name]
    question = only_question(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert (question.verifier, question.text) == (verifier, text)
    assert payload.items() <= question.payload.items()


@pytest.mark.parametrize("name", ["GSM8K", "DAPO-Math-17k", "OpenMathInstruct-2"])
def test_a_public_shape_loads_from_parquet_and_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    row, verifier, text, _ = SHAPES[name]
    question = only_question(write_parquet(tmp_path / "rows.parquet", [row]))
    assert (question.verifier, question.text) == (verifier, text)
    assert "rows as of" in caplog.text and f"verifier {verifier}" in caplog.text


def test_settings_overrule_what_is_recognised(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [SHAPES["GSM8K"][0]])
    question = only_question(path, verifier="exact_match", columns=ColumnsConfig(prompt="question"))
    assert question.payload["answer"].endswith("#### 2")


def test_a_function_of_the_user_needs_no_answer(tmp_path: Path) -> None:
    from graders.tests.support.names import allow_also

    allow_also(verifiers=["my_reward:score"])
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "Write a poem."}])
    assert "answer" not in only_question(path, verifier="my_reward:score").payload
    with pytest.raises(DataError, match="no column answer; it has prompt.*set data.columns.answer='\"\"'"):
        only_question(path)


def test_worked_solutions_that_a_response_would_have_to_equal_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1?", "answer": f"We add.\nIt is {n + 1}."} for n in range(4)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError, match="4 of 4 answers are worked solutions.*final:answer data.verifier=math"):
        only_question(path)
    assert only_question(path, verifier="exact_match").payload["answer"].startswith("We add.")


def test_marks_of_missing_values_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(["nan", "None", "5", "null"])]
    only_question(write_jsonl(tmp_path / "rows.jsonl", rows))
    assert "the answer of 3 of 4 questions is 'None', 'nan', 'null'" in caplog.text


@pytest.mark.parametrize(
    ("answer", "message"),
    [("NaN", "'answer' holds nan, which is NaN"), ("-Infinity", "'answer' holds -inf, which is NaN or infinite")],
)
def test_numbers_that_are_none_are_bad_rows(tmp_path: Path, answer: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"prompt": "q", "answer": {answer}}}\n')
    with pytest.raises(DataError, match=f"line 1: {message}"):
        only_question(path)


def test_decimals_and_dates_are_texts_and_bytes_are_refused_by_column(tmp_path: Path) -> None:
    for number, (value, text) in enumerate([(Decimal("2.50"), "2.50"), (date(2026, 11, 28), "2026-11-28")]):
        path = write_parquet(tmp_path / f"{number}.parquet", [{"prompt": "q", "answer": value}])
        assert only_question(path).payload["answer"] == text
    path = write_parquet(tmp_path / "bytes.parquet", [{"prompt": "q", "answer": b"5"}])
    with pytest.raises(DataError, match="row 1: 'answer' holds b'5', which is of the type bytes"):
        only_question(path)


def test_a_list_of_messages_that_python_wrote_as_text_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": str(TALK[:1]), "answer": "2"}])
    with pytest.raises(DataError, match="'prompt' is .* Python's text of a list"):
        only_question(path)
    path = write_jsonl(tmp_path / "json.jsonl", [{"prompt": json.dumps(TALK[:1]), "answer": "2"}])
    assert only_question(path).text == "Say 1 + 1."


def test_values_separated_by_commas_or_tabs_are_read_as_text(tmp_path: Path) -> None:
    for suffix, mark in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"rows{suffix}"
        path.write_text(f'prompt{mark}answer\n"Which code,\nplease?"{mark}007\n')
        question = only_question(path)
        assert (question.text, question.payload["answer"]) == ("Which code,\nplease?", "007")


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"prompt": "q", "answer": "1"}\n'))
    with pytest.raises(DataError, match="is compressed: run `gunzip .*rows.jsonl.gz`"):
        only_question(packed)
    path = tmp_path / "rows.jsonl"
    path.write_text("prompt,answer\nq,1\n")
    with pytest.raises(DataError, match="separated by commas, its first line is 'prompt,answer': name the file .csv"):
        only_question(path)
