"""Rows of any layout become questions: paths, message lists, presets of well-known files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.verifiers.registry import judge

from graders.tests.support.names import allow_also
from nemo_brorl.config import data
from nemo_brorl.config.data import ColumnsConfig, DataConfig, SourceConfig
from nemo_brorl.prompts import row_questions
from nemo_brorl.prompts.columns import ABSENT, value_at
from nemo_brorl.prompts.jsonl_table import parsed_row
from nemo_brorl.prompts.question_keys import keys_of
from nemo_brorl.prompts.questions import BadRow, Question
from nemo_brorl.prompts.row_formats import PRESETS, RowFormat, columns_of, row_formats
from nemo_brorl.prompts.row_questions import question_of
from nemo_brorl.prompts.sources import make_source
from tests.support.names import allow_source
from tests.unit.prompts.files import write_jsonl, write_parquet

PLAIN = (RowFormat("prompt", "answer", "exact_match"),)
BRIEF = {"role": "system", "content": "Be brief."}
ASK = {"role": "user", "content": "2+2?"}


def question(row: dict[str, Any], config: SourceConfig | None = None) -> Question:
    config = config or SourceConfig()
    found = question_of(row, row_formats(config), "domain", config.verifier_options)
    assert isinstance(found, Question), found
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", 1),
        ("b.c", "x"),
        ("b.d.1", 20),
        ("b.d.2", ABSENT),
        ("b.d.x", ABSENT),
        ("a.b", ABSENT),
        ("text.inputs.0", "1\n"),
        ("text", '{"inputs": ["1\\n"]}'),
        ("json:text", {"inputs": ["1\n"]}),
        ("json:b.c", ABSENT),
        ("json:a", 1),
        ("final:box", "\\frac{1}{2}"),
        ("final:hashes", "72"),
        ("final:sentence", "$x = 3$"),
        ("final:short", "42 km"),
        ("final:prose", ABSENT),
    ],
)
def test_a_path_leads_to_a_value(path: str, value: object) -> None:
    row = {
        "a": 1,
        "b": {"c": "x", "d": [10, 20]},
        "text": '{"inputs": ["1\\n"]}',
        "box": "Halve it: $1 \\cdot \\boxed{\\frac{1}{2}}$. Done.",
        "hashes": "48 + 24 = 72\n#### 72",
        "sentence": "Subtract. The answer is $x = 3$.\nCheck it.",
        "short": " 42 km ",
        "prose": "We see that it holds. " * 30,
    }
    assert value_at(row, path) == value


def test_a_message_list_keeps_its_system_prompt_apart_from_the_question() -> None:
    found = question({"prompt": [BRIEF, ASK], "answer": "4"})
    assert (found.text, found.messages) == ("2+2?", (BRIEF, ASK))
    assert question({"prompt": [ASK], "answer": "4"}).messages == ()


def test_earlier_turns_belong_to_the_question() -> None:
    turns = [ASK, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}]
    found = question({"prompt": turns, "answer": "yes"})
    assert found.text == "2+2?\n\n4\n\nSure?"
    assert found.payload["question"] == found.text


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (None, "'prompt' is None; write a text, or a list of messages"),
        ([], "'prompt' is []; write a text"),
        ([BRIEF], "must be or end with a non-empty text of the user"),
        ([{"role": "tool", "content": "x"}], "a message has a role (system, user, assistant)"),
        ([{"role": "user", "content": None}], "and a text as content"),
    ],
)
def test_what_is_no_conversation_is_a_bad_row(prompt: object, reason: str) -> None:
    found = question_of({"prompt": prompt, "answer": "4"}, PLAIN, "domain", {})
    assert isinstance(found, BadRow) and reason in found.reason


def test_columns_say_where_fields_are() -> None:
    columns = ColumnsConfig(
        "messages.0.content", "extra_info.gold", "source", "scorer", {"level": "extra_info.level", "hint": "hint?"}
    )
    allow_also(verifiers=["mine.sums:score"])
    row = {"messages": [ASK], "extra_info": {"gold": 4, "level": 3}, "source": "sums", "scorer": "mine.sums:score"}
    found = question(row, SourceConfig(columns=columns))
    assert (found.text, found.task, found.verifier) == ("2+2?", "sums", "mine.sums:score")
    assert found.payload == {"question": "2+2?", "answer": 4, "level": 3, "prompt": "2+2?", **row}


def test_a_function_of_the_users_own_gets_the_whole_row() -> None:
    """Options of verifiers, values that JSON has no form for and named columns stay as they are."""
    row = {"prompt": [ASK], "answer": "4", "difficulty": 2, "tags": ["a", None], "hint": None}
    odd = {"timeout_s": 900, "mode": "fast", "picture": b"x", "question": "two and two"}
    config = SourceConfig(verifier="mine.rules:score", verifier_options={"tolerance": 1})
    allow_source(config)
    found = question({**row, **odd}, config)
    assert found.payload == {**row, "question": "two and two", "tolerance": 1}
    assert question({**row, **odd}).payload == {"question": "2+2?", "answer": "4"}


def test_a_function_inside_a_composition_gets_the_whole_row_too() -> None:
    parts = [{"verifier": "exact_match"}, {"verifier": "mine.rules:score"}]
    config = SourceConfig(verifier="composite", verifier_options={"parts": parts})
    allow_source(config)
    assert question({"prompt": "a", "answer": "4", "difficulty": 2}, config).payload["difficulty"] == 2
    assert columns_of(row_formats(config), config.verifier_options) is None
    assert columns_of(row_formats(SourceConfig()), {}) == ["answer", "metadata", "prompt", "task"]


def test_other_columns_make_no_other_question_and_are_part_of_its_content() -> None:
    config = SourceConfig(verifier="mine.rules:score")
    allow_source(config)
    first, second = (keys_of(question({"prompt": "a", "answer": "4", "id": number}, config)) for number in (1, 2))
    assert (first.answered, first.conversation) == (second.answered, second.conversation)
    assert first.content != second.content


def test_a_verifier_that_reads_no_answer_needs_no_column_for_it() -> None:
    config = SourceConfig(columns=ColumnsConfig(answer="", payload={"rule": "rule"}), verifier="mine.rules:score")
    allow_source(config)
    assert question({"prompt": "Write.", "rule": "short"}, config).payload == {
        "question": "Write.",
        "rule": "short",
        "prompt": "Write.",
    }


def test_what_json_has_no_form_for_is_a_bad_row() -> None:
    found = question_of(
        {"prompt": "a", "answer": "1", "x": {1, 2}},
        (RowFormat("prompt", "answer", "exact_match", {"x": "x"}),),
        "d",
        {},
    )
    assert isinstance(found, BadRow)
    assert found.reason == "'x' holds {1, 2}, which is of the type set; store text or a number"


@pytest.mark.parametrize("depth", [64, 100, 500, 900, 3000])
@pytest.mark.parametrize("inner", ["[{}]", '{{"a":{}}}'])
def test_a_row_of_any_depth_is_a_bad_row(depth: int, inner: str) -> None:
    """Some ended the run in a RecursionError, whatever max_bad_rows said."""
    value: Any = "1"
    for _ in range(depth):
        value = [value] if inner == "[{}]" else {"a": value}
    found = question_of({"prompt": "a", "answer": value}, PLAIN, "d", {})
    assert isinstance(found, BadRow)
    assert "deep" in found.reason or "RecursionError" in found.reason
    left, right = inner.split("{}") if inner == "[{}]" else ('{"a":', "}")
    line = '{"prompt": "a", "answer": ' + left * depth + "1" + right * depth + "}"
    assert isinstance(parsed_row(line.encode()), BadRow)


def test_whatever_a_row_makes_a_verifiers_check_raise_is_a_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(verifier: str, payload: dict[str, Any]) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(row_questions, "check_payload", check)
    found = question_of({"prompt": "a", "answer": "1"}, PLAIN, "d", {})
    assert isinstance(found, BadRow) and found.reason == "OverflowError: too large"


def test_an_answer_of_a_thousand_digits_is_read() -> None:
    row = parsed_row(b'{"prompt": "a", "answer": ' + b"9" * 1000 + b"}")
    assert not isinstance(row, BadRow)
    assert question(dict(row)).payload["answer"] == int("9" * 1000)


def test_every_preset_is_a_choice() -> None:
    assert set(data.PRESETS) == set(PRESETS)


def preset_question(path: Path, kind: str, preset: str) -> Question:
    config = DataConfig(source=kind, path=str(path), preset=preset, held_out_fraction=0.0)
    return make_source(config, "train", 1).question(0)


def test_deepscaler_rows(tmp_path: Path) -> None:
    row = {"problem": "What is $1+1$?", "answer": "2", "solution": "Count: \\boxed{2}."}
    (tmp_path / "deepscaler.json").write_text(json.dumps([row], indent=2))  # the published file is one array
    found = preset_question(tmp_path / "deepscaler.json", "jsonl", "deepscaler")
    assert (found.text, found.verifier, found.payload["answer"]) == ("What is $1+1$?", "math", "2")


def eurus_row(ability: str, ground_truth: str) -> dict[str, Any]:
    return {
        "data_source": "numina_olympiads" if ability == "math" else "taco",
        "prompt": [{"content": "Think.", "role": "system"}, {"content": f"A {ability} question", "role": "user"}],
        "ability": ability,
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }


def test_eurus_2_rows_of_mathematics_and_code(tmp_path: Path) -> None:
    tests = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    mathematics = write_parquet(tmp_path / "math.parquet", [eurus_row("math", "\\frac{1}{2}")])
    found = preset_question(mathematics, "parquet", "eurus_2")
    assert (found.text, found.verifier, found.payload["answer"]) == ("A math question", "math", "\\frac{1}{2}")
    assert found.messages[0] == {"role": "system", "content": "Think."}
    code = write_parquet(tmp_path / "code.parquet", [eurus_row("code", json.dumps(tests))])
    found = preset_question(code, "parquet", "eurus_2")
    assert (found.verifier, found.payload["tests"], "answer" in found.payload) == ("code", tests, False)


def test_an_ability_that_eurus_2_does_not_have_is_a_bad_row() -> None:
    found = question_of(eurus_row("law", "guilty"), PRESETS["eurus_2"], "domain", {})
    assert found == BadRow("'ability' is 'law'; rows with math or code can be used")


def test_scp_116k_rows(tmp_path: Path) -> None:
    row = {"domain": "Physics", "problem": "How long does it fall?", "solution": "By symmetry the answer is $2$ s."}
    found = preset_question(write_parquet(tmp_path / "scp.parquet", [row]), "parquet", "scp_116k")
    assert (found.verifier, found.payload["answer"], found.payload["domain"]) == ("math", "$2$ s", "Physics")


def test_ifeval_rows_lose_the_nulls_that_parquet_adds(tmp_path: Path) -> None:
    row = {
        "key": 1000,
        "prompt": "Write two paragraphs without a comma.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_paragraphs"],
        "kwargs": [{}, {"num_paragraphs": 2}],
    }
    lines = preset_question(write_jsonl(tmp_path / "input_data.jsonl", [row]), "jsonl", "ifeval")
    table = preset_question(write_parquet(tmp_path / "train.parquet", [row]), "parquet", "ifeval")
    assert lines.payload == table.payload
    assert table.payload["kwargs"] == [{}, {"num_paragraphs": 2}]
    assert table.verifier == "instruction_following"


def test_rows_of_another_kind_are_passed_over(tmp_path: Path) -> None:
    rows = [eurus_row("math", "1"), {**eurus_row("math", "2"), "ability": "other"}]
    path = write_parquet(tmp_path / "eurus.parquet", rows)
    config = DataConfig(
        source="parquet", path=str(path), preset="eurus_2", held_out_fraction=0.0, only={"ability": "math"}
    )
    assert make_source(config, "train", 1).domains[0].source.size == 1


@pytest.mark.parametrize(
    ("preset", "row", "right", "wrong"),
    [
        ("deepscaler", {"problem": "1+1?", "answer": "2"}, "So \\boxed{2}.", "So \\boxed{3}."),
        ("eurus_2", eurus_row("math", "\\frac{1}{2}"), "It is \\boxed{0.5}.", "It is \\boxed{0.4}."),
        ("scp_116k", {"domain": "d", "problem": "p", "solution": "Thus \\boxed{x+1}."}, "\\boxed{1+x}", "\\boxed{1-x}"),
        (
            "ifeval",
            {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
            "No mark of that kind.",
            "One, two.",
        ),
    ],
)
def test_verifiers_score_what_presets_hand_over(preset: str, row: dict[str, Any], right: str, wrong: str) -> None:
    found = question(row, SourceConfig(preset=preset))
    scores = [judge(found.verifier, found.payload, response)[0] for response in (right, wrong)]
    assert scores == [1.0, 0.0]
