"""Lays the segments of a micro-batch out as the row of tokens that this rank's model reads.

Order within a row is free, so it is chosen for the attention (`row_layout.Block`): stretches of equal length lie side
by side. A stretch is a prompt, a response, or a document: the only response of its segment, end to end with its prompt.

Under context parallelism a prompt that responses share is cut over the ranks, and so is a stretch longer than a fair
part of the row; other stretches are given to one rank each, so that their keys and values do not travel. Cut stretches
are padded to 2·ranks equal pieces, of which rank r holds r and 2·ranks − 1 − r: an early piece with little to look back
on and a late one. A response token counts on the rank that holds the token before it, so sums over the ranks count
every token once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.policy.rows.packed_rows import PackedSegment, Response, Row
from nemo_brorl.policy.rows.row_layout import HIDDEN, Block, Packing, Sight, Span
from nemo_brorl.types import Int32, Int64

# a stretch stays whole if a rank's share of the row holds this many of its length: they spread evenly then
_WHOLE_PER_RANK = 4


@dataclass(frozen=True)
class RowSettings:
    """What the rows of one rank have in common."""

    device: torch.device
    multiple: int = 1  # the number of tokens is one of it
    context_rank: int = 0
    context_size: int = 1
    with_sight: bool = False  # for backends that take a mask


@dataclass(eq=False)
class _Stretch:
    """Tokens that attend to each other. Placing it fills the last three fields."""

    token_ids: Int32
    num_given: int  # tokens at its start that are not predicted
    response: Response | None = None
    prompt: _Stretch | None = None  # shared with other stretches
    owner: int | None = 0  # context-parallel rank, None: cut over all
    number: int = -1
    span: Span | None = None  # its rows in the context, of a prompt
    rows: Int64 = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # of its tokens in this rank's row, -1: on another rank

    @property
    def first_position(self) -> int:
        return 0 if self.prompt is None else len(self.prompt.token_ids)


def build_row(segments: Sequence[PackedSegment], temperature: float, settings: RowSettings, at_least: int = 1) -> Row:
    """Lay segments out. The row is padded with a document of its own to `at_least` tokens, a multiple of
    `settings.multiple`."""
    stretches = _stretches_of(segments)
    _choose_owners(stretches, settings.context_size)
    draft = _Draft(settings)
    cut, whole = ([s for s in stretches if (s.owner is None) == is_cut] for is_cut in (True, False))
    for same in _equal(cut):
        draft.place_cut(same)
    for same in _equal([stretch for stretch in whole if stretch.owner == settings.context_rank]):
        draft.place_whole(same)
    for stretch in whole:
        if stretch.owner != settings.context_rank:
            stretch.rows = np.full(len(stretch.token_ids), -1)
    draft.pad(at_least)
    return draft.finish([stretch for stretch in stretches if stretch.response], temperature)


def _stretches_of(segments: Sequence[PackedSegment]) -> list[_Stretch]:
    """Documents by length, then every shared prompt followed by its responses by length. Empty responses take no
    place."""
    documents: list[_Stretch] = []
    shared: list[_Stretch] = []
    for segment in segments:
        prompt_ids = segment.prompt_ids
        assert len(prompt_ids), "a prompt has at least one token: nothing else predicts the first response token"
        responses = sorted((r for r in segment.responses if len(r.token_ids)), key=lambda r: len(r.token_ids))
        if len(responses) == 1:
            token_ids = np.concatenate([prompt_ids, responses[0].token_ids])
            documents.append(_Stretch(token_ids, len(prompt_ids), responses[0]))
        elif responses:
            prompt = _Stretch(prompt_ids, len(prompt_ids))
            shared += [prompt, *(_Stretch(response.token_ids, 0, response, prompt) for response in responses)]
    return sorted(documents, key=lambda document: len(document.token_ids)) + shared


def _choose_owners(stretches: Sequence[_Stretch], context_size: int) -> None:
    """Longest first, each to the rank with the fewest tokens so far. All ranks choose alike."""
    if context_size == 1:
        return
    longest = sum(len(stretch.token_ids) for stretch in stretches) // (context_size * _WHOLE_PER_RANK)
    loads = [(0, rank) for rank in range(context_size)]
    for stretch in sorted(stretches, key=lambda stretch: -len(stretch.token_ids)):
        if stretch.response is None or len(stretch.token_ids) > longest:
            stretch.owner = None
            continue
        load, stretch.owner = loads[0]
        heapq.heapreplace(loads, (load + len(stretch.token_ids), stretch.owner))


def _equal(stretches: Sequence[_Stretch]) -> Iterable[list[_Stretch]]:
    """Neighbours of equal length and prompt."""
    return (
        list(same) for _, same in groupby(stretches, key=lambda stretch: (len(stretch.token_ids), id(stretch.prompt)))
    )


class _Draft:
    """A row being written."""

    def __init__(self, settings: RowSettings) -> None:
        self.settings = settings
        self.num_tokens = self.num_cut = self.num_context = self.num_stretches = 0
        self.blocks: list[Block] = []
        self.token_ids: list[Int32] = []
        self.positions: list[Int64] = []
        self.owners: list[Int64] = []  # of the context: which rank holds a row ...
        self.places: list[Int64] = []  # ... and where among its cut tokens
        self.queries: list[Int64] = []  # [3, tokens]: stretch, prompt's stretch, position
        self.keys: list[Int64] = []  # [2, tokens] of the row: stretch, position
        self.context_keys: list[Int64] = []  # the same of the context

    def place_whole(self, stretches: Sequence[_Stretch]) -> None:
        """Stretches of equal length and prompt that are all this rank's."""
        num, length = len(stretches), len(stretches[0].token_ids)
        prompt, first = stretches[0].prompt, stretches[0].first_position
        rows = self.num_tokens + np.arange(num * length).reshape(num, length)
        numbers = self._number(stretches)
        for stretch, own_rows in zip(stretches, rows, strict=True):
            stretch.rows, stretch.span = own_rows, Span(int(own_rows[0]), length)
        self._add(np.stack([s.token_ids for s in stretches]), first + np.arange(length), numbers, prompt, ())
        self.keys.append(np.stack([numbers.repeat(length), self.positions[-1]]))

    def place_cut(self, stretches: Sequence[_Stretch]) -> None:
        """Stretches of equal length and prompt, of which every rank holds two pieces."""
        num, length = len(stretches), len(stretches[0].token_ids)
        prompt, first, size = stretches[0].prompt, stretches[0].first_position, self.settings.context_size
        piece_length = -(-length // (2 * size))
        padded = 2 * size * piece_length
        token_ids = np.zeros((num, padded), np.int32)
        token_ids[:, :length] = [stretch.token_ids for stretch in stretches]
        rows = np.full((num, padded), -1)
        numbers = self._number(stretches)
        for piece in (self.settings.context_rank, 2 * size - 1 - self.settings.context_rank):
            columns = np.arange(piece * piece_length, (piece + 1) * piece_length)
            rows[:, columns] = self.num_tokens + np.arange(num * piece_length).reshape(num, piece_length)
            past = (Span(self.num_context, piece * piece_length, padded),) if piece else ()
            self._add(token_ids[:, columns], first + columns, numbers, prompt, past)
            self.keys.append(np.full((2, num * piece_length), HIDDEN))  # seen in the context
        for index, stretch in enumerate(stretches):
            stretch.rows, stretch.span = rows[index, :length], Span(self.num_context + index * padded, length)
        self._extend_context(num, piece_length, numbers, first, length)

    def _extend_context(self, num: int, piece_length: int, numbers: Int64, first: int, length: int) -> None:
        """Note where the rows of a cut block come from: early pieces of all its stretches, then late pieces, on every
        rank."""
        size = self.settings.context_size
        columns = np.arange(2 * size * piece_length)
        piece = columns // piece_length
        is_late = piece >= size
        place = (is_late * num + np.arange(num)[:, None]) * piece_length + columns % piece_length
        self.owners.append(np.tile(np.where(is_late, 2 * size - 1 - piece, piece), num))
        self.places.append(self.num_cut + place.ravel())
        self.context_keys.append(
            np.stack([np.where(columns < length, numbers[:, None], HIDDEN).ravel(), np.tile(first + columns, num)])
        )
        self.num_cut += 2 * num * piece_length
        self.num_context += num * len(columns)

    def pad(self, at_least: int) -> None:
        """Fill up with a document that nothing reads."""
        missing = max(at_least - self.num_tokens, 0)
        missing += -(self.num_tokens + missing) % self.settings.multiple
        if missing:
            self.place_whole([_Stretch(np.zeros(missing, np.int32), missing)])

    def _number(self, stretches: Sequence[_Stretch]) -> Int64:
        numbers = np.arange(self.num_stretches, self.num_stretches + len(stretches))
        for number, stretch in zip(numbers.tolist(), stretches, strict=True):
            stretch.number = number
        self.num_stretches += len(stretches)
        return numbers

    def _add(
        self, token_ids: Int32, positions: Int64, numbers: Int64, prompt: _Stretch | None, past: tuple[Span, ...]
    ) -> None:
        """One block [num, length] of the row."""
        num, length = token_ids.shape
        sees = past if prompt is None or prompt.span is None else (prompt.span, *past)
        self.blocks.append(Block(num, length, sees))
        self.token_ids.append(token_ids.ravel())
        self.positions.append(np.tile(positions, num))
        prompt_numbers = np.full(num * length, -1 if prompt is None else prompt.number)
        self.queries.append(np.stack([numbers.repeat(length), prompt_numbers, self.positions[-1]]))
        self.num_tokens += num * length

    def finish(self, predicted: Sequence[_Stretch], temperature: float) -> Row:
        """The row; `predicted` are the stretches with a response, on whatever rank."""
        device = self.settings.device
        sources = [_sources(stretch) for stretch in predicted]
        mine = [np.flatnonzero(rows >= 0) for rows in sources]
        responses = tuple(stretch.response for stretch in predicted if stretch.response)
        index = np.repeat(np.arange(len(mine)), [len(part) for part in mine])
        positions = _to_tensor(self.positions, np.int64, device)
        packing = Packing(
            blocks=tuple(self.blocks),
            positions=positions,
            source_rows=_to_tensor(_pick(sources, mine), np.int64, device),
            targets=_to_tensor(_pick([response.token_ids for response in responses], mine), np.int64, device),
            temperature=temperature,
            num_cut=self.num_cut,
            context_order=self._context_order() if self.num_cut else None,
            sight=self._sight() if self.settings.with_sight else None,
        )
        return Row(
            token_ids=_to_tensor(self.token_ids, np.int64, device)[None],
            positions=positions[None],
            packing=packing,
            sampled_log_probs=_to_tensor(
                _pick([response.log_probs for response in responses], mine), np.float32, device
            ),
            advantages=_to_tensor(
                [np.array([response.advantage for response in responses])[index]], np.float32, device
            ),
            is_fresh=_to_tensor([np.array([response.is_fresh for response in responses])[index]], np.bool_, device),
            responses=responses,
            response_index=index,
            token_index=np.concatenate(mine) if mine else index,
        )

    def _context_order(self) -> Tensor:
        order = np.concatenate(self.owners) * self.num_cut + np.concatenate(self.places)
        return _to_tensor([order], np.int64, self.settings.device)

    def _sight(self) -> Sight:
        queries, keys = np.concatenate(self.queries, 1), np.concatenate([*self.context_keys, *self.keys], 1)
        return Sight(*(_to_tensor([part], np.int32, self.settings.device) for part in (*queries, *keys)))


def _sources(stretch: _Stretch) -> Int64:
    """The rows that predict a stretch's response tokens, -1 on other ranks: always the token before."""
    if stretch.prompt is None:
        return stretch.rows[stretch.num_given - 1 : -1]
    return np.concatenate([stretch.prompt.rows[-1:], stretch.rows[:-1]])


def _pick(arrays: Sequence[np.ndarray], indices: Sequence[Int64]) -> list[np.ndarray]:
    return [array[index] for array, index in zip(arrays, indices, strict=True)]


def _to_tensor(parts: Sequence[np.ndarray], dtype: type, device: torch.device) -> Tensor:
    whole = np.concatenate(parts) if parts else np.empty(0)
    return torch.from_numpy(whole.astype(dtype)).to(device)
