"""How a row is laid out, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nemo_brorl.algorithm.packing import Packer, Sharing
from nemo_brorl.policy.rows.packed_rows import Block, GroupArrays, PackedGroup, Response, Row, RowSettings, Span
from nemo_brorl.policy.rows.row_builder import build_row
from nemo_brorl.scoring.response_arrays import turn_ends
from nemo_brorl.types import ChunkArrays

CPU = torch.device("cpu")


def packed_group(number: int, prompt: list[int], responses: list[list[int]]) -> PackedGroup:
    made = tuple(
        Response(
            number, index, np.array(tokens, np.int32), np.array(tokens, np.float32) / -10, index + 0.5, is_fresh=True
        )
        for index, tokens in enumerate(responses)
    )
    return PackedGroup(np.array(prompt, np.int32), made)


def row(*packed_groups: PackedGroup, multiple: int = 1) -> Row:
    return build_row(packed_groups, 1.0, RowSettings(CPU, multiple))


def ranks(*packed_groups: PackedGroup, num: int = 2, multiple: int = 1) -> list[Row]:
    """The row of every context-parallel rank."""
    return [build_row(packed_groups, 1.0, RowSettings(CPU, multiple, rank, num)) for rank in range(num)]


def test_a_shared_prompt_stands_once_and_predicts_the_first_token_of_each_response() -> None:
    laid = row(packed_group(0, [1, 2, 3], [[10, 11], [20], [30, 31]]))
    assert laid.token_ids.tolist() == [[1, 2, 3, 20, 10, 11, 30, 31]]  # responses by length
    assert laid.positions.tolist() == [[0, 1, 2, 3, 3, 4, 3, 4]]
    assert laid.packing.blocks == (Block(1, 3), Block(1, 1, (Span(0, 3),)), Block(2, 2, (Span(0, 3),)))
    assert laid.packing.targets.tolist() == [20, 10, 11, 30, 31]
    assert laid.packing.source_rows.tolist() == [2, 2, 4, 2, 6]
    assert laid.advantages.tolist() == [1.5, 0.5, 0.5, 2.5, 2.5]
    assert laid.sampled_log_probs.tolist() == pytest.approx([-2.0, -1.0, -1.1, -3.0, -3.1])
    assert [response.index for response in laid.responses] == [1, 0, 2]


def test_a_tokens_draw_depends_on_its_place_in_the_plan_and_not_on_the_row() -> None:
    drawn = Response(0, 0, np.array([10, 11]), np.zeros(2), 0.0, is_fresh=True, place=(3, 7))
    other = replace(drawn, token_ids=np.array([20]), log_probs=np.zeros(1), index=1, place=(3, 8))
    prompt = np.array([1, 2], np.int32)
    alone = row(PackedGroup(prompt, (drawn,))).draws(seed=5)
    together = row(PackedGroup(prompt, (drawn, other))).draws(seed=5)  # the shorter response comes first
    np.testing.assert_array_equal(together[1:], alone)
    assert len(set(together.tolist())) == 3
    assert row(PackedGroup(prompt, (drawn,))).draws(seed=6).tolist() != alone.tolist()
    assert len(row(multiple=2).draws(seed=5)) == 0


def test_documents_of_equal_length_form_one_block() -> None:
    laid = row(packed_group(0, [1, 2], [[10, 11]]), packed_group(1, [3], [[20]]), packed_group(2, [4, 5, 6], [[30]]))
    assert laid.token_ids.tolist() == [[3, 20, 1, 2, 10, 11, 4, 5, 6, 30]]
    assert laid.packing.blocks == (Block(1, 2), Block(2, 4))
    assert laid.positions.tolist() == [[0, 1, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert laid.packing.targets.tolist() == [20, 10, 11, 30]
    assert laid.packing.source_rows.tolist() == [0, 3, 4, 8]
    assert [response.packed_group for response in laid.responses] == [1, 0, 2]


def test_padding_is_a_document_that_nothing_reads() -> None:
    laid = row(packed_group(0, [1], [[10]]), multiple=4)
    assert laid.token_ids.tolist() == [[1, 10, 0, 0]]
    assert laid.packing.blocks == (Block(1, 2), Block(1, 2))
    assert laid.num_loss_tokens == 1


def test_an_empty_micro_batch_still_has_tokens_to_run_on() -> None:
    laid = row(multiple=2)
    assert laid.token_ids.shape == (1, 2)
    assert laid.num_loss_tokens == 0


def test_an_empty_response_takes_no_place() -> None:
    laid = row(packed_group(0, [1], [[], [10]]))
    assert laid.token_ids.tolist() == [[1, 10]]


def trunk(*responses: list[int], min_shared_tokens: int = 2, prompt: tuple[int, ...] = (1, 2)) -> Row:
    """Responses to one prompt, in a row that shares segments of so many tokens."""
    settings = RowSettings(CPU, min_shared_tokens=min_shared_tokens)
    return build_row([packed_group(0, list(prompt), list(responses))], 1.0, settings)


def test_what_responses_share_stands_once_and_counts_in_each_of_them() -> None:
    laid = trunk([5, 6, 7, 10], [5, 6, 7, 11, 12], [8])
    assert laid.token_ids.tolist() == [[1, 2, 8, 5, 6, 7, 10, 11, 12]]
    assert laid.positions.tolist() == [[0, 1, 2, 2, 3, 4, 5, 5, 6]]
    prompt, shared = Span(0, 2), Span(3, 3)
    sees_both = (prompt, shared)
    assert laid.packing.blocks == (
        Block(1, 2),
        Block(1, 1, (prompt,)),
        Block(1, 3, (prompt,)),
        Block(1, 1, sees_both),
        Block(1, 2, sees_both),
    )
    assert laid.packing.targets.tolist() == [8, 5, 6, 7, 10, 11, 12]
    assert laid.packing.source_rows.tolist() == [1, 1, 3, 4, 5, 5, 7]
    assert laid.score_index is not None
    assert laid.score_index.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert laid.response_index.tolist() == [0, 1, 1, 1, 2, 2, 2, 1, 2, 2]
    assert laid.token_index.tolist() == [0, 0, 1, 2, 0, 1, 2, 3, 3, 4]
    assert [response.index for response in laid.responses] == [2, 0, 1]
    assert laid.advantages.tolist() == [2.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 0.5, 1.5, 1.5]
    assert laid.sampled_log_probs[:3].tolist() == pytest.approx([-0.8, -0.5, -0.6])
    assert laid.num_loss_tokens == 10, "as many as in plain rows"


def test_what_all_responses_share_lengthens_the_prompt() -> None:
    laid = trunk([5, 6, 10], [5, 6, 11])
    assert laid.token_ids.tolist() == [[1, 2, 5, 6, 10, 11]]
    assert laid.packing.blocks == (Block(1, 4), Block(2, 1, (Span(0, 4),)))
    assert laid.packing.source_rows.tolist() == [1, 2, 3, 3]
    assert laid.num_loss_tokens == 6


def test_too_little_in_common_is_not_shared_but_what_goes_on_from_there_is() -> None:
    laid = trunk([5, 6, 10], [5, 6, 11], [5, 7, 8, 9], [5, 7, 8], min_shared_tokens=3)
    # 5 and 5 6 are too short; 5 7 8 is not, and one of its responses ends with it
    assert laid.token_ids.tolist() == [[1, 2, 5, 6, 10, 5, 6, 11, 5, 7, 8, 9]]
    assert laid.num_loss_tokens == 13


def test_equal_responses_are_one_document_and_nothing_is_shared_without_being_asked_for() -> None:
    twice = ([5, 6, 7], [5, 6, 7])
    laid = trunk(*twice)
    assert laid.packing.blocks == (Block(1, 5),)
    assert (laid.num_loss_tokens, len(laid.packing.targets)) == (6, 3)
    alone = trunk(*twice, min_shared_tokens=0)
    assert alone.token_ids.size(1) == 8
    assert alone.score_index is None


def test_a_shared_token_counts_only_where_it_was_sampled() -> None:
    tokens = np.array([5, 6, 7], np.int32)
    zeros = np.zeros(3, np.float32)
    masks = ([True, True, True], [True, False, False])
    responses = tuple(
        Response(0, index, tokens, zeros, 1.0, True, is_sampled=np.array(mask)) for index, mask in enumerate(masks)
    )
    laid = build_row([PackedGroup(np.array([1], np.int32), responses)], 1.0, RowSettings(CPU, min_shared_tokens=2))
    assert laid.packing.targets.tolist() == [5, 6, 7]
    assert laid.score_index is not None
    assert (laid.score_index.tolist(), laid.response_index.tolist()) == ([0, 1, 2, 0], [0, 0, 0, 1])


def test_a_plan_that_knows_the_ends_of_turns_only_counts_the_tokens_of_its_rows() -> None:
    """Random turns of 20 to 29 tokens, two of them observed, three a trajectory, each of two kinds."""
    random = np.random.default_rng(0)
    kinds = [[random.integers(10, 99, random.integers(20, 30), dtype=np.int32) for _ in range(2)] for _ in range(3)]
    texts = [[kinds[turn][random.integers(0, 2)] for turn in range(3)] for _ in range(24)]
    responses = [np.concatenate(turns) for turns in texts]
    masks = [np.arange(len(turn)) < len(turn) - 2 for turns in texts for turn in turns]
    offsets = np.cumsum([0, *map(len, responses)])
    zeros = np.zeros(offsets[-1], np.float32)
    data = ChunkArrays(np.concatenate(responses), zeros, offsets, np.concatenate(masks))
    ends = turn_ends(data, 3)
    assert ends.lengths[0].tolist() == np.cumsum([len(turn) for turn in texts[0]]).tolist()
    lengths = [np.diff(offsets).astype(np.int32)]
    packer = Packer([5], lengths, 200, Sharing(min_tokens=16), turn_ends=[ends])
    (micros,) = packer.pack([(0, rollout) for rollout in range(24)], 1)
    assert len(micros) > 1
    for micro in micros:
        mine = [responses[rollout].tolist() for rollout in micro.slices[0].rollouts]
        assert micro.num_tokens <= 200
        assert micro.num_tokens == trunk(*mine, min_shared_tokens=16, prompt=(1, 2, 3, 4, 5)).token_ids.size(1)


def test_observed_tokens_are_read_and_not_predicted_and_the_last_of_them_predicts_the_next_turn() -> None:
    tokens = np.array([10, 90, 91, 11], np.int32)
    is_sampled = np.array([True, False, False, True])
    log_probs = np.array([-1, 0, 0, -2], np.float32)
    trajectory = Response(0, 0, tokens, log_probs, 0.5, is_fresh=True, is_sampled=is_sampled)
    laid = row(PackedGroup(np.array([1, 2], np.int32), (trajectory,)))
    assert laid.token_ids.tolist() == [[1, 2, 10, 90, 91, 11]]
    assert laid.packing.targets.tolist() == [10, 11]
    assert laid.packing.source_rows.tolist() == [1, 4]
    assert laid.sampled_log_probs.tolist() == [-1, -2]
    assert laid.token_index.tolist() == [0, 3]
    assert (laid.num_loss_tokens, laid.num_fresh_tokens, trajectory.num_sampled) == (2, 2, 2)
    on_ranks = ranks(PackedGroup(np.array([1, 2], np.int32), (trajectory,)))
    # tokens 1 and 2 lie on the first rank, the others on the second
    assert [part.packing.targets.tolist() for part in on_ranks] == [[10], [11]]


def test_every_token_has_the_advantage_and_the_length_of_its_turn() -> None:
    """Turns of two tokens and one, between them two that were observed."""
    advantages = np.array([0.5, -1.0, 9.0], np.float32)  # another trajectory of the group has come further
    is_sampled = np.array([True, True, False, False, True])
    tokens = np.array([10, 11, 90, 91, 12], np.int32)
    zeros = np.zeros(5, np.float32)
    trajectory = Response(0, 0, tokens, zeros, advantages, is_fresh=True, is_sampled=is_sampled)
    other = Response(0, 1, tokens[:2], zeros[:2], 2.0, is_fresh=True)
    laid = row(PackedGroup(np.array([1], np.int32), (trajectory, other)))
    assert laid.advantages.tolist() == [2.0, 2.0, 0.5, 0.5, -1.0]
    assert laid.turn_lengths.tolist() == [2, 2, 2, 2, 1]
    assert trajectory.turn_lengths.tolist() == [2, 1]


def test_rollouts_are_found_across_chunks() -> None:
    first = ChunkArrays(np.array([1, 2, 3], np.int32), np.array([0.1, 0.2, 0.3], np.float32), np.array([0, 2, 3]))
    second = ChunkArrays(np.array([4, 5], np.int32), np.array([0.4, 0.5], np.float32), np.array([0, 2]))
    group = GroupArrays([first, second])
    assert [group.response(rollout)[0].tolist() for rollout in range(3)] == [[1, 2], [3], [4, 5]]
    assert group.response(2)[1].tolist() == pytest.approx([0.4, 0.5])


def test_a_rollout_knows_which_of_its_tokens_were_sampled() -> None:
    offsets = np.array([0, 2, 3])
    is_sampled = np.array([True, False, True])
    chunk = ChunkArrays(np.array([1, 2, 3], np.int32), np.zeros(3, np.float32), offsets, is_sampled)
    group = GroupArrays([chunk])
    assert [group.response(rollout)[2].tolist() for rollout in range(2)] == [[True, False], [True]]


def test_a_long_segment_is_cut_into_an_early_and_a_late_piece_for_every_rank() -> None:
    first, second = ranks(packed_group(0, [1, 2], [[3, 4, 5, 6, 7]]))  # 7 tokens, padded to 4 pieces of 2
    assert first.token_ids.tolist() == [[1, 2, 7, 0]]
    assert second.token_ids.tolist() == [[3, 4, 5, 6]]
    assert first.positions.tolist() == [[0, 1, 6, 7]]
    assert first.packing.blocks == (Block(1, 2), Block(1, 2, (Span(0, 6, 8),)))
    assert second.packing.blocks == (Block(1, 2, (Span(0, 2, 8),)), Block(1, 2, (Span(0, 4, 8),)))
    gathered = torch.cat([first.token_ids[0], second.token_ids[0]])
    assert gathered[first.packing.context_order].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    # a token counts where the token before it is: 2 predicts 3 on the first rank, 4 predicts 5 on the second
    assert first.packing.targets.tolist() == [3]
    assert second.packing.targets.tolist() == [4, 5, 6, 7]
    assert second.packing.source_rows.tolist() == [0, 1, 2, 3]


def test_short_responses_go_to_one_rank_each_and_only_their_prompt_is_cut() -> None:
    made = ranks(packed_group(0, [1, 2, 3], [[10, 11], [20, 21], [30], [40]] * 4))
    assert [laid.packing.num_cut for laid in made] == [2, 2]  # the prompt: 4 pieces of 1
    assert [laid.token_ids.size(1) for laid in made] == [14, 14]
    for laid in made:
        assert {span for block in laid.packing.blocks for span in block.sees if not span.stride} == {Span(0, 3)}
    # the last prompt token, piece 2 of 4 and so on the second rank, predicts the first token of all 16 responses
    assert [laid.num_loss_tokens for laid in made] == [4, 20]


@pytest.mark.parametrize("num", [2, 3])
def test_ranks_together_have_every_response_token_once(num: int) -> None:
    random = np.random.default_rng(0)
    packed_groups = [packed_group(n, [1] * 5, [[7] * length for length in random.integers(0, 30, 6)]) for n in range(3)]
    packed_groups.append(packed_group(3, [1, 2], [[5] * 100]))
    seen = []
    for laid in ranks(*packed_groups, num=num, multiple=4):
        assert laid.token_ids.size(1) % 4 == 0
        seen += [
            (laid.responses[i].packed_group, laid.responses[i].index, t)
            for i, t in zip(laid.response_index, laid.token_index, strict=True)
        ]
    expected = [
        (r.packed_group, r.index, t) for part in packed_groups for r in part.responses for t in range(len(r.token_ids))
    ]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("num", [2, 3])
def test_ranks_together_count_every_shared_token_once_in_each_response(num: int) -> None:
    responses = [[7] * 9 + [8] * 30 + [index] for index in range(4)] + [[7] * 9 + [9, index] for index in range(3)]
    made = packed_group(0, [1, 2], responses)
    seen = []
    for rank in range(num):
        laid = build_row([made], 1.0, RowSettings(CPU, 4, rank, num, min_shared_tokens=5))
        assert laid.score_index is not None
        targets = laid.packing.targets[laid.score_index].tolist()
        for target, index, place in zip(targets, laid.response_index, laid.token_index, strict=True):
            seen.append((laid.responses[index].index, int(place), target))
    expected = [(r.index, t, int(token)) for r in made.responses for t, token in enumerate(r.token_ids)]
    assert sorted(seen) == sorted(expected)


def test_context_ranks_get_nearly_equal_tokens() -> None:
    random = np.random.default_rng(0)
    made = ranks(packed_group(0, [1] * 200, [[7] * length for length in random.integers(8, 57, 128)]), num=4)
    tokens = [laid.token_ids.size(1) for laid in made]
    assert max(tokens) - min(tokens) <= 8  # the shortest response


def test_a_micro_batch_without_work_for_a_rank_still_gives_it_a_row() -> None:
    first, second = ranks(packed_group(0, [1], [[2]]), packed_group(1, [1], [[2, 3]]), num=2, multiple=2)
    assert first.token_ids.size(1) and second.token_ids.size(1)
    assert first.num_loss_tokens + second.num_loss_tokens == 3


def random_group(random: np.random.Generator, number: int) -> PackedGroup:
    """Responses of 0 to 40 tokens that often share a prefix, some with observed tokens and an advantage per turn."""
    stems = [random.integers(3, 9, 20) for _ in range(2)]
    responses = []
    for index in range(random.integers(0, 8)):
        parts = [stems[random.integers(0, 2)], random.integers(3, 9, random.integers(0, 20))]
        tokens = np.concatenate(parts[random.integers(0, 2) :]).astype(np.int32)
        is_sampled = random.random(len(tokens)) < 0.7 if random.random() < 0.5 else None
        advantage = random.normal() if random.random() < 0.7 else random.normal(size=41).astype(np.float32)
        log_probs = -random.random(len(tokens), np.float32)
        responses.append(Response(number, index, tokens, log_probs, advantage, True, is_sampled=is_sampled))
    prompt = random.integers(3, 9, random.integers(1, 10)).astype(np.int32)
    return PackedGroup(prompt, tuple(responses))


def tokens_read(laid: Row) -> list[list[int]]:
    """Return for every token of a row the tokens that it attends to, itself last, in the order of `Block`."""
    ids = laid.token_ids[0].tolist()
    read: list[list[int]] = []
    for block in laid.packing.blocks:
        for segment in range(block.num):
            before: list[int] = []
            for span in block.sees:
                start = span.start + segment * span.stride
                before += ids[start : start + span.length]
            first = len(read)
            read += [before + ids[first : first + num] for num in range(1, block.length + 1)]
    return read


@pytest.mark.parametrize("min_shared_tokens", [0, 5])
def test_in_random_rows_every_sampled_token_is_predicted_from_all_before_it_with_its_own_values(
    min_shared_tokens: int,
) -> None:
    random = np.random.default_rng(min_shared_tokens)
    for _ in range(50):
        groups = [random_group(random, number) for number in range(random.integers(0, 4))]
        laid = build_row(groups, 1.0, RowSettings(CPU, multiple=4, min_shared_tokens=min_shared_tokens))
        assert laid.packing.source_rows is not None and laid.packing.targets is not None
        score_index = torch.arange(laid.num_loss_tokens) if laid.score_index is None else laid.score_index
        sources = laid.packing.source_rows[score_index].tolist()
        targets = laid.packing.targets[score_index].tolist()
        read = tokens_read(laid)
        counted = []
        for n, (index, place) in enumerate(zip(laid.response_index, laid.token_index, strict=True)):
            response = laid.responses[index]
            counted.append((response.packed_group, response.index, place))
            before = [*groups[response.packed_group].prompt_ids, *response.token_ids[:place]]
            assert (read[sources[n]], targets[n]) == (before, response.token_ids[place])
            assert laid.sampled_log_probs[n] == response.log_probs[place]
            assert laid.advantages[n] == response.token_advantages[place]
            assert laid.turn_lengths[n] == response.turn_lengths[response.turns[place]]
        of_groups = [response for group in groups for response in group.responses]
        sampled = [(r.packed_group, r.index, place) for r in of_groups for place in np.flatnonzero(r.counts)]
        assert sorted(counted) == sorted(sampled)
        assert laid.response_of.tolist() == laid.response_index.tolist()
        assert laid.response_lengths.tolist() == [response.counts.sum() for response in laid.responses]
        assert laid.num_turns.tolist() == [len(response.turn_lengths) for response in laid.responses]
