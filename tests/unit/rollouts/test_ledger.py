"""The ledger of groups: every rollout that was asked for comes back once, finished or cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.rollouts.ledger import GroupLedger, OpenGroup, close_group
from nemo_brorl.types import PartialRollouts, RolloutChunk, RolloutRequest, ScoredChunk
from tests.support.fakes import SAMPLING, make_arrays, make_chunk, make_prompt, score_chunk

PROMPT = make_prompt("train/7")


def finished(first: int, num: int) -> RolloutChunk:
    """Rollouts with three tokens each."""
    return make_chunk(RolloutRequest(PROMPT, first, num, 1, SAMPLING), [3] * num)


def cut(index: int) -> PartialRollouts:
    """One rollout after a single token."""
    return PartialRollouts(np.array([index], np.int32), np.array([1], np.int32), 0, make_arrays([index], [1]))


def ledger_of(num_asked: int) -> GroupLedger:
    ledger = GroupLedger()
    ledger.open(OpenGroup(PROMPT, SAMPLING))
    ledger.ask(PROMPT.uid, range(num_asked))
    return ledger


def with_answers(chunk: RolloutChunk, answers: tuple[str | None, ...]) -> ScoredChunk:
    return replace(score_chunk(chunk, [1.0] * len(answers)), answers=answers)


def test_a_group_settles_with_its_last_rollout_and_a_partial_one_is_asked_for_again() -> None:
    ledger = ledger_of(4)
    first = finished(0, 2)
    ledger.receive(first, score_chunk(first, [1.0, 0.0]))
    assert not ledger.is_settled(PROMPT.uid)
    assert (ledger.num_out, ledger.unsettled()) == (2, ["train/7"])
    third = replace(finished(2, 1), partial=cut(3))
    ledger.receive(third, score_chunk(third, [1.0]))
    assert ledger.is_settled(PROMPT.uid)
    group = ledger.groups[PROMPT.uid]
    assert (group.num_finished, group.num_partial, group.num_rollouts) == (3, 1, 4)
    assert ledger.unsettled() == []
    ledger.ask(PROMPT.uid, [3])
    assert (group.num_partial, ledger.num_out) == (0, 1)
    last = finished(3, 1)
    ledger.receive(last, score_chunk(last, [0.0]))
    assert ledger.is_settled(PROMPT.uid)
    assert ledger.release(PROMPT.uid).rewards.tolist() == [1, 0, 1, 0]


def test_a_rollout_that_comes_back_twice_is_refused() -> None:
    ledger = ledger_of(4)
    chunk = finished(0, 2)
    ledger.receive(chunk, score_chunk(chunk, [1.0, 0.0]))
    with pytest.raises(AssertionError, match="rollout 0 of train/7 came back twice"):
        ledger.receive(chunk, score_chunk(chunk, [1.0, 0.0]))


def test_what_no_step_has_learnt_from_is_counted_by_place_whichever_chunk_came_first() -> None:
    ledger = ledger_of(4)
    late, early = finished(2, 2), finished(0, 2)
    ledger.receive(late, score_chunk(late, [0.0, 0.0]))
    group = ledger.groups[PROMPT.uid]
    assert not group.is_closed
    group.num_trained_chunks = len(group.scored_chunks)  # a step has learnt from rollouts 2 and 3
    ledger.receive(early, score_chunk(early, [1.0, 1.0]))
    assert group.is_closed
    assert group.untrained_indices().tolist() == [0, 1]


def test_a_group_has_its_answers_in_the_order_of_its_rollouts() -> None:
    prompt = make_prompt()
    later, first = (make_chunk(RolloutRequest(prompt, start, 2, 0, SAMPLING), [1, 1]) for start in (2, 0))
    scored = [with_answers(later, ("c", None)), with_answers(first, ("a", "b"))]
    assert close_group(prompt, scored).answers == ("a", "b", "c", None)
    assert close_group(prompt, [scored[0], score_chunk(first, [1.0, 0.0])]).answers is None, "not known of all"
