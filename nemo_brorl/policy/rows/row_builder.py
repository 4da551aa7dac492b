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
from nemo_brorl.policy.rows.segments import (
    Segment,
    build_segments,
    choose_owners,
    number_segments,
    routes_of_row,
    runs_of_equals,
)
from nemo_brorl.types import Bool, Float32, Int32, Int64


def build_row(
    packed_groups: Sequence[PackedGroup],
    temperature: float,
    settings: RowSettings,
    at_least: int = 1,
) -> Row:
    """Return the row of tokens that this policy rank reads for the prompts and responses of a micro-batch.

    A separate document pads the row to at least `at_least` tokens and a multiple of `settings.multiple`.
    """
    segments = build_segments(packed_groups, settings.min_shared_tokens)
    choose_owners(segments, settings.context_size)
    if settings.attention == "flex":
        number_segments(segments)
    draft = _RowDraft(settings, len(segments))
    # Cut segments come first, because `Packing.num_cut` counts the tokens at the start of the row that travel.
    cut = [segment for segment in segments if segment.owner is None]
    for alike in runs_of_equals(cut):
        draft.place_cut(alike)
    mine = [segment for segment in segments if segment.owner == settings.context_rank]
    draft.place_whole(mine)
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
        self.notes_sight = settings.attention == "flex"  # the only backend that reads `Packing.sight`
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
        """Append to the packed row the prefix-tree segments that this context-parallel rank has whole, end to end.

        Adjacent segments of equal length and with the same parent in the prefix tree become one block of the attention.
        """
        if not segments:
            return
        lengths = np.array([segment.length for segment in segments])
        ends = lengths.cumsum()
        starts = ends - lengths
        num_tokens = int(ends[-1])
        rows = self.num_tokens + np.arange(num_tokens)
        for segment, start, end in zip(segments, starts.tolist(), ends.tolist(), strict=True):
            segment.rows = rows[start:end]
            # Other segments attend only to those with branches. Spans for all responses would take time.
            if segment.children:
                segment.span = Span(self.num_tokens + start, end - start)
        first_positions: list[int] = []
        for alike in runs_of_equals(segments):
            self.blocks.append(Block(len(alike), alike[0].length, _seen(alike[0])))
            first_positions += [alike[0].first_position] * len(alike)
        positions = np.arange(num_tokens) + (first_positions - starts).repeat(lengths)
        self._add(np.concatenate([segment.token_ids for segment in segments]), positions)
        if self.notes_sight:
            numbers, last_numbers = _numbers(segments)
            self.queries.append(np.stack([numbers.repeat(lengths), positions]))
            self.keys.append(np.stack([numbers.repeat(lengths), last_numbers.repeat(lengths), positions]))

    def place_cut(self, segments: Sequence[Segment]) -> None:
        """Append to the packed row this rank's two pieces of each segment that is split over context-parallel ranks.

        The segments are runs of tokens in the prefix tree of a group's responses. They have equal length and the same
        parent in the tree.
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
            seen = _seen(segments[0])
            if piece > 0:
                seen = (*seen, Span(self.num_context, start, padded))
            self.blocks.append(Block(num, piece_length, seen))
            self._add(token_ids[:, columns].ravel(), np.tile(positions[columns], num))
            if self.notes_sight:
                numbers, _ = _numbers(segments)
                self.queries.append(np.stack([numbers.repeat(piece_length), self.positions[-1]]))
                hidden = np.full((3, num * piece_length), HIDDEN)  # seen in the context
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
        """Record which context-parallel rank holds each token of split segments, and the token's index on that rank.

        Segments are runs of tokens in a prefix tree of responses. Every rank has an early and a late piece of each:
        first the early pieces of all segments, then the late pieces.
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
        if self.notes_sight:
            numbers, last_numbers = _numbers(segments)
            is_padding = columns >= segments[0].length
            seen_until = np.where(is_padding, HIDDEN, last_numbers[:, None])
            keys = [numbers.repeat(len(columns)), seen_until.ravel(), np.tile(positions, num)]
            self.context_keys.append(np.stack(keys))
        self.num_cut += 2 * num * piece_length
        self.num_context += num * len(columns)

    def pad(self, at_least: int) -> None:
        """Pad the packed row by a document that no other token attends to.

        The row then has at least `at_least` tokens, and a multiple of `settings.multiple`.
        """
        num_missing = max(at_least - self.num_tokens, 0)
        # Rows of one pipeline need one length, then the multiple that FP8 and sequence parallelism need.
        num_tokens = self.num_tokens + num_missing
        num_missing += -num_tokens % self.settings.multiple
        if num_missing:
            number = self.num_segments
            padding = Segment(np.zeros(num_missing, np.int32), num_missing, number=number, last_number=number)
            self.place_whole([padding])

    def _add(self, token_ids: Int32, positions: Int64) -> None:
        self.token_ids.append(token_ids)
        self.positions.append(positions)
        self.num_tokens += len(token_ids)

    def finish(self, segments: Sequence[Segment], temperature: float) -> Row:
        """Return the finished row of tokens for this context-parallel rank.

        `segments` are the prefix-tree segments of the micro-batch's responses, also those that other ranks have.
        """
        predicted = _Predicted(segments)
        responses = predicted.responses
        is_fresh = np.array([response.is_fresh for response in responses], np.bool_)
        measured = [index for index, response in enumerate(responses) if response.is_measured]
        token_ids = self._joined(self.token_ids, np.int64)
        positions = self._joined(self.positions, np.int64)
        routes = routes_of_row(segments, self.num_tokens)
        packing = Packing(
            blocks=tuple(self.blocks),
            positions=positions,
            num_positions=1 + max(int(part.max()) for part in self.positions),
            source_rows=self._tensor(predicted.source_rows, np.int64),
            targets=self._tensor(predicted.targets, np.int64),
            temperature=temperature,
            num_cut=self.num_cut,
            context_order=self._context_order() if self.num_cut else None,
            attention=self.settings.attention,
            routes=None if routes is None else torch.from_numpy(routes),
            sight=self._sight() if self.notes_sight else None,
        )
        return Row(
            token_ids=token_ids[None],
            positions=positions[None],
            packing=packing,
            sampled_log_probs=self._tensor(predicted.log_probs, np.float32),
            advantages=self._tensor(predicted.advantages, np.float32),
            turn_lengths=self._tensor(predicted.turn_lengths, np.float32),
            is_fresh=self._tensor(is_fresh[predicted.response_index], np.bool_),
            responses=tuple(responses),
            response_index=predicted.response_index,
            token_index=predicted.token_index,
            response_of=self._tensor(predicted.response_index, np.int64),
            response_lengths=self._tensor([response.num_sampled for response in responses], np.float32),
            num_turns=self._tensor([response.num_turns for response in responses], np.float32),
            measured=self._tensor(measured, np.int64),
            score_index=self._tensor(predicted.score_index, np.int64) if predicted.has_shared else None,
        )

    def _context_order(self) -> Tensor:
        ranks = np.concatenate(self.context_ranks)
        places = np.concatenate(self.context_places)
        return self._tensor(ranks * self.num_cut + places, np.int64)

    def _sight(self) -> Sight:
        queries = np.concatenate(self.queries, axis=1)
        keys = np.concatenate([*self.context_keys, *self.keys], axis=1)
        parts = []
        for row in (*queries, *keys):
            parts.append(self._tensor(row, np.int32))
        return Sight(*parts)

    def _joined(self, parts: Sequence[np.ndarray], dtype: type) -> Tensor:
        return self._tensor(_joined(parts, dtype), dtype)

    def _tensor(self, values: np.ndarray | Sequence[float], dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype)).to(self.settings.device)


class _Predicted:
    """The tokens that this rank predicts, u of them, and the responses that count them, n tokens in all.

    Every array is made for all segments at once. Small arrays for every response would take most of the time of a row.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        segments = [segment for segment in segments if segment.responses]
        pairs: list[tuple[Segment, Response]] = []
        for segment in segments:
            pairs += [(segment, response) for response in segment.responses]
        # Responses are distinguished by identity: two may have equal tokens, and one is in several segments.
        self.responses = list({id(response): response for _, response in pairs}.values())
        self.has_shared = len(pairs) > len(segments)
        lengths = np.array([segment.num_predicted for segment in segments], np.int64)
        starts = lengths.cumsum() - lengths
        sources = _source_rows(segments, starts)
        targets = _joined([segment.token_ids[segment.num_given :] for segment in segments], np.int32)
        # `columns` numbers the tokens of all pairs, end to end. `tokens` is the index of each in its segments' tokens.
        pair_sizes = np.array([len(segment.responses) for segment in segments], np.int64)
        pair_lengths = lengths.repeat(pair_sizes)
        pair_starts = pair_lengths.cumsum() - pair_lengths
        columns = np.arange(pair_lengths.sum())
        tokens = columns + (starts.repeat(pair_sizes) - pair_starts).repeat(pair_lengths)
        # A token counts where it was sampled, on the rank that has the token before it.
        values = _ResponseValues(pairs, pair_lengths)
        is_counted = values.is_sampled & (sources >= 0)[tokens]
        is_predicted = np.zeros(len(sources), bool)
        is_predicted[tokens[is_counted]] = True
        self.source_rows = sources[is_predicted]  # [u]
        self.targets = targets[is_predicted]  # [u]
        score_numbers = is_predicted.cumsum() - 1
        self.score_index = score_numbers[tokens[is_counted]]  # [n] index into the u predicted tokens
        self.log_probs = values.log_probs[is_counted]  # [n] log-probs of the sampler
        self.advantages = values.advantages[is_counted]  # [n]
        self.turn_lengths = values.turn_lengths[is_counted]  # [n]
        indices = {id(response): index for index, response in enumerate(self.responses)}
        pair_responses = np.array([indices[id(response)] for _, response in pairs], np.int64)
        self.response_index = pair_responses.repeat(pair_lengths)[is_counted]  # [n] index into `responses`
        first_tokens = np.array([segment.first_token for segment in segments], np.int64)
        token_index = columns + (first_tokens.repeat(pair_sizes) - pair_starts).repeat(pair_lengths)
        self.token_index = token_index[is_counted]  # [n] index in the response


class _ResponseValues:
    """What the responses know of their tokens, for pairs of a segment and one of its responses, end to end.

    `lengths` [pairs] are the predicted tokens of each pair's segment.
    """

    def __init__(self, pairs: Sequence[tuple[Segment, Response]], lengths: Int64) -> None:
        self.log_probs = _joined([segment.part_of(response.log_probs) for segment, response in pairs], np.float32)
        if all(response.is_plain for _, response in pairs):
            self.is_sampled = np.ones(len(self.log_probs), bool)
            self.advantages = np.array([response.advantage for _, response in pairs], np.float32).repeat(lengths)
            self.turn_lengths = np.array([len(response.token_ids) for _, response in pairs], np.int64).repeat(lengths)
            return
        counts: list[Bool] = []
        advantages: list[Float32] = []
        turn_lengths: list[Int64] = []
        for segment, response in pairs:
            counts.append(segment.part_of(response.counts))
            advantages.append(segment.part_of(response.token_advantages))
            turn_lengths.append(response.turn_lengths[segment.part_of(response.turns)])
        self.is_sampled = _joined(counts, np.bool_)
        self.advantages = _joined(advantages, np.float32)
        self.turn_lengths = _joined(turn_lengths, np.int64)


def _source_rows(segments: Sequence[Segment], starts: Int64) -> Int64:
    """Return for every predicted token the row index of the token before it, or -1 if another rank has that token.

    `segments` are runs of tokens in a prefix tree of responses. `starts` [segments] are the indices of their first
    predicted tokens in the result.
    """
    rows = _joined([segment.rows[segment.num_given :] for segment in segments], np.int64)
    sources = np.empty_like(rows)
    sources[1:] = rows[:-1]
    sources[starts] = [segment.row_before for segment in segments]
    return sources


def _seen(segment: Segment) -> tuple[Span, ...]:
    spans = []
    for ancestor in segment.ancestors:
        assert ancestor.span is not None, "what is shared has been placed before what stands on it"
        spans.append(ancestor.span)
    return tuple(spans)


def _numbers(segments: Sequence[Segment]) -> tuple[Int64, Int64]:
    """Return each prefix-tree segment's number in the row of tokens, and the last number in the segment's subtree."""
    numbers = [segment.number for segment in segments]
    last_numbers = [segment.last_number for segment in segments]
    return np.array(numbers), np.array(last_numbers)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """Return the concatenation of arrays, or an empty array of `dtype` if there are no arrays."""
    if not parts:
        return np.empty(0, dtype)
    return np.concatenate(parts).astype(dtype, copy=False)
