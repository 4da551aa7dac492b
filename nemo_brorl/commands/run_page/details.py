"""One group of the rollout store in full: its conversation, the numbers of its rollouts, and responses to read."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nemo_brorl.commands.run_page.responses import bounded, response_part
from nemo_brorl.commands.run_page.runs import settings_of
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.tasks.verifiers.payload import accepted_answers
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.reader import sampled_tokens
from nemo_brorl.types import SUCCESS_REWARD

MAX_SHOWN = 12  # responses of a group that come with it
MAX_REASON = 100  # characters, of a rollout in the group's table
NUMBERS = (
    "place",
    "num_tokens",
    "is_stopped",
    "reward",
    "shaped_reward",
    "advantage",
    "is_trained",
    "repetition",
    "engine",
    "version",
)


Part = dict[str, Any]


def tokenizer_of_run(folder: Path) -> ChatTokenizer | None:
    """The tokenizer that a run's responses were sampled with; None where its model is no longer there."""
    model = settings_of(folder).get("policy.model")
    candidates = [folder / "hf"]
    if model is not None:
        candidates.insert(0, Path(str(model)))
    for candidate in candidates:
        try:
            return load_tokenizer(candidate)
        except BroRLError:
            continue
    return None


def group_details(
    folder: Path,
    step: int,
    row: int,
    tokenizer: ChatTokenizer | None,
) -> Part:
    """The group of a row of a step's table, with up to MAX_SHOWN of its responses. Raises DataError when it is not
    there or cannot be read."""
    group, table = _read(folder, step, row)
    columns: dict[str, list[Any]] = {}
    for name in NUMBERS:
        columns[name] = _numbers(table[name])
    columns["mean_log_prob"] = mean_log_probs(table)
    columns["reason"] = _reasons(table)
    payload = json.loads(group["payload"])
    messages: list[Part] = []
    for message in group["messages"]:
        content = bounded(message["content"])
        messages.append({"role": message["role"], "content": content})
    if not messages and tokenizer is not None:
        prompt = tokenizer.backend.decode(group["prompt_ids"], skip_special_tokens=False)
        messages.append({"role": "prompt", "content": bounded(prompt)})
    shown: dict[str, Part] = {}
    for place in shown_places(columns["reward"]):
        shown[str(place)] = response_part(table, place, tokenizer, group["verifier"], payload)
    return {
        "step": step,
        "row": row,
        "uid": group["uid"],
        "task": group["task"],
        "domain": group["domain"],
        "fate": group["fate"],
        "origin": group["origin"],
        "num_failed": group["num_failed"],
        "verifier": group["verifier"],
        "payload": _texts(payload),
        "expected": _expected(payload),
        "messages": messages,
        "sampling": [group["temperature"], group["top_p"], group["max_tokens"]],
        "version": group["version"],
        "newest_version": group["newest_version"],
        "columns": columns,
        "responses": shown,
    }


def response_details(
    folder: Path,
    step: int,
    row: int,
    place: int,
    tokenizer: ChatTokenizer | None,
) -> Part:
    """One response of a group. Raises DataError as `group_details`."""
    group, table = _read(folder, step, row)
    if not 0 <= place < table.num_rows:
        raise DataError(f"group {row} of step {step} has {table.num_rows} rollouts, there is no rollout {place}")
    return response_part(table, place, tokenizer, group["verifier"], json.loads(group["payload"]))


def shown_places(rewards: Sequence[float], num: int = MAX_SHOWN) -> list[int]:
    """Places of the responses to read: as many right ones as others, spread evenly, ascending."""
    right = [place for place, reward in enumerate(rewards) if reward >= SUCCESS_REWARD]
    other = [place for place, reward in enumerate(rewards) if reward < SUCCESS_REWARD]
    few, many = sorted((right, other), key=len)
    chosen = _spread(few, num // 2)
    chosen += _spread(many, num - len(chosen))
    return sorted(chosen)


def _spread(places: Sequence[int], num: int) -> list[int]:
    if len(places) <= num:
        return list(places)
    return [places[index * len(places) // num] for index in range(num)]


def _read(folder: Path, step: int, row: int) -> tuple[Part, pa.Table]:
    files = StoreFiles(folder)
    try:
        groups = pq.read_table(files.groups(step))
        if not 0 <= row < groups.num_rows:
            raise DataError(f"step {step} has {groups.num_rows} groups, there is no group {row}")
        [group] = groups.slice(row, 1).to_pylist()
        with pq.ParquetFile(files.rollouts(step)) as file:
            return group, file.read_row_group(row)
    except DataError:
        raise
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise DataError(f"step {step} of {files.folder} cannot be read: {error}") from error


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    """Plain numbers, null for NaN."""
    found: list[Any] = []
    for value in column.to_pylist():
        if isinstance(value, float):
            value = round(value, 5) if math.isfinite(value) else None
        found.append(value)
    return found


def _reasons(table: pa.Table) -> list[str]:
    """What the verifier said of every rollout, the beginning of it; none where it said nothing of any."""
    if "reason" not in table.column_names or table["reason"].null_count == table.num_rows:
        return []
    return [(reason or "")[:MAX_REASON] for reason in table["reason"].to_pylist()]


def mean_log_probs(table: pa.Table) -> list[float | None]:
    """Of every rollout, over its sampled tokens."""
    lists = table["log_probs"].combine_chunks()
    values = lists.flatten().to_numpy().astype(np.float64)
    ends = (lists.offsets.to_numpy() - lists.offsets[0].as_py()).tolist()
    mask = sampled_tokens(table) if "is_sampled" in table.column_names else None
    means: list[float | None] = []
    for start, end in pairwise(ends):
        own = values[start:end]
        if mask is not None:
            own = own[mask[start:end]]
        means.append(round(float(own.mean()), 4) if len(own) else None)
    return means


def _expected(payload: Part) -> str | None:
    """The answers that are right, where the payload has them."""
    if payload.get("answer") is None:
        return None
    return bounded(", ".join(accepted_answers(payload)))


def _texts(payload: Part) -> dict[str, str]:
    """Values as bounded text."""
    found: dict[str, str] = {}
    for key, value in payload.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found[key] = bounded(text)
    return found
