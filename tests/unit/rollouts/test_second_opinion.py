"""A second verifier looks at the successes of groups that have few, and at nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nemo_brorl.config.rewards import SecondOpinionConfig
from nemo_brorl.core.console import Console
from nemo_brorl.rollouts.group_size.wave_weights import Draw
from nemo_brorl.rollouts.ledger import OpenGroup
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.types import RolloutChunk, ScoredChunk
from tests.support.fakes import SAMPLING, FakeGenerator, FakeVerifier, make_prompt, score_chunk


class TwoVerifiers(FakeVerifier):
    """The first accepts rollouts `accepted` of a group; the second gives each of them `opinion`."""

    def __init__(self, accepted: Sequence[int], opinion: float) -> None:
        super().__init__()
        self.accepted = accepted
        self.opinion = opinion
        self.asked: list[tuple[int, list[int]]] = []  # first index of a chunk, its rows

    def submit(self, chunk: RolloutChunk, places: Sequence[int] | None = None) -> None:
        if chunk.request.prompt.verifier == "second":
            assert places is not None
            assert chunk.request.prompt.payload == {"answer": 4, "strict": True}
            self.asked.append((int(chunk.indices[0]), list(places)))
        super().submit(chunk, places)

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        is_right = np.isin(chunk.indices, self.accepted)
        scored = score_chunk(chunk, is_right.tolist())
        if chunk.request.prompt.verifier == "second":
            return replace(scored, rewards=is_right * np.float32(self.opinion))
        return scored


def closed_group(verifier: TwoVerifiers, with_second_opinion: bool = True) -> tuple[OpenGroup, dict[str, float]]:
    settings = SecondOpinionConfig(verifier="second", options={"strict": True})
    sampler = Sampler(FakeGenerator(), verifier, Console(), 4, 1, second_opinion=settings)
    stream = sampler.open_stream(with_second_opinion=with_second_opinion)
    payload = {"answer": 4, "mode": "all", "parts": []}
    prompt = replace(make_prompt("train/1"), payload=payload)
    stream.open(prompt, Draw(12, 1.0), SAMPLING)
    found: list[OpenGroup] = []
    while not stream.is_idle:
        found += stream.advance(0.0)
    [group] = found
    stream.release(group.uid)
    stream.close()
    return group, {} if stream.opinions is None else stream.opinions.metrics()


@pytest.mark.parametrize(("opinion", "kept"), [(0.49, []), (0.5, [2, 9]), (1.0, [2, 9])])
def test_a_success_of_a_group_with_two_holds_only_where_the_second_verifier_agrees(
    opinion: float, kept: list[int]
) -> None:
    verifier = TwoVerifiers([2, 9], opinion)
    group, metrics = closed_group(verifier)
    assert sorted(verifier.asked) == [(0, [2]), (8, [1])]
    assert np.flatnonzero(group.rewards).tolist() == kept
    assert metrics == {"reward/second_opinions": 2.0, "reward/overruled": 2.0 - len(kept)}
    assert bool(group.close().mass.correct) == bool(kept)


@pytest.mark.parametrize("accepted", [[], [1, 2, 3]])
def test_groups_with_no_success_or_more_than_two_go_unasked(accepted: list[int]) -> None:
    verifier = TwoVerifiers(accepted, 0.0)
    group, _ = closed_group(verifier)
    assert verifier.asked == []
    assert np.flatnonzero(group.rewards).tolist() == accepted


def test_a_validation_is_scored_by_the_first_verifier_alone() -> None:
    verifier = TwoVerifiers([2], 0.0)
    group, metrics = closed_group(verifier, with_second_opinion=False)
    assert verifier.asked == []
    assert group.rewards.sum() == 1
    assert metrics == {}
