"""What makes an answer of an engine wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nemo_brorl.generation.check_replies import find_garbage, find_mismatch
from nemo_brorl.generation.chunk_messages import ChunkMeta
from nemo_brorl.types import ChunkArrays, PartialRollouts, Prompt, RolloutRequest, Sampling

REQUEST = RolloutRequest(Prompt("a", "task", "verifier", (7, 8), {}), 4, 3, 100, Sampling(1.0, 1.0, 5))
PARTIAL = PartialRollouts(np.array([1, 5, 9], np.int32), np.array([2, 0, 1], np.int32), version=3, data=None)
RESUMED = replace(REQUEST, first_index=1, partial=PARTIAL)


def test_a_response_longer_than_asked_for_is_garbage() -> None:
    arrays = ChunkArrays(np.ones(6, np.int32), np.full(6, -1.0, np.float32), np.array([0, 6]))
    assert find_garbage(arrays, 10, 6) is None
    assert find_garbage(arrays, 10, 5) == "responses of 6 to 6 tokens, 1 to 5 were asked for"


def test_an_answer_to_another_question_is_found_out() -> None:
    good = ChunkMeta(12, "a", np.array([4, 5, 6], np.int32), np.ones(3, np.int32), np.ones(3, bool), 0, 2)
    assert find_mismatch(good, 12, REQUEST, {0, 2}) is None
    assert "answered as call 12" in str(find_mismatch(good, 13, REQUEST, {0, 2}))
    assert "for prompt b" in str(find_mismatch(replace(good, uid="b"), 12, REQUEST, {0, 2}))
    assert "never published" in str(find_mismatch(good, 12, REQUEST, {0}))
    assert "rollouts [5, 6] came for [4, 5, 6]" in str(
        find_mismatch(replace(good, indices=good.indices[1:]), 12, REQUEST, {0, 2})
    )
    assert "lengths" in str(find_mismatch(replace(good, lengths=good.lengths[1:]), 12, REQUEST, {0, 2}))


def test_the_version_of_a_beginning_needs_not_be_known_to_this_pool() -> None:
    meta = ChunkMeta(1, "a", PARTIAL.indices, np.ones(3, np.int32), np.ones(3, bool), version=3, newest_version=8)
    assert find_mismatch(meta, 1, RESUMED, {0, 8}) is None
