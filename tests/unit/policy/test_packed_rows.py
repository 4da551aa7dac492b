"""How a row is laid out, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nemo_brorl.policy.packed_rows import GroupArrays, PackedSegment, Response, Row
from nemo_brorl.policy.row_builder import RowSettings, build_row
from nemo_brorl.policy.row_layout import Block, Span
from nemo_brorl.types import ChunkArrays

CPU = torch.device("cpu")


def segment(number: int, prompt: list[int], responses: list[list[int]]) -> PackedSegment:
    made = tuple(
        Response(number, index, np.array(tokens, np.int32), np.array(tokens, np.float32) / -10, index + 0.5, is_fresh=True)
        for index, tokens in enumerate(responses)
    )
    return PackedSegment(np.array(prompt, np.int32), made)


def row(*segments: PackedSegment, multiple: int = 1) -> Row:
    return build_row(segments, 1.0, RowSettings(CPU, multiple))


def test_a_shared_prompt_stands_once_and_predicts_the_first_token_of_each_response() -> None:
    laid = row(segment(0, [1, 2, 3], [[10, 11], [20], [30, 31]]))
    assert laid.token_ids.tolist() == [[1, 2, 3, 20, 10, 11, 30, 31]]  # responses by length
    assert laid.positions.tolist() == [[0, 1, 2, 3, 3, 4, 3, 4]]
    assert laid.packing.blocks == (Block(1, 3), Block(1, 1, (Span(0, 3),)), Block(2, 2, (Span(0, 3),)))
    assert laid.packing.targets.tolist() == [20, 10, 11, 30, 31]
    assert laid.packing.source_rows.tolist() == [2, 2, 4, 2, 6]
    assert laid.advantages.tolist() == [1.5, 0.5, 0.5, 2.5, 2.5]
    assert laid.sampled_log_probs.tolist() == pytest.approx([-2.0, -1.0, -1.1, -3.0, -3.1])
    assert [response.index for response in laid.responses] == [1, 0, 2]


def test_documents_of_equal_length_form_one_block() -> None:
    laid = row(segment(0, [1, 2], [[10, 11]]), segment(1, [3], [[20]]), segment(2, [4, 5, 6], [[30]]))
    assert laid.token_ids.tolist() == [[3, 20, 1, 2, 10, 11, 4, 5, 6, 30]]
    assert laid.packing.blocks == (Block(1, 2), Block(2, 4))
    assert laid.positions.tolist() == [[0, 1, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert laid.packing.targets.tolist() == [20, 10, 11, 30]
    assert laid.packing.source_rows.tolist() == [0, 3, 4, 8]
    assert [response.segment for response in laid.responses] == [1, 0, 2]


def test_padding_is_a_document_that_nothing_reads() -> None:
    laid = row(segment(0, [1], [[10]]), multiple=4)
    assert laid.token_ids.tolist() == [[1, 10, 0, 0]]
    assert laid.packing.blocks == (Block(1, 2), Block(1, 2))
    assert laid.num_loss_tokens == 1


def test_an_empty_micro_batch_still_has_tokens_to_run_on() -> None:
    laid = row(multiple=2)
    assert laid.token_ids.shape == (1, 2)
    assert laid.num_loss_tokens == 0


def test_an_empty_response_takes_no_place() -> None:
    laid = row(segment(0, [1], [[], [10]]))
    assert laid.token_ids.tolist() == [[1, 10]]


def test_rollouts_are_found_across_chunks() -> None:
    first = ChunkArrays(np.array([1, 2, 3], np.int32), np.array([0.1, 0.2, 0.3], np.float32), np.array([0, 2, 3]))
    second = ChunkArrays(np.array([4, 5], np.int32), np.array([0.4, 0.5], np.float32), np.array([0, 2]))
    group = GroupArrays([first, second])
    assert [group.response(rollout)[0].tolist() for rollout in range(3)] == [[1, 2], [3], [4, 5]]
    assert group.response(2)[1].tolist() == pytest.approx([0.4, 0.5])
