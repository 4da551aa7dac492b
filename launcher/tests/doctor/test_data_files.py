"""Sources of prompts, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brorl_launcher.doctor import data_files, sandbox

from nemo_brorl.config.data import DataConfig, DomainConfig, TaskConfig
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from tests.support.source_tree import ROOT

SUMS = ROOT / "models" / "sums"


def source_of(**fields: Any) -> dict[str, Any]:
    return data_files.look_at_source({"source": fields})


def test_the_first_rows_of_a_file_are_read_as_questions(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n\n{"problem": "no answer"}\n')
    said = source_of(source="jsonl", preset="deepscaler", path=str(file))
    assert said["fault"] == ""
    assert "1 of the first 2 rows are questions" in said["found"]


def test_a_file_without_one_question_in_its_first_rows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "math.jsonl"
    file.write_text('{"prompt": "1+1"}\n')
    assert (
        "none of the first 1 rows is a question"
        in source_of(source="jsonl", preset="deepscaler", path=str(file))["fault"]
    )


def conversation(number: int) -> dict[str, Any]:
    """A conversation of two long answers, of which the last is no answer to a question."""
    messages = [
        {"role": "user", "content": f"{number} + 3?"},
        {"role": "assistant", "content": "Five.\n" * 40},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes.\n" * 40},
    ]
    return {"messages": messages}


@pytest.mark.parametrize("name", ["sft", "mine"])
def test_rows_for_fine_tuning_are_read_as_conversations(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [sft, _self_]\n")
    rows = [json.dumps(conversation(number)) + "\n" for number in range(20)]
    (tmp_path / "chat.jsonl").write_text("".join(rows[3:]))
    (tmp_path / "held_out.jsonl").write_text("".join(rows[:3]))
    given = [f"data.path={tmp_path / 'chat.jsonl'}", f"data.held_out_path={tmp_path / 'held_out.jsonl'}"]
    given.append(f"policy.model={SUMS}")
    line = CommandLine(name, tuple(given), tmp_path if name == "mine" else None)
    assert data_files.is_fine_tuning(line)
    path = str(line.config_path or "")
    said = data_files.look_at_inputs({"given": [name, given, path]})
    assert said == {"found": "settings are read; 3 examples measure the loss", "warnings": [], "fault": ""}


def test_an_unknown_task_is_refused_and_every_task_needs_no_list() -> None:
    assert "leg_countin" in source_of(source="reasoning_gym", tasks=[{"name": "leg_countin"}])["fault"]
    assert source_of(source="reasoning_gym", tasks=[{"name": "*"}])["found"] == "reasoning_gym: every other task"


def test_a_sandbox_is_wanted_where_a_row_may_bring_a_program() -> None:
    code = DomainConfig(name="code", source="parquet", preset="eurus_2", path="x")
    gated = DomainConfig(
        name="gated", source="jsonl", path="x", verifier="composite", verifier_options={"parts": [{"verifier": "code"}]}
    )
    puzzles = DomainConfig(name="puzzles", tasks=[TaskConfig(name="*")])
    wanted = [
        sandbox.runs_programs(BroRLConfig(data=DataConfig(source="mixture", domains=[domain])))
        for domain in (code, gated, puzzles)
    ]
    assert wanted == [True, True, False]


def test_names_of_code_are_a_row_and_a_misspelt_one_refuses() -> None:
    own = DataConfig(source="jsonl", path="x", verifier="no_rewards:score")
    (misspelt,) = data_files.check_own_code(BroRLConfig(data=own))
    assert (misspelt.name, misspelt.status) == ("named code", "fail")
    assert misspelt.found.startswith("data.verifier=no_rewards:score: there is no module no_rewards")
    (found,) = data_files.check_own_code(BroRLConfig(data=DataConfig(source="jsonl", path="x", verifier="math")))
    assert (found.status, found.found) == ("ok", "math")
    assert list(data_files.check_own_code(BroRLConfig())) == []
