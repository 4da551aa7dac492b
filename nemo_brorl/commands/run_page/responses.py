"""One response of the rollout store: its text piece by piece, with the log-probs of its tokens, and the answer that its
verifier reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.tasks.verifiers.registry import answer_reader

FIRST_TOKENS = 800  # of a response that is longer than both together
LAST_TOKENS = 400
MAX_CHARACTERS = 20_000  # of a text, a message or a payload's value
TOKENS = (
    "token_ids",
    "log_probs",
    "is_sampled",  # not in every store
)
TURNS = (  # likewise
    "turn_rewards",
    "tool_errors",
)
REASON = ("reason",)

Part = dict[str, Any]
Piece = tuple[str, float | None]


class Tokens(NamedTuple):
    """Tokens of a rollout, [T] each."""

    ids: list[int]
    log_probs: list[float]
    is_sampled: list[bool] | None  # None: all were; else an environment said the others

    def part(self, first: int, last: int) -> Tokens:
        """Tokens from `first` to before `last`."""
        is_sampled = self.is_sampled
        if is_sampled is not None:
            is_sampled = is_sampled[first:last]
        return Tokens(
            ids=self.ids[first:last],
            log_probs=self.log_probs[first:last],
            is_sampled=is_sampled,
        )

    def values(self) -> list[float | None]:
        """Log-probs of sampled tokens, None for others."""
        if self.is_sampled is None:
            return list(self.log_probs)
        values: list[float | None] = []
        for value, is_sampled in zip(self.log_probs, self.is_sampled, strict=True):
            values.append(value if is_sampled else None)
        return values


def tokens_of(table: pa.Table, place: int) -> Tokens:
    """Tokens of a rollout of a group's table."""
    row = _row(table, place, TOKENS)
    return Tokens(
        ids=row["token_ids"],
        log_probs=row["log_probs"],
        is_sampled=row.get("is_sampled"),
    )


def _row(table: pa.Table, place: int, names: Sequence[str]) -> Part:
    """One row's values of those of these columns that there are."""
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
    """Text of a response in pieces, each with the smallest log-prob of its tokens, and the answer that its verifier
    reads; without a tokenizer its text, or its token ids, in one piece without log-probs."""
    tokens = tokens_of(table, place)
    if tokenizer is None:
        text = table["text"][place].as_py()
        if text is None:
            text = " ".join(str(token) for token in tokens.ids[:FIRST_TOKENS])
            text = f"(the tokenizer of this run is not there; token ids) {text}"
        return {"pieces": [bounded(text)]}
    num = len(tokens.ids)
    left_out = max(0, num - FIRST_TOKENS - LAST_TOKENS)
    end = FIRST_TOKENS if left_out else num
    pieces = pieces_of(tokenizer, tokens.part(0, end))
    cut_at = len(pieces)
    if left_out:
        pieces += pieces_of(tokenizer, tokens.part(num - LAST_TOKENS, num))
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
    """Rewards of a trajectory's turns, and whether a tool was called wrongly; none without an environment."""
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


def pieces_of(tokenizer: ChatTokenizer, tokens: Tokens) -> list[Piece]:
    """Pieces of text that tokens stand for, special ones too, with the smallest log-prob of their tokens, None where
    none was sampled. Tokens that are no whole character yet belong to the next piece."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    found: list[Piece] = []
    values: list[float] = []  # of the piece under way
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
    """What the verifier takes for the answer of a response; None where there is none, or it knows of none."""
    read = answer_reader(verifier, payload)
    if read is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        found = read(payload, text)
    except (ValueError, TypeError, RecursionError, KeyError):
        return None
    return None if found is None else bounded(found)


def bounded(text: str) -> str:
    """The text, without what is too long of it to be read."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}… ({len(text) - MAX_CHARACTERS:,} more characters)"
