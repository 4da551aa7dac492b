"""Files of prompts and conversations, and what verifiers are given: questions, or one message."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brorl_graders.base.payload import Payload
from brorl_graders.base.settings import Endpoint
from brorl_graders.verifiers.registry import VERIFIERS, check_payload, names_in, templates
from hypothesis import given
from hypothesis import strategies as st

from graders.tests.support.names import allow_also
from nemo_brorl.config.data import PRESETS, ColumnsConfig, DataConfig
from nemo_brorl.config.sft import SftConfig
from nemo_brorl.core.errors import ConfigError, DataError, ModelError
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.training.supervised.chat_files import read_examples
from nemo_brorl.training.supervised.conversations import Conversations
from tests.fuzz.hostile import Damage, Swap, damages, swaps, values
from tests.fuzz.profile import fuzz, no_hang
from tests.support.run_folders import put_tokenizer

CODE_TESTS = {"inputs": ["1\n"], "outputs": ["2\n"]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"prompt": "What is 3?", "answer": "3", "task": "t", "verifier": "exact_match", "metadata": {"a": [1, None]}},
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "2?"}], "answer": ["2", 2]},
    ],
    "deepscaler": [{"problem": "1+1?", "answer": "2", "solution": "2"}, {"problem": "x?", "answer": "\\frac{1}{2}"}],
    "eurus_2": [
        {"data_source": "d", "prompt": [{"role": "user", "content": "1+1?"}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": "2"}},
        {"prompt": [{"role": "user", "content": "add"}], "ability": "code",
         "reward_model": {"style": "rule", "ground_truth": json.dumps(CODE_TESTS)}},
    ],
    "scp_116k": [{"domain": "physics", "problem": "g?", "solution": "so \\boxed{9.81}"}],
    "ifeval": [{"key": 1, "prompt": "Write.", "instruction_id_list": ["keywords:existence"],
         "kwargs": [{"keywords": ["a"]}]}],
}  # fmt: skip
PAYLOADS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("exact_match", {"answer": ["3", 3], "ignore_case": True}),
    ("math", {"answer": "\\frac{1}{2}", "relative_tolerance": 0.1, "units": "strict"}),
    ("multiple_choice", {"answer": "B", "choices": ["one", "two"]}),
    ("code", {"tests": CODE_TESTS, "max_tests": 3, "setup": "", "scoring": "all"}),
    ("format", {"structure": "answer", "language": "en", "max_repetition": 0.5, "repetition_ngram": 3}),
    (
        "instruction_following",
        {
            "instruction_id_list": ["length_constraints:number_words", "keywords:existence"],
            "kwargs": [{"num_words": 3, "relation": "at least"}, {"keywords": ["a"]}],
        },
    ),
    (
        "reasoning_gym",
        {"dataset": "gcd", "config": {"max_value": 9}, "question": "q", "answer": "3", "metadata": {"a": 1}},
    ),
    ("judge", {"rubric": "r", "answer": "3", "url": "http://127.0.0.1:8/v1", "model": "n", "api_key_variable": "KEY"}),
    ("ours", {"answer": "3"}),
    (
        "composite",
        {"mode": "sum", "parts": [{"verifier": "exact_match", "weight": 0.5}, {"verifier": "math"}], "answer": "1"},
    ),
)
ENDPOINTS = (
    Endpoint("judge", "http://127.0.0.1:9/v1", "m", template="{prompt} {response} {rubric}"),
    Endpoint("ours", "http://127.0.0.1:9/score"),
)
ALLOWED = {*VERIFIERS, "judge", "ours"}


@pytest.fixture(scope="module", autouse=True)
def _endpoints() -> None:
    allow_also(endpoints=ENDPOINTS)


def as_file(folder: Path, rows: list[dict[str, Any]], kind: str) -> Path:
    path = folder / f"rows.{kind}"
    if kind in ("parquet", "arrow"):
        rows = rows[:1]  # a column has one type
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        table = pa.Table.from_pylist(rows)
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    return path


def read_all(path: Path, preset: str, max_bad_rows: int) -> None:
    """Nothing but DataError and ConfigError may come of it, and no verifier that the settings do not give."""
    columns = ColumnsConfig(verifier="verifier" if preset == "plain" else None)
    config = DataConfig(source="jsonl", path=str(path), preset=preset, columns=columns, max_bad_rows=max_bad_rows)
    for split in ("train", "held_out"):
        with no_hang("reading rows"), contextlib.suppress(DataError, ConfigError):
            source = make_source(config, split, seed=0)
            for index in range(4):
                assert source.question(index).verifier in ALLOWED


@fuzz(0.1)
@given(st.sampled_from(PRESETS), st.sampled_from(["jsonl", "json", "parquet", "arrow"]), damages, st.booleans())
def test_a_damaged_file_of_rows(preset: str, kind: str, damage: Damage, is_patient: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = as_file(Path(folder), ROWS[preset], kind)
        path.write_bytes(damage.of(path.read_bytes()))
        read_all(path, preset, 99 if is_patient else 0)


@fuzz(0.12)
@given(st.sampled_from(PRESETS), st.lists(swaps, min_size=1, max_size=2), st.booleans())
def test_any_value_in_a_row(preset: str, changes: list[Swap], is_patient: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = as_file(Path(folder), ROWS[preset], "jsonl")
        for change in changes:
            path.write_bytes(change.of(path.read_bytes()))
        read_all(path, preset, 99 if is_patient else 0)


@fuzz(0.12)
@given(st.sampled_from(PAYLOADS), swaps)
def test_any_payload_passes_its_check_or_is_refused(case: tuple[str, Payload], change: Swap) -> None:
    name, payload = case
    changed = json.loads(change.of(json.dumps(payload).encode()))
    if not isinstance(changed, dict):
        return
    with no_hang("a check"):
        try:
            check_payload(name, changed)
        except (DataError, ConfigError) as error:
            assert str(error)
        else:
            names_in(name, changed)
            templates(name, changed)


@fuzz(0.04)
@given(
    st.sampled_from(sorted(ALLOWED)), st.dictionaries(st.sampled_from(["answer", "parts", "tests", "kwargs"]), values)
)
def test_a_payload_of_anything(name: str, payload: Payload) -> None:
    with no_hang("a check"):
        try:
            check_payload(name, payload)
        except (DataError, ConfigError) as error:
            assert str(error)


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Conversations:
    folder = tmp_path_factory.mktemp("model") / "model"
    put_tokenizer(folder)
    return Conversations(load_tokenizer(folder), frozenset({256}), None)


CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "task": "chat"},
    {"prompt": "What is 2?", "response": "Two."},
]


@fuzz(0.06)
@given(st.lists(swaps, max_size=2), damages | st.none())
def test_conversations_are_learnt_or_refused(
    conversations: Conversations, changes: list[Swap], damage: Damage | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = as_file(Path(folder), CHATS, "jsonl")
        for change in changes:
            path.write_bytes(change.of(path.read_bytes()))
        if damage is not None:
            path.write_bytes(damage.of(path.read_bytes()))
        data = DataConfig(source="jsonl", path=str(path), max_bad_rows=1)
        with no_hang("reading conversations"):
            try:
                read_examples(data, SftConfig(), conversations).batch(0, 2, seed=0)
            except (DataError, ConfigError, ModelError) as error:
                assert str(error)
