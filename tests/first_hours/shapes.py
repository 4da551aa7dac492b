"""Ten shapes of data, five tokenizers and four reward functions, as newcomers bring them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.odd_tokenizers import (
    added_decoder,
    byte_bpe,
    own_names,
    padding,
    special_tags,
    tokens_map,
    write_odd,
)
from tests.unit.prompts.files import write_jsonl, write_parquet

NUM_ROWS = 8
Row = dict[str, Any]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# What a row looks like, from its question and its answer.
ROWS: dict[str, Callable[[str, str], Row]] = {
    "plain.jsonl": lambda asked, right: {"prompt": asked, "answer": right},
    "gsm8k.jsonl": lambda asked, right: {"question": asked, "answer": f"We add.\n#### {right}"},
    "dapo.parquet": lambda asked, right: {"prompt": user(asked), "reward_model": {"ground_truth": right}},
    "openmath.jsonl": lambda asked, right: {"problem": asked, "generated_solution": "…", "expected_answer": right},
    "numina.jsonl": lambda asked, right: {"problem": asked, "solution": rf"So \boxed{{{right}}}."},
    "aime.csv": lambda asked, right: {"ID": asked, "Problem": asked, "Answer": right},
    "semicolons.csv": lambda asked, right: {"Prompt": asked, "Answer": right},
    "talks.jsonl": lambda asked, right: {"messages": [*user(asked), {"role": "assistant", "content": right}]},
    "sharegpt.json": lambda asked, right: {
        "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": f"The answer is {right}."}]
    },
    "options.jsonl": lambda asked, right: {"question": asked, "choices": [right, "7", "-1"], "answer": right},
}


TOKENIZERS = (
    (byte_bpe, padding),
    (byte_bpe, special_tags),
    (byte_bpe, added_decoder),
    (byte_bpe, own_names),
    (byte_bpe, tokens_map),
)

# A module of reward functions, which all pay 1 for the answer in the response.
REWARDS = """
def pays(right, text):
    return float(str(right) in text)


def ours(payload, response):
    return pays(payload["answer"], response), "looked for it"


def trl(completions, answer, **columns):
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [pays(right, text) for text, right in zip(texts, answer)]


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": pays(ground_truth, solution_str)}


async def waits(payload, response):
    return [pays(payload["answer"], response)]
"""
SIGNATURES = ("ours", "trl", "verl", "waits")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "vocab_size": 640,
}


def write_data(folder: Path, name: str) -> Path:
    """Write a file of one shape, whose questions are 0 + 42?, 1 + 42? and so on."""
    rows = [ROWS[name](f"{number} + 42?", str(number + 42)) for number in range(NUM_ROWS)]
    path = folder / name
    if path.suffix == ".parquet":
        return write_parquet(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
        return path
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=";" if name.startswith("semi") else ",")
            writer.writeheader()
            writer.writerows(rows)
        return path
    return write_jsonl(path, rows)


def write_tokenizer(folder: Path, index: int) -> Path:
    """Write a model folder without weights, with one of the tokenizers."""
    kind, oddity = TOKENIZERS[index]
    write_odd(folder, oddity, kind)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    return folder
