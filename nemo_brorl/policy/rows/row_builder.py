"""Build the row of tokens that this rank's model reads from the packed groups of a micro-batch.

The order within a row is free, so it is chosen for the attention (`packed_rows.Block`). Segments of equal length are
adjacent, and segments of one parent are together (`segments`).

Under context parallelism a segment that responses share is cut over the ranks, and so is one that is longer than a fair
part of the row. Other segments are given to one rank each, so that their keys and values need not travel. Cut segments
are padded to 2·ranks equal pieces, of which rank r has pieces r and 2·ranks − 1 − r: an early piece with little past
and a late one with much. A sampled token counts on the rank that has the token before it, so sums over the ranks count
every token once. Observations are read like other tokens, but never predicted.
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
    """Return the row of packed groups for this rank.

    It is padded with a document of its own to at least `at_least` tokens and a multiple of `settings.multiple`.
    """
    segments = build_segments(packed_groups, settings.min_shared_tokens)
    choose_owners(segments, settings.context_size)
    draft = _RowDraft(settings, len(segments))
    # Cut segments come first, because `Packing.num_cut` counts the tokens at the start of the row that travel.
    cut = [segment for segment in segments if segment.owner is None]
    for alike in runs_of_equals(cut):
        draft.place_cut(alike)
    mine = [segment for segment in segments if segment.owner == settings.context_rank]
    for alike in runs_of_equals(mine):
        draft.place_whole(alike)
    for segment in segments:
        if segment.owner not in (None, settings.context_rank):
            # Its branches and predicted tokens must see that it is on another rank.
            segment.rows = np.full(segment.length, -1)
    draft.pad(at_least)
    return draft.finish(segments, temperature)


class _RowDraft:
    """A row of tokens that is being written, block by block."""

    def __init__(self, settings: RowSettings, num_segments: int) -> None:
        self.settings = settings
        self.num_segments = num_segments
        self.num_tokens = 0
        self.num_cut = 0
        self.num_context = 0
        self.blocks: list[Block] = []
        self.token_ids: list[Int32] = []
        self.positions: list[Int64] = []
        self.context_ranks: list[Int64] = []  # rank that holds each row of the context
        self.context_places: list[Int64] = []  # index of each row of the context among its rank's cut tokens
        self.queries: list[Int64] = []  # [2, tokens]: segment and position of each query
        self.keys: list[Int64] = []  # [3, tokens] of the row: segment, last segment that attends to it, position
        self.context_keys: list[Int64] = []  # [3, tokens] of the context, like `keys`

    def place_whole(self, segments: Sequence[Segment]) -> None:
        """Append segments of equal length and parent to the row, as one block that this rank has whole."""
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
        """Append this rank's two pieces of segments to the row, for segments that are cut over context-parallel ranks.

        The segments have equal length and parent.
        """
        num = len(segments)
        length = segments[0].length
        # An early piece has little past and a late one much. One of each gives every rank equal work.
        num_pieces = 2 * self.settings.context_size
        piece_length = -(-length // num_pieces)
        padded = num_pieces * piece_length
        # The gather over ranks needs pieces of one length. No token attends to the padding at the end.
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
            # The first piece has no past. Others attend to the segment's past in the context, because most of it is on
            # other ranks.
            past = None
            if piece > 0:
                past = Span(self.num_context, start, padded)
            piece_ids = token_ids[:, columns]
            self._add(piece_ids, positions[columns], segments, past)
            num_tokens = num * piece_length
            hidden = np.full((3, num_tokens), HIDDEN)  # hidden here, because the context has these keys
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
        """Record the rank and index of every context row of a cut block.

        Every rank has the early pieces of all segments, then the late ones.
        """
        num = len(segments)
        size = self.settings.context_size
        columns = np.arange(2 * size * piece_length)
        piece = columns // piece_length
        is_late = piece >= size
        ranks = np.where(is_late, 2 * size - 1 - piece, piece)
        # `place_cut` appends the early pieces of all segments, then their late pieces.
        piece_of_rank = is_late * num + np.arange(num)[:, None]  # [num, columns], index in the rank's block
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
        """Pad the row with a document that no token attends to."""
        num_missing = max(at_least - self.num_tokens, 0)
        # Rows of one pipeline need one length, then the multiple that FP8 and sequence parallelism need.
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
        """Append one block [num, length] with the tokens of these segments.

        `positions` is [length]. `past` is the span of each segment's own tokens before the block, or None.
        """
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
        """Return the finished row of tokens for this rank. `segments` are those of all ranks."""
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
    """The tokens that this rank predicts, u of them, and the responses that count them, n tokens in all.

    Arrays are collected segment by segment and joined at the end.
    """

    def __init__(self) -> None:
        self.responses: list[Response] = []  # responses in the order of their tokens
        self.source_rows: list[Int64] = []  # [u]
        self.targets: list[Int32] = []  # [u]
        self.score_index: list[Int64] = []  # [n] index into the u predicted tokens
        self.log_probs: list[Float32] = []  # [n] log-probs of the sampler
        self.advantages: list[Float32] = []  # [n]
        self.turn_lengths: list[Int64] = []  # [n]
        self.response_index: list[Int64] = []  # [n]
        self.token_index: list[Int64] = []  # [n] index in the response
        self.has_shared = False
        self._num_scores = 0
        self._indices: dict[int, int] = {}  # index of each response by its id()

    def add(self, segment: Segment) -> None:
        """Record a segment's predicted tokens, once for each response that sampled them."""
        if not segment.responses:
            return
        sources = segment.source_rows
        # A token counts where it was sampled, on the rank that has the token before it.
        counts = np.stack([segment.part_of(response.counts) for response in segment.responses])
        counts &= sources >= 0
        mine = np.flatnonzero(counts.any(0))
        self.source_rows.append(sources[mine])
        self.targets.append(segment.token_ids[segment.num_given :][mine])
        for response, is_counted in zip(segment.responses, counts[:, mine], strict=True):
            # Responses are distinguished by identity: two may have equal tokens, and one is in several segments.
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
    """Return the numbers [num] of segments in their row, and the last numbers of their subtrees."""
    numbers = [segment.number for segment in segments]
    last_numbers = [segment.last_number for segment in segments]
    return np.array(numbers), np.array(last_numbers)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """Return arrays concatenated, or an empty array of `dtype`."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate(parts).astype(dtype)
