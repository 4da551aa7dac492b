"""Read one group of the rollout store in full: its conversation, its rollouts' numbers, and responses to read.

A response comes in pieces, with the log-probs of its tokens and the answer that its verifier reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from brorl_graders import accepted_answers, answers_of, full_mark, lowest_right
from brorl_graders.base.foreign import VAST, open_record

from brorl_lab.page.answers import MAX_CHARACTERS, shorten
from brorl_lab.page.runs import settings_of
from brorl_lab.store_reader import read_payload, read_table, sampled_tokens
from nemo_brorl.core.errors import BroRLError, DataError
from nemo_brorl.core.files import MALFORMED
from nemo_brorl.core.template_files import DECODES
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.training.store.files import StoreFiles

FIRST_TOKENS = 800  # first tokens of a response that is longer than both limits together
LAST_TOKENS = 400
TOKENS = (
    "token_ids",
    "log_probs",
    "is_sampled",  # not in every store
)
TURNS = (  # not in every store
    "turn_rewards",
    "tool_errors",
)
REASON = ("reason",)

Part = dict[str, Any]
Piece = tuple[str, float | None]

DIGITS = 5  # decimals of numbers on the page
MAX_SHOWN = 12  # responses that come with a group
MAX_REASON = 100  # characters of a reason in the group's table
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


class ResponseTokens(NamedTuple):
    """The tokens of one response, [T] each."""

    ids: list[int]
    log_probs: list[float]
    is_sampled: list[bool] | None  # None: all were sampled; otherwise the environment wrote the rest

    def slice_tokens(self, first: int, last: int) -> ResponseTokens:
        """Return the response's tokens from index `first` to before `last`."""
        is_sampled = self.is_sampled
        if is_sampled is not None:
            is_sampled = is_sampled[first:last]
        return ResponseTokens(
            ids=self.ids[first:last],
            log_probs=self.log_probs[first:last],
            is_sampled=is_sampled,
        )

    def values(self) -> list[float | None]:
        """Return the log-probs of a response's tokens, with None for tokens that were not sampled."""
        if self.is_sampled is None:
            return list(self.log_probs)
        values: list[float | None] = []
        for value, is_sampled in zip(self.log_probs, self.is_sampled, strict=True):
            values.append(value if is_sampled else None)
        return values


def tokens_of(table: pa.Table, place: int) -> ResponseTokens:
    """Return the token ids and log-probs of the rollout at row `place` of a group's table."""
    row = _row(table, place, TOKENS)
    return ResponseTokens(
        ids=row["token_ids"],
        log_probs=row["log_probs"],
        is_sampled=row.get("is_sampled"),
    )


def _row(table: pa.Table, place: int, names: Sequence[str]) -> Part:
    """Return a rollout's values in those of the named columns that its group's table has."""
    there = [name for name in names if name in table.column_names]
    columns = table.select(there)
    [row] = columns.slice(place, 1).to_pylist()
    return row


def response_part(
    table: pa.Table,
    place: int,
    tokenizer: ChatTokenizer | None,
    verifier: str,
    payload: Part,
) -> Part:
    """Return a response for the report page as pieces of text with log-probs, and the answer that the verifier reads.

    A piece has the smallest log-prob of its tokens. Without a tokenizer the response is one piece, its text or its
    token ids, without log-probs.
    """
    tokens = tokens_of(table, place)
    if tokenizer is None:
        text = table["text"][place].as_py()
        if text is None:
            text = " ".join(str(token) for token in tokens.ids[:FIRST_TOKENS])
            text = f"(the tokenizer of this run is not there; token ids) {text}"
        return {"pieces": [shorten(text)]}
    num = len(tokens.ids)
    left_out = max(0, num - FIRST_TOKENS - LAST_TOKENS)
    end = FIRST_TOKENS if left_out else num
    pieces = pieces_of(tokenizer, tokens.slice_tokens(0, end))
    cut_at = len(pieces)
    if left_out:
        pieces += pieces_of(tokenizer, tokens.slice_tokens(num - LAST_TOKENS, num))
    return {
        "pieces": [piece for piece, _ in pieces],
        "log_probs": [value for _, value in pieces],
        "left_out": left_out,
        "cut_at": cut_at,
        "answer": _answer(tokenizer.decode(tokens.ids), verifier, payload),
        "turns": _turns(table, place),
        "reason": _row(table, place, REASON).get("reason"),
    }


def _turns(table: pa.Table, place: int) -> list[Part]:
    """Return the rewards of a trajectory's turns, and whether each turn called a tool wrongly.

    The list is empty without an environment.
    """
    row = _row(table, place, TURNS)
    rewards = row.get("turn_rewards")
    if rewards is None:
        return []
    turns: list[Part] = []
    for reward, is_error in zip(rewards, row["tool_errors"], strict=True):
        turn = {
            "reward": reward,
            "is_error": is_error,
        }
        turns.append(turn)
    return turns


def pieces_of(tokenizer: ChatTokenizer, tokens: ResponseTokens) -> list[Piece]:
    """Return the pieces of text that tokens decode to, each with the smallest log-prob of its tokens.

    Special tokens are included. The log-prob is None where no token of the piece was sampled. Tokens that do not form a
    whole character yet belong to the next piece.
    """
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    found: list[Piece] = []
    values: list[float] = []  # log-probs of the unfinished piece
    is_open = False
    for token, value in zip(tokens.ids, tokens.values(), strict=True):
        if value is not None:
            values.append(value)
        piece = stream.step(tokenizer.backend, token)
        is_open = piece is None
        if piece is not None:
            found.append((piece[:MAX_CHARACTERS], _lowest(values)))
            values.clear()
    if is_open:
        found.append(("\ufffd", _lowest(values)))
    return found


def _lowest(values: Sequence[float]) -> float | None:
    return round(min(values), 2) if values else None


def _answer(text: str, verifier: str, payload: Part) -> str | None:
    """Return the answer that the verifier reads in a response, or None when it reads none."""
    answers = answers_of(verifier, payload)
    if answers is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        found = answers.read(text)
    except (ValueError, TypeError, RecursionError, KeyError):
        return None
    return None if found is None else shorten(found)


def tokenizer_of_run(folder: Path) -> ChatTokenizer | None:
    """Return the tokenizer with which a run's responses were sampled, or None when its model no longer exists."""
    model = settings_of(folder).get("policy.model")
    candidates = [folder / "hf"]
    if model is not None:
        candidates.insert(0, Path(str(model)))
    for candidate in candidates:
        try:
            return load_tokenizer(candidate, template=DECODES)
        except BroRLError:
            continue
    return None


def group_details(
    folder: Path,
    step: int,
    row: int,
    tokenizer: ChatTokenizer | None,
) -> Part:
    """Return a group of rollouts for the report page, with up to MAX_SHOWN of its responses.

    `row` is the group's row in the stored table of the step. Raises DataError when the group is missing or cannot be
    read.
    """
    with _stored(folder, step, row) as (group, table):
        columns: dict[str, list[Any]] = {}
        for name in NUMBERS:
            columns[name] = _numbers(table[name])
        columns["mean_log_prob"] = mean_log_probs(table)
        columns["reason"] = _reasons(table)
        payload = read_payload(group["payload"])
        messages: list[Part] = []
        for message in group["messages"]:
            content = shorten(message["content"])
            messages.append({"role": message["role"], "content": content})
        if not messages and tokenizer is not None:
            prompt = tokenizer.backend.decode(group["prompt_ids"], skip_special_tokens=False)
            messages.append({"role": "prompt", "content": shorten(prompt)})
        shown: dict[str, Part] = {}
        # Rounded as the rewards are.
        lowest = round(lowest_right(full_mark(payload)), DIGITS)
        for place in shown_places(columns["reward"], lowest):
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
            "lowest_right": lowest,
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
    """Return one stored response of a group of rollouts for the report page.

    Raises DataError when the response is missing or cannot be read.
    """
    with _stored(folder, step, row) as (group, table):
        if not 0 <= place < table.num_rows:
            raise DataError(f"group {row} of step {step} has {table.num_rows} rollouts, there is no rollout {place}")
        return response_part(table, place, tokenizer, group["verifier"], read_payload(group["payload"]))


def shown_places(rewards: Sequence[float], lowest: float, num: int = MAX_SHOWN) -> list[int]:
    """Return the indices of the responses that the report page shows: as many right as wrong ones, if there are enough.

    The indices are evenly spread and ascending. `lowest` is the lowest reward of a right response.
    """
    right = [place for place, reward in enumerate(rewards) if reward >= lowest]
    other = [place for place, reward in enumerate(rewards) if reward < lowest]
    few, many = sorted((right, other), key=len)
    chosen = _spread(few, num // 2)
    chosen += _spread(many, num - len(chosen))
    return sorted(chosen)


def _spread(places: Sequence[int], num: int) -> list[int]:
    if len(places) <= num:
        return list(places)
    return [places[index * len(places) // num] for index in range(num)]


@contextmanager
def _stored(folder: Path, step: int, row: int) -> Iterator[tuple[Part, pa.Table]]:
    """Yield a stored group and the table of its rollouts. Turns errors of their use into a DataError."""
    files = StoreFiles(folder)
    try:
        groups = read_table(files.groups(step))
        if not 0 <= row < groups.num_rows:
            raise DataError(f"step {step} has {groups.num_rows} groups, there is no group {row}")
        [group] = groups.slice(row, 1).to_pylist()
        with open_record(files.rollouts(step), VAST) as raw, pq.ParquetFile(raw) as file:
            yield group, file.read_row_group(row)
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise DataError(f"step {step} of {files.folder} cannot be read: {error}") from error


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    """Return a table column as rounded numbers, with None for NaN."""
    found: list[Any] = []
    for value in column.to_pylist():
        if isinstance(value, float):
            value = round(value, DIGITS) if math.isfinite(value) else None
        found.append(value)
    return found


def _reasons(table: pa.Table) -> list[str]:
    """Return the start of the verifier's reason for each rollout's reward, or an empty list without reasons."""
    if "reason" not in table.column_names or table["reason"].null_count == table.num_rows:
        return []
    return [(reason or "")[:MAX_REASON] for reason in table["reason"].to_pylist()]


def mean_log_probs(table: pa.Table) -> list[float | None]:
    """Return the mean log-prob of each rollout's sampled tokens."""
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
    """Return the right answers of a prompt as text, or None when its payload has none."""
    if payload.get("answer") is None:
        return None
    return shorten(", ".join(accepted_answers(payload)))


def _texts(payload: Part) -> dict[str, str]:
    """Return the values of a prompt's payload (what its verifier gets) as shortened texts."""
    found: dict[str, str] = {}
    for key, value in payload.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found[key] = shorten(text)
    return found
