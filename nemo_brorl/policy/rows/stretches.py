"""Stretches of a row: tokens that attend to each other, and the context-parallel rank each belongs to."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from nemo_brorl.policy.rows.packed_rows import PackedSegment, Response
from nemo_brorl.policy.rows.row_layout import Span
from nemo_brorl.types import Int32, Int64

# a stretch stays whole if a rank's share of the row holds this many of its length: they spread evenly then
_WHOLE_PER_RANK = 4


@dataclass(eq=False)
class Stretch:
    """Tokens that attend to each other. Placing it fills the last three fields."""

    token_ids: Int32
    num_given: int  # tokens at its start that are not predicted
    response: Response | None = None
    prompt: Stretch | None = None  # shared with other stretches
    owner: int | None = 0  # context-parallel rank, None: cut over all
    number: int = -1
    span: Span | None = None  # its rows in the context, of a prompt
    # of its tokens in this rank's row, -1: on another rank
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def first_position(self) -> int:
        return 0 if self.prompt is None else self.prompt.length

    @property
    def source_rows(self) -> Int64:
        """The rows that predict its response tokens, -1 on other ranks: always the token before."""
        if self.prompt is None:
            return self.rows[self.num_given - 1 : -1]
        last_of_prompt = self.prompt.rows[-1:]
        return np.concatenate([last_of_prompt, self.rows[:-1]])


def stretches_of(segments: Sequence[PackedSegment]) -> list[Stretch]:
    """Documents by length, then every shared prompt followed by its responses by length. Empty responses take no
    place."""
    documents: list[Stretch] = []
    shared: list[Stretch] = []
    for segment in segments:
        prompt_ids = segment.prompt_ids
        assert len(prompt_ids), "a prompt has at least one token: nothing else predicts the first response token"
        responses = [response for response in segment.responses if len(response.token_ids)]
        responses.sort(key=lambda response: len(response.token_ids))
        if len(responses) == 1:
            token_ids = np.concatenate([prompt_ids, responses[0].token_ids])
            documents.append(Stretch(token_ids, len(prompt_ids), responses[0]))
        elif responses:
            prompt = Stretch(prompt_ids, len(prompt_ids))
            shared.append(prompt)
            for response in responses:
                shared.append(Stretch(response.token_ids, 0, response, prompt))
    documents.sort(key=lambda document: document.length)
    return documents + shared


def choose_owners(stretches: Sequence[Stretch], context_size: int) -> None:
    """Longest first, each to the rank with the fewest tokens so far. All ranks choose alike."""
    if context_size == 1:
        return
    num_tokens = sum(stretch.length for stretch in stretches)
    longest_whole = num_tokens // (context_size * _WHOLE_PER_RANK)
    loads = [(0, rank) for rank in range(context_size)]
    for stretch in sorted(stretches, key=lambda stretch: -stretch.length):
        if stretch.response is None or stretch.length > longest_whole:
            stretch.owner = None
            continue
        load, rank = loads[0]
        stretch.owner = rank
        heapq.heapreplace(loads, (load + stretch.length, rank))


def runs_of_equals(stretches: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    """Neighbours of equal length and prompt."""

    def length_and_prompt(stretch: Stretch) -> tuple[int, int]:
        return stretch.length, id(stretch.prompt)

    for _, alike in groupby(stretches, key=length_and_prompt):
        yield list(alike)
