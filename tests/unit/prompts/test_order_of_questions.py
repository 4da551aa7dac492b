"""The order of questions belongs to a run's seed: files of every format, generated tasks, mixtures and environments ask
the same questions, one after the other, as when these digests were written down."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from graders.tests.support.names import allow_also
from nemo_brorl.config.data import DataConfig, DomainConfig, TaskConfig
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.prompts.stream import PromptStream
from tests.support.source_tree import ROOT
from tests.unit.prompts.files import plain_rows, write_jsonl, write_parquet, write_saved_dataset

SEED = 5
NUM = 1000  # of 300 rows: three epochs and a bit
NUM_SHOWN = 4
TOKENIZER = load_tokenizer(ROOT / "models" / "sums")
SUMS = TaskConfig("chain_sum", config={"max_digits": 2})
GCD = TaskConfig("gcd", weight=2.0, config={"max_value": 50})
ROWS = {  # of 300 in files
    "train": (["train/0 q0", "train/1 q296", "train/2 q99", "train/3 q112"], "580a5ec7dbdbc6a9"),
    "held_out": (["held_out/0 q144", "held_out/1 q237", "held_out/2 q83", "held_out/3 q109"], "e4da92bf2971e519"),
}
TASKS = {
    "train": (
        [
            "train/0 39, 33. Give only the GCD as your final answer.",
            "train/1 78 - 73 =",
            "train/2 25, 15. Give only the GCD as your final answer.",
            "train/3 9 + 2 - 7 - 9 + 2 =",
        ],
        "9f6c9b5a7f442516",
    ),
    "held_out": (
        [
            "held_out/0 12, 28. Give only the GCD as your final answer.",
            "held_out/1 15, 14. Give only the GCD as your final answer.",
            "held_out/2 4, 50. Give only the GCD as your final answer.",
            "held_out/3 6, 22. Give only the GCD as your final answer.",
        ],
        "3f4f4fcc053f4e1c",
    ),
}
MIXTURE = {
    "train": (
        [
            "train/tasks/0 1 + 3 + 1 - 0 =",
            "train/rows/0 q20",
            "train/rows/1 q35",
            "train/rows/2 q211",
        ],
        "46cdb17b87d93500",
    ),
    "held_out": (
        [
            "held_out/rows/0 q187",
            "held_out/rows/1 q144",
            "held_out/tasks/0 1 + 8 - 8 + 2 =",
            "held_out/rows/2 q103",
        ],
        "b74e3d2dcdeb2a8a",
    ),
}
SECRETS = {  # of Mastermind
    "train": (["train/0 FED", "train/1 DAF", "train/2 ADA", "train/3 BFA"], "ed5d95b57cabcd05"),
    "held_out": (["held_out/0 ABB", "held_out/1 ABB", "held_out/2 BFB", "held_out/3 ADC"], "f0192a4aeb997e64"),
}


def asked(config: DataConfig, split: str) -> tuple[list[str], str]:
    """The ends of the first questions of a stream, each behind its uid; a digest of the first 1,000 (of what is held
    out of files: all)."""
    config.max_prompt_tokens = 2000
    config.answer_instruction = ""
    stream = PromptStream(make_source(config, split, SEED), TOKENIZER, config, split)
    shown = []
    digest = hashlib.blake2b(digest_size=8)
    for prompt in stream.take_prompts(NUM):
        task = prompt.payload.get("task", {})
        text = task.get("secret", prompt.messages[-1]["content"])
        shown.append(f"{prompt.uid} {text.rpartition(': ')[2]}")
        digest.update(f"{prompt.uid} {text}\n".encode())
    return shown[:NUM_SHOWN], digest.hexdigest()


def write_files(folder: Path, kind: str) -> dict[str, Any]:
    """300 rows in one format, in two files where it has several; the settings that read them."""
    rows = plain_rows(300)
    if kind == "lines":
        write_jsonl(folder / "a.jsonl", rows[:200])
        write_jsonl(folder / "b.jsonl", rows[200:])
        return {"source": "jsonl", "path": f"{folder}/*.jsonl"}
    if kind == "array":
        (folder / "a.json").write_text(json.dumps(rows))
        return {"source": "jsonl", "path": f"{folder}/a.json"}
    if kind == "parquet":
        write_parquet(folder / "a.parquet", rows[:200], row_group_size=70)
        write_parquet(folder / "b.parquet", rows[200:], row_group_size=70)
        return {"source": "parquet", "path": f"{folder}/*.parquet"}
    write_saved_dataset(folder / "saved", rows, batch_rows=64)
    return {"source": "dataset", "path": f"{folder}/saved"}


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("kind", ["lines", "array", "parquet", "arrow"])
def test_the_rows_of_files_come_as_the_seed_says(tmp_path: Path, kind: str, split: str) -> None:
    assert asked(DataConfig(**write_files(tmp_path, kind)), split) == ROWS[split]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_generated_questions_come_as_the_seed_says(split: str) -> None:
    assert asked(DataConfig(tasks=[SUMS, GCD]), split) == TASKS[split]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_mixture_draws_from_its_domains_as_the_seed_says(tmp_path: Path, split: str) -> None:
    domains = [
        DomainConfig(name="rows", weight=3.0, **write_files(tmp_path, "lines")),
        DomainConfig(name="tasks", tasks=[SUMS, GCD]),
    ]
    assert asked(DataConfig(source="mixture", domains=domains), split) == MIXTURE[split]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_an_environment_draws_its_tasks_as_the_seed_says(split: str) -> None:
    settings = {"length": 3}
    allow_also(environments=[("mastermind", settings)])
    config = DataConfig(source="environment", environment="mastermind", environment_settings=settings)
    assert asked(config, split) == SECRETS[split]


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_an_environment_asks_the_rows_of_files_as_the_seed_says(tmp_path: Path, split: str) -> None:
    allow_also(environments=[("verify_and_retry", {})])
    config = DataConfig(**write_files(tmp_path, "lines"), environment="verify_and_retry")
    assert asked(config, split) == ROWS[split]
