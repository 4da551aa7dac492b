"""The row of tokens that this rank's model reads, laid out from the packed groups of a micro-batch.

Order within a row is free, so it is chosen for the attention (`row_layout.Block`): segments of equal length lie side
by side, and what stands on a shared segment lies together (`segments`).

Under context parallelism a segment that responses share is cut over the ranks, and so is one longer than a fair part of
the row; other segments are given to one rank each, so that their keys and values do not travel. Cut segments
are padded to 2·ranks equal pieces, of which rank r holds r and 2·ranks − 1 − r: an early piece with little to look back
on and a late one. A sampled token counts on the rank that holds the token before it, so sums over the ranks count every
token once. Tokens of observations are read like others, and predicted by none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.policy.rows.packed_rows import (
    HIDDEN,
    Block,
    PackedGroup,
    Packing,
    Response,
    Row,
    RowSettings,
    Sight,
    Span,
)
from nemo_brorl.policy.rows.segments import Segment, build_segments, choose_owners, routes_of_row, runs_of_equals
from nemo_brorl.types import Float32, Int32, Int64


def build_row(
    packed_groups: Sequence[PackedGroup],
    temperature: float,
    settings: RowSettings,
    at_least: int = 1,
) -> Row:
    """Packed groups laid out as a row. It is padded with a document of its own to `at_least` tokens, a multiple of
    `settings.multiple`."""
    segments = build_segments(packed_groups, settings.min_shared_tokens)
    choose_owners(segments, settings.context_size)
    draft = _RowDraft(settings, len(segments))
    # Cut segments come first: `Packing.num_cut` says how many of the row's first tokens travel to other ranks.
    cut = [segment for segment in segments if segment.owner is None]
    for alike in runs_of_equals(cut):
        draft.place_cut(alike)
    mine = [segment for segment in segments if segment.owner == settings.context_rank]
    for alike in runs_of_equals(mine):
        draft.place_whole(alike)
    for segment in segments:
        if segment.owner not in (None, settings.context_rank):
            # What stands on it, or is predicted by it, must find that it is elsewhere.
            segment.rows = np.full(segment.length, -1)
    draft.pad(at_least)
    return draft.finish(segments, temperature)


class _RowDraft:
    """A row being written."""

    def __init__(self, settings: RowSettings, num_segments: int) -> None:
        self.settings = settings
        self.num_segments = num_segments
        self.num_tokens = 0
        self.num_cut = 0
        self.num_context = 0
        self.blocks: list[Block] = []
        self.token_ids: list[Int32] = []
        self.positions: list[Int64] = []
        self.context_ranks: list[Int64] = []  # which rank holds a row of the context ...
        self.context_places: list[Int64] = []  # ... and where among its cut tokens
        self.queries: list[Int64] = []  # [2, tokens]: segment, position
        self.keys: list[Int64] = []  # [3, tokens] of the row: segment, last segment that sees it, position
        self.context_keys: list[Int64] = []  # the same of the context

    def place_whole(self, segments: Sequence[Segment]) -> None:
        """Segments of equal length and parent that are all this rank's."""
        num = len(segments)
        length = segments[0].length
        rows = np.arange(num * length).reshape(num, length)
        rows += self.num_tokens
        for segment, own_rows in zip(segments, rows, strict=True):
            segment.rows = own_rows
            segment.span = Span(int(own_rows[0]), length)
        token_ids = np.stack([segment.token_ids for segment in segments])
        positions = segments[0].first_position + np.arange(length)
        self._add(token_ids, positions, segments, past=None)
        numbers, last_numbers = _numbers(segments)
        keys = [numbers.repeat(length), last_numbers.repeat(length), self.positions[-1]]
        self.keys.append(np.stack(keys))

    def place_cut(self, segments: Sequence[Segment]) -> None:
        """Segments of equal length and parent, of which every rank holds two pieces."""
        num = len(segments)
        length = segments[0].length
        # An early piece looks back on little and a late one on much: one of each gives every rank the same work.
        num_pieces = 2 * self.settings.context_size
        piece_length = -(-length // num_pieces)
        padded = num_pieces * piece_length
        # All pieces have one length, as the gather over ranks needs; nothing sees the padding at the end.
        token_ids = np.zeros((num, padded), np.int32)
        token_ids[:, :length] = [segment.token_ids for segment in segments]
        positions = segments[0].first_position + np.arange(padded)
        rows = np.full((num, padded), -1)
        early_piece = self.settings.context_rank
        for piece in (early_piece, num_pieces - 1 - early_piece):
            start = piece * piece_length
            columns = np.arange(start, start + piece_length)
            own_rows = self.num_tokens + np.arange(num * piece_length)
            rows[:, columns] = own_rows.reshape(num, piece_length)
            # The first piece looks back on nothing. Others see the segment's past in the context, not in the row: most
            # of it lies on other ranks.
            past = None
            if piece > 0:
                past = Span(self.num_context, start, padded)
            piece_ids = token_ids[:, columns]
            self._add(piece_ids, positions[columns], segments, past)
            num_tokens = num * piece_length
            hidden = np.full((3, num_tokens), HIDDEN)  # seen in the context
            self.keys.append(hidden)
        for index, segment in enumerate(segments):
            segment.rows = rows[index, :length]
            first_row = self.num_context + index * padded
            segment.span = Span(first_row, length)
        self._extend_context(piece_length, segments, positions)

    def _extend_context(
        self,
        piece_length: int,
        segments: Sequence[Segment],
        positions: Int64,
    ) -> None:
        """Note where the rows of a cut block come from: early pieces of all its segments, then late pieces, on every
        rank."""
        num = len(segments)
        size = self.settings.context_size
        columns = np.arange(2 * size * piece_length)
        piece = columns // piece_length
        is_late = piece >= size
        ranks = np.where(is_late, 2 * size - 1 - piece, piece)
        # A rank's block holds the early pieces of all segments, then their late pieces, as `place_cut` adds them.
        piece_of_rank = is_late * num + np.arange(num)[:, None]  # [num, columns], counted in the rank's block
        place_in_piece = columns % piece_length
        places = piece_of_rank * piece_length + place_in_piece
        self.context_ranks.append(np.tile(ranks, num))
        self.context_places.append(self.num_cut + places.ravel())
        numbers, last_numbers = _numbers(segments)
        is_padding = columns >= segments[0].length
        seen_until = np.where(is_padding, HIDDEN, last_numbers[:, None])
        keys = [numbers.repeat(len(columns)), seen_until.ravel(), np.tile(positions, num)]
        self.context_keys.append(np.stack(keys))
        self.num_cut += 2 * num * piece_length
        self.num_context += num * len(columns)

    def pad(self, at_least: int) -> None:
        """Fill up with a document that nothing reads."""
        num_missing = max(at_least - self.num_tokens, 0)
        # Rows of one pipeline are first made equally long, and then fit for FP8 and sequence parallelism.
        num_tokens = self.num_tokens + num_missing
        num_missing += -num_tokens % self.settings.multiple
        if num_missing:
            number = self.num_segments
            padding = Segment(np.zeros(num_missing, np.int32), num_missing, number=number, last_number=number)
            self.place_whole([padding])

    def _add(
        self,
        token_ids: Int32,
        positions: Int64,
        segments: Sequence[Segment],
        past: Span | None,
    ) -> None:
        """One block [num, length] of the row, of so many segments. `positions` [length]; `past`: of every segment its
        own tokens before the block."""
        num, length = token_ids.shape
        seen = []
        for ancestor in segments[0].ancestors:
            assert ancestor.span is not None, "what is shared has been placed before what stands on it"
            seen.append(ancestor.span)
        if past is not None:
            seen.append(past)
        self.blocks.append(Block(num, length, tuple(seen)))
        self.token_ids.append(token_ids.ravel())
        self.positions.append(np.tile(positions, num))
        numbers, _ = _numbers(segments)
        queries = [numbers.repeat(length), self.positions[-1]]
        self.queries.append(np.stack(queries))
        self.num_tokens += num * length

    def finish(self, segments: Sequence[Segment], temperature: float) -> Row:
        """The row, of all segments on whatever rank."""
        predicted = _Predicted()
        for segment in segments:
            predicted.add(segment)
        responses = predicted.responses
        response_index = _joined(predicted.response_index, np.int64)
        is_fresh = np.array([response.is_fresh for response in responses], np.bool_)
        score_index = None
        if predicted.has_shared:
            score_index = self._joined(predicted.score_index, np.int64)
        token_ids = self._joined(self.token_ids, np.int64)
        positions = self._joined(self.positions, np.int64)
        routes = routes_of_row(segments, self.num_tokens)
        largest_positions = [int(part.max(initial=-1)) for part in self.positions]
        packing = Packing(
            blocks=tuple(self.blocks),
            positions=positions,
            num_positions=1 + max(largest_positions, default=-1),
            source_rows=self._joined(predicted.source_rows, np.int64),
            targets=self._joined(predicted.targets, np.int64),
            temperature=temperature,
            num_cut=self.num_cut,
            context_order=self._context_order() if self.num_cut else None,
            attention=self.settings.attention,
            routes=None if routes is None else torch.from_numpy(routes),
            sight=self._sight() if self.settings.attention == "flex" else None,
        )
        return Row(
            token_ids=token_ids[None],
            positions=positions[None],
            packing=packing,
            sampled_log_probs=self._joined(predicted.log_probs, np.float32),
            advantages=self._joined(predicted.advantages, np.float32),
            turn_lengths=self._joined(predicted.turn_lengths, np.float32),
            is_fresh=self._tensor(is_fresh[response_index]),
            responses=tuple(responses),
            response_index=response_index,
            token_index=_joined(predicted.token_index, np.int64),
            score_index=score_index,
        )

    def _context_order(self) -> Tensor:
        ranks = np.concatenate(self.context_ranks)
        places = np.concatenate(self.context_places)
        return self._tensor(ranks * self.num_cut + places)

    def _sight(self) -> Sight:
        queries = np.concatenate(self.queries, axis=1)
        keys = np.concatenate([*self.context_keys, *self.keys], axis=1)
        parts = []
        for row in (*queries, *keys):
            parts.append(self._tensor(row.astype(np.int32)))
        return Sight(*parts)

    def _joined(self, parts: Sequence[np.ndarray], dtype: type) -> Tensor:
        return self._tensor(_joined(parts, dtype))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.settings.device)


class _Predicted:
    """The tokens that this rank predicts, u of them, and in which responses each counts, n in all. Arrays are noted
    segment by segment and are joined at the end."""

    def __init__(self) -> None:
        self.responses: list[Response] = []  # in the order in which their tokens come
        self.source_rows: list[Int64] = []  # [u]
        self.targets: list[Int32] = []  # [u]
        self.score_index: list[Int64] = []  # [n] into u
        self.log_probs: list[Float32] = []  # [n] when they were sampled
        self.advantages: list[Float32] = []  # [n]
        self.turn_lengths: list[Int64] = []  # [n]
        self.response_index: list[Int64] = []  # [n]
        self.token_index: list[Int64] = []  # [n] in the response
        self.has_shared = False
        self._num_scores = 0
        self._indices: dict[int, int] = {}  # of the responses, by id()

    def add(self, segment: Segment) -> None:
        """Its tokens, each counted in the responses that have sampled it."""
        if not segment.responses:
            return
        sources = segment.source_rows
        # A token counts where it was sampled, and on the rank that holds the token before it, which predicts it.
        counts = np.stack([segment.part_of(response.counts) for response in segment.responses])
        counts &= sources >= 0
        mine = np.flatnonzero(counts.any(0))
        self.source_rows.append(sources[mine])
        self.targets.append(segment.token_ids[segment.num_given :][mine])
        for response, is_counted in zip(segment.responses, counts[:, mine], strict=True):
            # By identity: two responses may have the same tokens, and a response is in several segments.
            index = self._indices.setdefault(id(response), len(self.responses))
            if index == len(self.responses):
                self.responses.append(response)
            places = segment.first_token + mine[is_counted]
            self.score_index.append(self._num_scores + np.flatnonzero(is_counted))
            self.log_probs.append(response.log_probs[places])
            self.advantages.append(response.token_advantages[places])
            self.turn_lengths.append(response.turn_lengths[response.turns[places]])
            self.response_index.append(np.full(len(places), index))
            self.token_index.append(places)
        self.has_shared |= len(segment.responses) > 1
        self._num_scores += len(mine)


def _numbers(segments: Sequence[Segment]) -> tuple[Int64, Int64]:
    """Numbers [num] of the segments, and the last ones of their subtrees."""
    numbers = [segment.number for segment in segments]
    last_numbers = [segment.last_number for segment in segments]
    return np.array(numbers), np.array(last_numbers)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """The parts end to end, maybe none."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate(parts).astype(dtype)
