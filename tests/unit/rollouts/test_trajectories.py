"""Trajectories of several turns: sampled on by continuation, each rollout once, cut and resumed as if nothing had
happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from brorl_graders.environments.protocol import EpisodeOutcome, EpisodeStep

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.evaluation.answers import answers_of
from nemo_brorl.rollouts.batch_fill import BatchFill
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.rollouts.metrics import trajectory_metrics
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.scoring.response_arrays import turn_bounds
from nemo_brorl.types import RolloutChunk, Sampling, ScoredGroup
from tests.support.environments import (
    OBSERVATION,
    Answer,
    EnvironmentPrompts,
    EnvironmentVerifier,
    TurnGenerator,
    draw,
    environment_prompt,
    one_to_four_turns,
    outcome,
)
from tests.support.fakes import make_group

LONG = Sampling(1.0, 1.0, max_tokens=64)


def sample(answer: Answer, num: int = 16, sampling: Sampling = LONG, **settings: object) -> ScoredGroup:
    verifier = EnvironmentVerifier(answer, **settings)
    sampler = Sampler(TurnGenerator(), verifier, Console(), chunk_size=5, seed=1)
    (group,) = sampler.sample([environment_prompt()], num, sampling, "test")
    assert verifier.host.instances == {}, "no instance is left"
    assert max(verifier.host.num_steps.values()) == 1, "no turn is taken twice"
    assert verifier.host.num_made_anew == 0
    return group


def responses(group: ScoredGroup) -> dict[int, tuple[list[int], list[float], list[bool]]]:
    """Tokens, log-probs and marks of every rollout, by index."""
    found: dict[int, tuple[list[int], list[float], list[bool]]] = {}
    for chunk in group.group.chunks:
        data = chunk.data
        marks = np.ones(len(data.token_ids), bool) if data.is_sampled is None else data.is_sampled
        for index, (start, end) in zip(chunk.indices.tolist(), pairwise(data.offsets.tolist()), strict=True):
            part = slice(start, end)
            found[index] = data.token_ids[part].tolist(), data.log_probs[part].tolist(), marks[part].tolist()
    return found


def test_observations_stand_between_turns_unsampled_and_without_log_prob() -> None:
    group = sample(one_to_four_turns)
    assert sorted(group.indices.tolist()) == list(range(16))
    num_turns = dict(zip(group.indices.tolist(), group.num_turns.tolist(), strict=True))
    assert set(num_turns.values()) == {1, 2, 3, 4}
    for index, (tokens, log_probs, is_sampled) in responses(group).items():
        observed = [token for token, mark in zip(tokens, is_sampled, strict=True) if not mark]
        assert observed == list(OBSERVATION) * (num_turns[index] - 1)
        assert [value == 0 for value in log_probs] == [not mark for mark in is_sampled]
        assert is_sampled[-1], "a response ends with what was sampled"
    counts = {index: sum(marks) for index, (_, _, marks) in responses(group).items()}
    assert dict(zip(group.indices.tolist(), group.group.num_sampled.tolist(), strict=True)) == counts
    lengths = dict(zip(group.indices.tolist(), group.group.lengths.tolist(), strict=True))
    assert all(lengths[index] == counts[index] + 3 * (num_turns[index] - 1) for index in counts)


def test_the_reward_of_a_trajectory_is_the_sum_of_its_turns_or_the_last_ones() -> None:
    by_sum = sample(one_to_four_turns)
    by_last = sample(one_to_four_turns, trajectory_reward="last")
    for chunk, record in zip(by_sum.group.chunks, by_sum.turns, strict=True):
        assert record is not None
        assert (record.rewards[:, :-1] == 0.25).all()
        assert len(record.rewards) == len(chunk.indices)
    np.testing.assert_allclose(by_sum.rewards - by_last.rewards, 0.25 * (by_sum.num_turns - 1))


def test_an_environment_that_ends_every_trajectory_at_once_is_a_verifier() -> None:
    group = sample(lambda step: outcome(1.0, has_ended=True))
    assert len(group.group.chunks) == 4, "16 rollouts in chunks of five"
    assert all(chunk.data.is_sampled is None and chunk.num_sampled is None for chunk in group.group.chunks)
    assert group.rewards.tolist() == [1.0] * 16


def test_a_trajectory_without_room_for_another_turn_ends_truncated() -> None:
    tight = Sampling(1.0, 1.0, max_tokens=8)
    group = sample(lambda step: outcome(0.5), sampling=tight)
    assert not group.group.is_stopped.any()
    for index, (tokens, _, is_sampled) in responses(group).items():
        assert len(tokens) <= 8, f"rollout {index}"
        assert len(tokens) + len(OBSERVATION) >= 8, "else it would have gone on"
        assert is_sampled[-1]
    np.testing.assert_allclose(group.rewards, 0.5 * group.num_turns)


def test_a_turn_takes_no_more_tokens_than_it_may() -> None:
    short = Sampling(1.0, 1.0, max_tokens=64, max_turn_tokens=2)
    group = sample(one_to_four_turns, sampling=short)
    for chunk in group.group.chunks:
        for start, end in pairwise(chunk.data.offsets.tolist()):
            assert max(high - low for low, high in turn_bounds(chunk.data, start, end)) <= 2


def test_an_environment_that_fails_costs_its_own_trajectory_with_the_reason() -> None:
    def crashing(step: EpisodeStep) -> EpisodeOutcome:
        if step.episode.endswith("/3") and len(step.actions) == 2:
            return outcome(9.0, error="crashed")
        return outcome(0.25) if len(step.actions) == 1 else outcome(0.5, has_ended=True)

    group = sample(crashing)
    rewards = dict(zip(group.indices.tolist(), group.rewards.tolist(), strict=True))
    assert rewards.pop(3) == 0.0
    assert set(rewards.values()) == {0.75}
    assert group.num_failed == 1
    assert [evidence.example for evidence in group.evidence if evidence.num_raised] == ["crashed"]
    by_turn: dict[int, list[float]] = {}
    for chunk, record in zip(group.group.chunks, group.turns, strict=True):
        assert record is not None
        by_turn |= dict(zip(chunk.indices.tolist(), record.rewards.tolist(), strict=True))
    assert not any(by_turn[3]), "its first turn earns nothing either, whatever credit turns get"


def batches_of(config: BroRLConfig, generator: TurnGenerator, verifier: EnvironmentVerifier) -> Batches:
    sizes = replace(RunSizes.from_config(config), num_engines=1)
    sampler = Sampler(generator, verifier, Console(), chunk_size=5, seed=1)
    return Batches(config.rollouts, config.dynamic_sampling, config.policy.optim, sizes, EnvironmentPrompts(), sampler)


def small_config(**rollouts: object) -> BroRLConfig:
    config = BroRLConfig()
    config.rollouts.max_response_tokens = 64
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 16, 3
    for name, value in rollouts.items():
        setattr(config.rollouts, name, value)
    return config


def filled(batches: Batches, cut_after: int | None = None) -> BatchFill:
    """A fill, cut after so many turns of the stream."""
    fill = batches.begin(version=0)
    turns = 0
    while not fill.is_done:
        turns += 1
        if turns == cut_after:
            batches.settings.step_deadline_s = 1e-9
        fill.advance()
    return fill


def by_rollout(groups: Sequence[ScoredGroup]) -> dict[tuple[str, int], list[int]]:
    tokens: dict[tuple[str, int], list[int]] = {}
    for group in groups:
        for index, (token_ids, _, _) in responses(group).items():
            assert (group.prompt.uid, index) not in tokens, "no rollout is in a group twice"
            tokens[group.prompt.uid, index] = token_ids
    return tokens


@pytest.mark.parametrize("cut_after", range(2, 12))
def test_trajectories_cut_at_any_moment_are_carried_and_end_once(cut_after: int) -> None:
    generator, verifier = TurnGenerator(), EnvironmentVerifier()
    generator.num_per_poll, verifier.num_per_poll = 2, 1
    whole = by_rollout(filled(batches_of(small_config(), TurnGenerator(), EnvironmentVerifier())).finish().sampled)
    batches = batches_of(small_config(unfinished="resume", min_fraction=1.0), generator, verifier)
    groups = list(filled(batches, cut_after).finish().sampled)
    assert verifier.host.instances == {}, "environments of what was cut have ended"
    batches.settings.step_deadline_s = None
    assert batches.carry_over.leftovers.partial, "something was cut"
    groups += filled(batches).finish().sampled
    cut = by_rollout(groups)
    for key, tokens in whole.items():
        assert cut[key] == tokens
    assert max(verifier.host.num_steps.values()) == 1, "no turn is taken twice"
    assert verifier.host.num_made_anew > 0, "trajectories went on whose environments had ended"


def test_what_a_cut_step_had_sampled_is_replayed_turn_by_turn() -> None:
    verifier = EnvironmentVerifier()
    first = batches_of(small_config(), TurnGenerator(), verifier)
    whole = filled(first)
    chunks = whole.replay_cache.chunks
    generator = TurnGenerator()
    second = batches_of(small_config(), generator, verifier)
    second.carry_over.cut_step = tuple(chunks[: len(chunks) // 2])
    again = filled(second)
    before, after = whole.finish(), again.finish()
    assert by_rollout(after.batch) == by_rollout(before.batch)
    assert 0 < generator.num_samples < sum(len(scored.chunk.request.indices) for scored in chunks)
    assert after.metrics["rollouts/salvaged"] > 0


def test_turns_of_one_group_do_not_wait_for_those_of_another() -> None:
    """The environment of the first prompt never answers until all else is done."""
    verifier = EnvironmentVerifier()
    generator = TurnGenerator()
    order: list[str] = []
    submit = verifier.submit
    held: list[RolloutChunk] = []

    def slow_submit(chunk: RolloutChunk) -> None:
        if chunk.request.prompt.uid == "train/0" and not held:
            held.append(chunk)
        else:
            submit(chunk)

    verifier.submit = slow_submit  # type: ignore[method-assign]
    sampler = Sampler(generator, verifier, Console(), chunk_size=16, seed=1)
    stream = sampler.open_stream()
    for number in range(3):
        stream.open(environment_prompt(f"train/{number}"), 16, LONG)
    for _ in range(20):
        order += [group.uid for group in stream.advance()]
    assert sorted(order) == ["train/1", "train/2"]
    submit(held[0])
    while not stream.is_idle:
        order += [group.uid for group in stream.advance()]
    assert order[-1] == "train/0"


def test_ten_thousand_trajectories_close_though_tools_hang_and_crash() -> None:
    def faulty(step: EpisodeStep) -> EpisodeOutcome:
        fate = draw(step.episode, len(step.actions)) % 100
        if fate < 5:
            return outcome(error="has not ended after 5 s")
        if fate < 10:
            return outcome(error="crashed")
        return one_to_four_turns(step)

    verifier = EnvironmentVerifier(faulty)
    sampler = Sampler(TurnGenerator(), verifier, Console(), chunk_size=64, seed=1)
    prompts = [environment_prompt(f"train/{number}") for number in range(20)]
    groups = sampler.sample(prompts, 512, LONG, "test")
    assert [len(group.rewards) for group in groups] == [512] * 20
    num_failed = sum(group.num_failed for group in groups)
    assert 0.1 < num_failed / (20 * 512) < 0.3, "one turn in ten fails, of one to four"
    num_late = sum(evidence.num_late for group in groups for evidence in group.evidence)
    num_raised = sum(evidence.num_raised for group in groups for evidence in group.evidence)
    assert num_late + num_raised == num_failed
    assert 0.4 < num_late / num_failed < 0.6
    assert verifier.host.instances == {}


def test_metrics_count_turns_mistakes_and_observations() -> None:
    group = sample(one_to_four_turns)
    metrics = trajectory_metrics([group])
    assert metrics["trajectories/turns"] == group.num_turns.mean()
    assert metrics["trajectories/turns_max"] == 4
    assert metrics["trajectories/observation_tokens"] == 3 * (group.num_turns.mean() - 1)
    assert 0 < metrics["trajectories/tool_errors"] < 0.5
    assert trajectory_metrics([make_group([0.0, 1.0])]) == {}
    kept = answers_of(group)
    by_index = dict(zip(group.indices.tolist(), group.num_turns.tolist(), strict=True))
    assert kept.turns == tuple(by_index[index] for index in range(16)), "in the order of their seeds"
    assert kept.tool_errors is not None
    assert sum(kept.tool_errors) / group.num_turns.sum() == pytest.approx(metrics["trajectories/tool_errors"])
