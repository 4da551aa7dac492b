"""From segments of groups to the row of tokens that the model reads in one micro-batch.

Order within a row is free, so it is chosen for the attention (`attention.Block`): responses of equal length lie side by side.
A segment with one response is a plain document, prompt and response end to end; documents are sorted by their whole length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from nemo_brorl.object_store import fetch_all
from nemo_brorl.policy.attention import Block, Packing
from nemo_brorl.types import ChunkArrays, Float32, Int32, Int64, MicroBatch, UpdatePlan


@dataclass(frozen=True)
class Response:
    """One response with what the loss needs."""

    segment: int  # index of its segment in the row's input
    index: int  # within the segment
    token_ids: Int32  # [T]
    log_probs: Float32  # [T], when it was sampled
    advantage: float
    is_fresh: bool  # sampled by the weights that the update starts from


@dataclass(frozen=True)
class PackedSegment:
    """A prompt and the responses that share it."""

    prompt_ids: Int32  # [P], at least one token
    responses: tuple[Response, ...]


@dataclass(frozen=True)
class Row:
    """One micro-batch as the model reads it: T tokens, n of them predicted."""

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    packing: Packing
    sampled_log_probs: Tensor  # [n] float32
    advantages: Tensor  # [n] float32
    is_fresh: Tensor  # [n] bool
    responses: tuple[Response, ...]  # in the order their tokens have in [n]

    @property
    def num_loss_tokens(self) -> int:
        return len(self.advantages)


class GroupArrays:
    """The responses of one group, cut out of its chunks."""

    def __init__(self, chunks: Sequence[ChunkArrays]) -> None:
        self.chunks = chunks
        self.first = np.cumsum([0, *(len(chunk.offsets) - 1 for chunk in chunks)])  # [chunks + 1] first rollout of each

    def response(self, rollout: int) -> tuple[Int32, Float32]:
        """Token ids and sampled log-probs [T] of one rollout of the group."""
        chunk = int(np.searchsorted(self.first, rollout, side="right")) - 1
        arrays, local = self.chunks[chunk], rollout - int(self.first[chunk])
        tokens = slice(arrays.offsets[local], arrays.offsets[local + 1])
        return arrays.token_ids[tokens], arrays.log_probs[tokens]


def fetch_groups(plan: UpdatePlan, micro_batches: Iterable[MicroBatch]) -> dict[int, GroupArrays]:
    """The arrays of the groups that these micro-batches use, in one call to the object store."""
    used = sorted({segment.group for micro in micro_batches for segment in micro.segments})
    arrays = iter(fetch_all([data for group in used for data in plan.groups[group].chunks]))
    return {group: GroupArrays([next(arrays) for _ in plan.groups[group].chunks]) for group in used}


def segments_of(plan: UpdatePlan, micro: MicroBatch, groups: Mapping[int, GroupArrays]) -> list[PackedSegment]:
    """What a micro-batch of the plan holds."""
    segments = []
    for number, segment in enumerate(micro.segments):
        planned = plan.groups[segment.group]
        responses = tuple(
            Response(number, index, *groups[segment.group].response(rollout), float(planned.advantages[rollout]), planned.staleness == 0)
            for index, rollout in enumerate(segment.rollouts)
        )
        segments.append(PackedSegment(planned.prompt_ids, responses))
    return segments


def build_row(segments: Sequence[PackedSegment], temperature: float, multiple: int, device: torch.device, at_least: int = 1) -> Row:
    """Lay segments out. The row is padded with a document of its own to `at_least` tokens, a multiple of `multiple`."""
    draft = _Draft()
    documents, shared = [], []
    for segment in segments:
        assert len(segment.prompt_ids), "a prompt has at least one token: nothing else predicts the first response token"
        responses = sorted((r for r in segment.responses if len(r.token_ids)), key=lambda r: len(r.token_ids))
        if len(responses) == 1:
            documents.append((segment.prompt_ids, responses[0]))
        elif responses:
            shared.append((segment.prompt_ids, responses))
    documents.sort(key=lambda document: len(document[0]) + len(document[1].token_ids))
    for length, same in groupby(documents, key=lambda document: len(document[0]) + len(document[1].token_ids)):
        draft.add_documents(list(same), length)
    for prompt_ids, responses in shared:
        draft.add_shared(prompt_ids, responses)
    draft.pad(at_least, multiple)
    return draft.finish(temperature, device)


@dataclass
class _Draft:
    """A row being written."""

    num_tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    token_ids: list[Int32] = field(default_factory=list)
    positions: list[Int64] = field(default_factory=list)
    source_rows: list[Int64] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)

    def add_documents(self, documents: Sequence[tuple[Int32, Response]], length: int) -> None:
        """One block of prompts each followed by its one response, all `length` tokens together."""
        for number, (prompt_ids, response) in enumerate(documents):
            start = self.num_tokens + number * length
            self.token_ids += [prompt_ids, response.token_ids]
            # a document's own row before each response token predicts it
            self.source_rows.append(np.arange(start + len(prompt_ids) - 1, start + length - 1))
            self.responses.append(response)
        self._add_block(Block(len(documents), length), 0)

    def add_shared(self, prompt_ids: Int32, responses: Sequence[Response]) -> None:
        """A prompt, then one block per length of response; `responses` sorted by length."""
        prompt_block = len(self.blocks)
        self.token_ids.append(prompt_ids)
        self._add_block(Block(1, len(prompt_ids)), 0)
        last_prompt_row = self.num_tokens - 1
        for length, same_length in groupby(responses, key=lambda response: len(response.token_ids)):
            same = list(same_length)
            rows = self.num_tokens - 1 + np.arange(len(same) * length).reshape(len(same), length)
            rows[:, 0] = last_prompt_row  # the prompt predicts the first token of every response
            self.source_rows.append(rows.ravel())
            self.token_ids += [response.token_ids for response in same]
            self.responses += same
            self._add_block(Block(len(same), length, prompt_block), len(prompt_ids))

    def pad(self, at_least: int, multiple: int) -> None:
        """Fill up with a document that nothing reads."""
        missing = max(at_least - self.num_tokens, 0)
        missing += -(self.num_tokens + missing) % multiple
        if missing:
            self.token_ids.append(np.zeros(missing, np.int32))
            self._add_block(Block(1, missing), 0)

    def _add_block(self, block: Block, first_position: int) -> None:
        self.blocks.append(block)
        self.positions.append(np.tile(np.arange(first_position, first_position + block.length), block.num))
        self.num_tokens += block.num_tokens

    def finish(self, temperature: float, device: torch.device) -> Row:
        positions = _to_tensor(self.positions, np.int64, device)
        lengths = [len(response.token_ids) for response in self.responses]
        packing = Packing(
            blocks=tuple(self.blocks),
            positions=positions,
            source_rows=_to_tensor(self.source_rows, np.int64, device),
            targets=_to_tensor([response.token_ids for response in self.responses], np.int64, device),
            temperature=temperature,
        )
        return Row(
            token_ids=_to_tensor(self.token_ids, np.int64, device)[None],
            positions=positions[None],
            packing=packing,
            sampled_log_probs=_to_tensor([response.log_probs for response in self.responses], np.float32, device),
            advantages=_to_tensor([np.repeat([r.advantage for r in self.responses], lengths)], np.float32, device),
            is_fresh=_to_tensor([np.repeat([r.is_fresh for r in self.responses], lengths)], np.bool_, device),
            responses=tuple(self.responses),
        )


def _to_tensor(parts: Sequence[np.ndarray], dtype: type, device: torch.device) -> Tensor:
    whole = np.concatenate(parts) if parts else np.empty(0)
    return torch.from_numpy(whole.astype(dtype)).to(device)
