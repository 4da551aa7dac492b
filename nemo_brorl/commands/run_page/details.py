"""One group of the rollout store in full: its conversation, the numbers of its rollouts, and responses piece by piece
with the log-probs of their tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nemo_brorl.commands.run_page.runs import settings_of
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.tasks.verifiers.registry import answer_reader
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.types import SUCCESS_REWARD

MAX_SHOWN = 12  # responses of a group that come with it
FIRST_TOKENS = 800  # of a response that is longer than both together
LAST_TOKENS = 400
MAX_CHARACTERS = 20_000  # of a text, a message or a payload's value
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
    columns["mean_log_prob"] = _mean_log_probs(table["log_probs"])
    payload = json.loads(group["payload"])
    messages: list[Part] = []
    for message in group["messages"]:
        content = _bounded(message["content"])
        messages.append({"role": message["role"], "content": content})
    if not messages and tokenizer is not None:
        prompt = tokenizer.backend.decode(group["prompt_ids"], skip_special_tokens=False)
        messages.append({"role": "prompt", "content": _bounded(prompt)})
    shown: dict[str, Part] = {}
    for place in shown_places(columns["reward"]):
        shown[str(place)] = _response(table, place, tokenizer, group["verifier"], payload)
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
    return _response(table, place, tokenizer, group["verifier"], json.loads(group["payload"]))


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
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError(f"step {step} of {files.folder} cannot be read: {error}") from error


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    """Plain numbers, null for NaN."""
    found: list[Any] = []
    for value in column.to_pylist():
        if isinstance(value, float):
            value = round(value, 5) if math.isfinite(value) else None
        found.append(value)
    return found


def _mean_log_probs(column: pa.ChunkedArray) -> list[float | None]:
    found: list[float | None] = []
    for values in column.to_pylist():
        found.append(round(float(np.mean(values)), 4) if values else None)
    return found


def _response(
    table: pa.Table,
    place: int,
    tokenizer: ChatTokenizer | None,
    verifier: str,
    payload: Part,
) -> Part:
    """Text of a response in pieces, each with the smallest log-prob of its tokens, and the answer that its verifier
    reads; without a tokenizer its text, or its token ids, in one piece without log-probs."""
    [token_ids] = table["token_ids"].slice(place, 1).to_pylist()
    [log_probs] = table["log_probs"].slice(place, 1).to_pylist()
    [text] = table["text"].slice(place, 1).to_pylist()
    if tokenizer is None:
        if text is None:
            text = " ".join(str(token) for token in token_ids[:FIRST_TOKENS])
            text = f"(the tokenizer of this run is not there; token ids) {text}"
        return {"pieces": [_bounded(text)], "log_probs": [None], "left_out": 0, "cut_at": None}
    spans = [(token_ids, log_probs)]
    left_out = len(token_ids) - FIRST_TOKENS - LAST_TOKENS
    if left_out > 0:
        spans = [
            (token_ids[:FIRST_TOKENS], log_probs[:FIRST_TOKENS]),
            (token_ids[-LAST_TOKENS:], log_probs[-LAST_TOKENS:]),
        ]
    pieces: list[str] = []
    lowest: list[float | None] = []
    cut_at: int | None = None
    for span_ids, span_log_probs in spans:
        if pieces:
            cut_at = len(pieces)
        for piece, value in pieces_of(tokenizer, span_ids, span_log_probs):
            pieces.append(piece)
            lowest.append(value)
    return {
        "pieces": pieces,
        "log_probs": lowest,
        "left_out": max(0, left_out),
        "cut_at": cut_at,
        "answer": _answer(tokenizer.decode(token_ids), verifier, payload),
    }


def pieces_of(
    tokenizer: ChatTokenizer,
    token_ids: Sequence[int],
    log_probs: Iterable[float],
) -> list[tuple[str, float]]:
    """Pieces of text that tokens stand for, special ones too, with the smallest log-prob of their tokens. Tokens that
    are no whole character yet belong to the next piece."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    found: list[tuple[str, float]] = []
    lowest = 0.0
    is_open = False
    for token, log_prob in zip(token_ids, log_probs, strict=True):
        lowest = min(lowest, log_prob)
        piece = stream.step(tokenizer.backend, token)
        is_open = piece is None
        if piece is not None:
            found.append((piece[:MAX_CHARACTERS], round(lowest, 2)))
            lowest = 0.0
    if is_open:
        found.append(("\ufffd", round(lowest, 2)))
    return found


def _answer(text: str, verifier: str, payload: Part) -> str | None:
    """What the verifier takes for the answer of a response; None where there is none, or it knows of none."""
    read = answer_reader(verifier, payload)
    if read is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        found = read(payload, text)
    except (ValueError, TypeError, RecursionError, KeyError):
        return None
    return None if found is None else _bounded(found)


def _texts(payload: Part) -> dict[str, str]:
    """Values as bounded text."""
    found: dict[str, str] = {}
    for key, value in payload.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found[key] = _bounded(text)
    return found


def _bounded(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}… ({len(text) - MAX_CHARACTERS:,} more characters)"
