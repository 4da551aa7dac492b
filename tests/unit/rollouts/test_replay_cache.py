"""What a step that was cut had sampled, and which requests of the step begun anew it answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.rollouts.replay_cache import ReplayCache
from nemo_brorl.types import PartialRollouts, RolloutRequest, Sampling, ScoredChunk
from tests.support.fakes import make_arrays, make_chunk, make_prompt, score_chunk

SAMPLING = Sampling(1.0, 1.0, 8)
REQUEST = RolloutRequest(make_prompt("train/0"), first_index=4, num_rollouts=2, seed=7, sampling=SAMPLING)


def scored(request: RolloutRequest) -> ScoredChunk:
    return score_chunk(make_chunk(request, [3] * request.num_rollouts), [1.0] * request.num_rollouts)


def begun(*lengths: int, version: int = 0) -> PartialRollouts:
    return PartialRollouts(
        np.array([4, 5], np.int32), np.array(lengths, np.int32), version, make_arrays([4, 5], lengths)
    )


def test_a_request_for_the_same_rollouts_is_answered_once() -> None:
    answer = scored(REQUEST)
    cache = ReplayCache([answer])
    assert cache.take_chunk(replace(REQUEST)) is answer
    assert cache.take_chunk(REQUEST) is None
    assert cache.num_taken == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, first_index=5),
        replace(REQUEST, num_rollouts=3),
        replace(REQUEST, seed=8),
        replace(REQUEST, sampling=replace(SAMPLING, temperature=0.5)),
        replace(REQUEST, prompt=make_prompt("train/1")),
        replace(REQUEST, prompt=make_prompt("train/0", num_tokens=4)),
        replace(REQUEST, prompt=replace(REQUEST.prompt, verifier="another")),
        replace(REQUEST, partial=begun(1, 0)),
    ],
)
def test_another_question_has_no_answer(other: RolloutRequest) -> None:
    cache = ReplayCache([scored(REQUEST)])
    assert cache.take_chunk(other) is None
    assert cache.num_taken == 0


def test_resumed_rollouts_are_the_same_if_they_had_begun_alike() -> None:
    request = replace(REQUEST, partial=begun(2, 1))
    for resumed, is_same in ((begun(2, 1), True), (begun(2, 2), False), (begun(2, 1, version=1), False)):
        answer = ReplayCache([scored(request)]).take_chunk(replace(REQUEST, partial=resumed))
        assert (answer is not None) == is_same


def test_only_whole_chunks_are_kept_and_those_not_asked_for_again_yet_stay() -> None:
    first, second, third = (replace(REQUEST, first_index=index) for index in (0, 2, 4))
    cache = ReplayCache([scored(first), scored(second)])
    taken = cache.take_chunk(first)
    assert taken is not None
    cache.add_chunk(taken)
    whole = scored(third)
    cache.add_chunk(replace(whole, chunk=replace(whole.chunk, partial=begun(1, 0))))
    assert [chunk.chunk.request.first_index for chunk in cache.chunks] == [0, 2]
