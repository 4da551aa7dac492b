"""Data files as people bring them are read as they mean them, or refused with what to do."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_brorl.config.data import ColumnsConfig, DataConfig
from nemo_brorl.core.errors import ConfigError, DataError
from nemo_brorl.prompts.questions import Question
from nemo_brorl.prompts.sources import make_source
from tests.unit.prompts.files import write_jsonl, write_parquet

ROW = {"prompt": "1 + 1?", "answer": "2"}
OPTIONS = ["Oslo", "Rome", "Bern"]
SHOWN = "Which?\n\nA. Oslo\nB. Rome\nC. Bern"


def questions(path: Path, **settings: Any) -> list[Question]:
    config = DataConfig(source="jsonl", path=str(path), held_out_fraction=0.0, **settings)
    source = make_source(config, "train", 1)
    return [source.question(index) for index in range(source.domains[0].source.size or 0)]


def only(path: Path, **settings: Any) -> Question:
    (question,) = questions(path, **settings)
    return question


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("semicolons.csv", "prompt;answer\n1 + 1?;2\n"),
        ("excel.csv", "\ufeffsep=;\nprompt;answer\n1 + 1?;2\n"),
        ("tabs.csv", "prompt\tanswer\n1 + 1?\t2\n"),
        ("blanks.csv", "prompt, answer\n1 + 1?,2\n"),
        ("marked.csv", "\ufeffprompt;answer\n1 + 1?;2\n"),
        ("capitals.csv", "Prompt,Answer\n1 + 1?,2\n"),
        ("numbered.csv", ",Prompt,Answer\n7,1 + 1?,2\n"),
        ("numbered.jsonl", json.dumps({"": "x = 1", "Prompt": "1 + 1?", "Answer": "2"}) + "\n"),
        ("lines.ndjson", json.dumps(ROW) + "\n"),
        ("array.json", json.dumps([ROW], indent=2)),
    ],
)
def test_tables_and_lines_of_other_programs_are_read(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    question = only(path)
    assert (question.text, question.payload["answer"]) == ("1 + 1?", "2")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.txt", b"What is 1 + 1?\n", 'begins with \'What is 1 .* lines such as {"prompt": "2\\+2\\?"'),
        ("rows.yaml", b"- prompt: a\n", "begins with '- prompt: a' and has no objects of JSON"),
        ("page.jsonl", b"<!DOCTYPE html>\n", "begins with '<!DOCTYPE html>'"),
        ("rows.pkl", b"\x80\x04\x95", "has no objects of JSON"),
        ("rows.xlsx", b"PK\x03\x04", "is a workbook: save it as CSV"),
        ("rows.npz", b"PK\x03\x04", "is an archive of arrays"),
        ("rows.json", b"PAR1\x15\x04", "is a Parquet file: name it .parquet"),
        ("rows.parquet", b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
        ("rows.csv", "prompt,answer\na,b\n".encode("utf-16"), "is UTF-16: write it as UTF-8, as `iconv"),
        ("rows.jsonl", '{"prompt": "é"}\n'.encode("latin-1"), "line 1: not UTF-8 .*`iconv -f LATIN1 -t UTF-8`"),
        ("rows_1252.csv", "prompt,answer\né,b\n".encode("cp1252"), "is not UTF-8 .*`iconv -f LATIN1 -t UTF-8`"),
        ("comma.jsonl", b'{"prompt": "a", "answer": "b"},\n', "line 1: not JSON: .* Leave out the comma at its end"),
        ("python.jsonl", b"{'prompt': 'a', 'answer': 'b'}\n", "line 1: not JSON: .* write json.dumps"),
        ("indented.jsonl", b'{\n "prompt": "a",\n "answer": "b"\n}\n', "line 1: .* Write each object on one line"),
        ("half.jsonl", b'{"prompt": "\\ud83d?", "answer": "b"}\n', "line 1: 'prompt' has half of a character"),
        ("twice.csv", b"prompt,answer,answer\n1,2,3\n", "has two columns 'answer'"),
        ("columns.json", b'{"prompt": {"0": "a", "1": "b"}, "answer": {"0": "1", "1": "2"}}', "one object of JSON"),
        ("lists.json", b'{"prompt": ["a", "b"], "answer": ["1", "2"]}', "one object of JSON.*orient='records'"),
        ("data.json", json.dumps({"data": [ROW, ROW]}).encode(), "has data. It is one object of JSON"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_what_to_do(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        questions(tmp_path / name)


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"question": "Which?", "choices": OPTIONS, "answer": 1}, "B"),
        ({"question": "Which?", "choices": {"text": OPTIONS, "label": ["A", "B", "C"]}, "answerKey": "B"}, "B"),
        ({"prompt": "Which?", "options": OPTIONS, "answer": "Rome"}, "Rome"),
        ({"query": "Which?", "options": OPTIONS, "correct": "C"}, "C"),
    ],
)
def test_options_in_a_column_of_their_own_are_shown_and_chosen_from(
    tmp_path: Path, row: dict[str, Any], right: str
) -> None:
    from brorl_graders.verifiers.registry import VERIFIERS

    question = only(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert (question.verifier, question.text) == ("multiple_choice", SHOWN)
    assert VERIFIERS["multiple_choice"].score(question.payload, f"Answer: {right}") == 1.0


def test_options_that_a_question_shows_are_not_shown_again(tmp_path: Path) -> None:
    row = {"question": "Oslo, Rome or Bern?", "choices": OPTIONS, "answer": "A"}
    assert only(write_jsonl(tmp_path / "rows.jsonl", [row])).text == "Oslo, Rome or Bern?"


@pytest.mark.parametrize("names", [("from", "value", "human", "gpt"), ("role", "content", "user", "assistant")])
def test_shared_conversations_and_contents_in_parts_are_read(tmp_path: Path, names: tuple[str, ...]) -> None:
    role, content, user, assistant = names
    asked = {role: user, content: [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]}
    row = {"conversations": [asked, {role: assistant, content: "The answer is 2."}]}
    question = only(write_jsonl(tmp_path / "rows.jsonl", [row]))
    assert (question.text, question.payload["answer"]) == ("1 + 1?", "2")


def test_a_column_that_a_question_may_need_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    only(write_jsonl(tmp_path / "a.jsonl", [{"question": "Who?", "context": "Ann ran.", "answer": "Ann"}]))
    assert "a.jsonl: the model is not shown the column context. Join it" in caplog.text
    columns = ColumnsConfig(prompt="instruction", answer="output")
    row = {"instruction": "Add one.", "input": "4", "output": "5"}
    only(write_jsonl(tmp_path / "b.jsonl", [row]), columns=columns)
    assert "b.jsonl: the model is not shown the column input" in caplog.text
    only(write_jsonl(tmp_path / "c.jsonl", [{**ROW, "context": "joined"}]))
    assert "c.jsonl" not in caplog.text


@pytest.mark.parametrize("answer", [r"\boxed{2}", "The answer is 2.", "1 + 1\n#### 2", "<think>\nhm\n</think>\n2"])
def test_answers_that_hold_more_than_the_answer_are_refused_and_the_proposal_reads_them(
    tmp_path: Path, answer: str
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{**ROW, "answer": answer}])
    with pytest.raises(DataError, match="Set data.columns.answer=final:answer data.verifier=math"):
        only(path)
    columns = ColumnsConfig(answer="final:answer")
    assert only(path, columns=columns, verifier="math").payload["answer"] == "2"


def test_an_answer_that_only_looks_like_a_phrase_is_taken_as_it_is(tmp_path: Path) -> None:
    for answer in ("50%", "an answer", "42.", "ACGT" * 100):
        assert only(write_jsonl(tmp_path / "rows.jsonl", [{**ROW, "answer": answer}])).payload["answer"] == answer


def test_answers_that_are_all_equal_or_end_in_a_point_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same = [{"prompt": f"q{n}", "answer": "42" if n else "7"} for n in range(25)]
    questions(write_jsonl(tmp_path / "rows.jsonl", same))
    assert "24 of 25 answers are '42': a policy earns by it alone" in caplog.text
    for form, shown in (("{}.0", "'50.0'"), ("$\\frac{{1}}{{{}}}$", "'$\\\\frac{1}{50}$'"), (0.1 / 3, "'1.6666")):
        answers = [form.format(50 + n) if isinstance(form, str) else (50 + n) * form for n in range(25)]
        rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in enumerate(answers)]
        questions(write_jsonl(tmp_path / "forms.jsonl", rows))
        assert re.search(
            rf"\d+ of 25 answers are like {re.escape(shown)}.* to equal: set data.verifier=math", caplog.text
        )
    caplog.clear()
    questions(write_jsonl(tmp_path / "whole.jsonl", [{"prompt": f"q{n}", "answer": n / 4} for n in range(25)]))
    questions(write_jsonl(tmp_path / "two.jsonl", [{"prompt": f"q{n}", "answer": "ab"[n % 2]} for n in range(40)]))
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("row", "proposed"),
    [
        (
            {"text": "a", "Correct Answer": "b"},
            "data.columns.prompt=text data.columns.answer='\"Correct Answer\"'",
        ),
        ({"text": "a", "completion": "b"}, "data.columns.prompt=text data.columns.answer=completion"),
        ({"input": "a", "the right one": "b"}, "data.columns.prompt=input data.columns.answer='\"the right one\"'"),
        ({"query": "a", "response": "b"}, "data.columns.prompt=query data.columns.answer=response"),
    ],
)
def test_columns_are_proposed_as_a_shell_takes_them(tmp_path: Path, row: dict[str, str], proposed: str) -> None:
    with pytest.raises(DataError) as raised:
        only(write_parquet(tmp_path / "rows.jsonl.parquet", [row]))
    assert str(raised.value).endswith(f"Say which is which: set {proposed}")


def test_names_that_are_none_are_no_proposal(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("What is 1 + 1?,2\nWhat is 1 + 2?,3\n", encoding="utf-8")
    with pytest.raises(DataError, match="write a first line with some, such as prompt,answer") as raised:
        only(path)
    assert "data.columns.prompt=" not in str(raised.value)


@pytest.mark.parametrize("content", ["2", "two words"])
def test_an_answer_that_is_a_message_is_its_text(tmp_path: Path, content: str) -> None:
    for answer in ([{"role": "assistant", "content": content}], {"role": "assistant", "content": content}):
        path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1 + 1?", "completion": answer}])
        question = only(path, columns=ColumnsConfig(answer="completion"), verifier="exact_match")
        assert question.payload["answer"] == content


@pytest.mark.parametrize(("second", "is_named"), [("test", True), ("train", False), ("hard", False)])
def test_rows_of_several_splits_in_one_file_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, second: str, is_named: bool
) -> None:
    rows = [{**ROW, "split": "train"}, {"prompt": "1 + 2?", "answer": "3", "split": second}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    questions(path)
    assert ("rows of test, train are all read. Set 'data.only={split: train}'" in caplog.text) == is_named
    caplog.clear()
    assert len(questions(path, only={"split": "train"})) == (1 if second != "train" else 2)
    assert caplog.text == ""


@pytest.mark.parametrize("path", ["openai/gsm8k", "hf://datasets/a/b", "https://a.b/c.jsonl", "s3://a/b.jsonl"])
def test_a_name_on_a_hub_is_answered_with_how_to_download(path: str) -> None:
    config = DataConfig(source="jsonl", path=path)
    (said,) = config.missing("data")
    assert "hf download --repo-type dataset" in said
    (plain,) = DataConfig(source="jsonl", path="questions.jsonl").missing("data")
    assert "hf download" not in plain


def test_one_file_for_training_and_validation_is_refused(tmp_path: Path) -> None:
    from nemo_brorl.config.load import load_config

    path = write_jsonl(tmp_path / "rows.jsonl", [ROW])
    with pytest.raises(ConfigError, match=r"held_out_path=\S+ is data.path, too.* set data.held_out_path=null"):
        load_config("your_model", [f"data.path={path}", f"data.held_out_path={path}"])
