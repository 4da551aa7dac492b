"""The rehearsal: what it shows of a model, and that it uses nothing up."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.algorithm.keep_rate import expected_keep_rate
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import VerifierError
from nemo_brorl.evaluation import rehearsal
from nemo_brorl.evaluation.rehearsal import Rehearsed, print_rehearsal, rehearse, sizes_that_fill
from nemo_brorl.types import ScoredGroup
from tests.support.fakes import FakeGenerator, ListSink, make_prompt
from tests.support.loop import fake, make_trainer, small_config
from tests.unit.evaluation.answers import group_of

ANSWERS = {10: "<answer>7</answer>", 20: "The answer is 7.", 30: "I do not know", 0: "<answer>8</answer>"}


def decode(token_ids: Sequence[int]) -> str:
    """Text of a response by its first token, which is ten times its place in the group."""
    return ANSWERS.get(token_ids[0], "the question")


def never() -> bool:
    """Nobody asks to stop."""
    return False


def lines_of(capsys: pytest.CaptureFixture[str], groups: list[ScoredGroup], num_asked: int = 4) -> str:
    config = BroRLConfig()
    print_rehearsal(config, Rehearsed(groups, num_asked, num_tokens=8, seconds=2.0), decode, Console())
    return capsys.readouterr().out


def test_three_responses_are_shown_with_what_they_earn_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines_of(capsys, [group_of([0.0, 1.0, 0.0, 0.0])])
    assert "rehearsal: 4 of 4 responses ended in 2.0 s" in printed
    assert "reward 0.250, 1 of 4 right" in printed
    assert "reward 1.00 for train/0 (toy): answer found: '7', the reference is '7'" in printed
    assert "no answer found between <answer> and </answer>; the reference is '7'" in printed
    assert printed.count("    said:") == 3
    assert "    | <answer>7</answer>" in printed


def test_groups_that_are_all_wrong_say_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines_of(capsys, [group_of([0.0] * 4)])
    assert (
        "no response was right: use easier questions, another data.answer_format, `brorl sft` first, or a larger N"
        in printed
    )


def test_right_answers_that_are_all_cut_are_told_apart_from_wrong_ones(capsys: pytest.CaptureFixture[str]) -> None:
    cut = group_of([0.0, 1.0, 0.0, 0.0])
    chunks = tuple(replace(chunk, is_stopped=np.zeros(4, bool)) for chunk in cut.group.chunks)
    config = BroRLConfig()
    config.rewards.shaping.truncated_factor = 0.0
    cut = replace(cut, group=replace(cut.group, chunks=chunks))
    print_rehearsal(config, Rehearsed([cut], 4, num_tokens=8, seconds=2.0), decode, Console())
    printed = capsys.readouterr().out
    assert "1 of 4 right" in printed and "no response was right" not in printed
    proposal = f"if right responses are cut, raise rollouts.max_response_tokens={config.rollouts.max_response_tokens}"
    assert f"rewards differ, but not after rewards.shaping: {proposal}" in printed


def test_the_time_of_a_step_follows_from_the_pace(capsys: pytest.CaptureFixture[str]) -> None:
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 8, 4
    config.dynamic_sampling.enabled = False
    print_rehearsal(config, Rehearsed([group_of([0.0, 1.0])], 2, num_tokens=8, seconds=2.0), decode, Console())
    # 8 x 4 rollouts of 2 tokens at 4 tokens a second
    assert (
        "a step: about 32 rollouts of 2 tokens for a batch of 8 × 4; sampling about 16 s at this speed"
        in capsys.readouterr().out
    )


def test_a_slow_reward_is_not_blamed_on_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    none_scored = Rehearsed([], 64, num_tokens=2240, seconds=1.4, num_sampled=64, scoring_s=60.0)
    config = BroRLConfig()
    config.rewards.num_workers = 2
    print_rehearsal(config, none_scored, decode, Console())
    printed = capsys.readouterr().out
    assert "all 64 responses were sampled in 1.4 s, and none was scored in the 60 s after" in printed
    assert "rewards.num_workers=4, now 2" in printed
    assert "max_response_tokens" not in printed


def test_a_step_waits_for_slow_scores(capsys: pytest.CaptureFixture[str]) -> None:
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 8, 4
    config.dynamic_sampling.enabled = False
    found = Rehearsed([group_of([0.0, 1.0])], 2, num_tokens=8, seconds=2.0, num_sampled=2, scoring_s=10.0)
    print_rehearsal(config, found, decode, Console())
    # 8 x 4 rollouts, of which 2 were sampled in 2 s and scored in 12 s
    printed = capsys.readouterr().out
    assert "sampling about 32 s at this speed, scoring about 192 s" in printed
    assert "the first step tells" in printed


class TimedPolicy:
    """Scores a call in 2 s, whatever is in it."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock
        self.num_tokens: list[int] = []  # of each call

    def log_probs(self, prompts: Sequence[Any], responses: Sequence[Any], with_fp8: bool) -> None:
        self.clock[0] += 2.0
        self.num_tokens.append(sum(map(len, prompts)) + sum(map(len, responses)))


@pytest.mark.parametrize(
    ("gpus", "calls", "seconds"),
    [
        # 3 passes, 3/4 of one for log-probs of old weights, one for the reference; 8 x 4 rollouts of 2 tokens
        # a call takes 2 s, so that two copies take what a CPU may
        (0, [5, 5, 10, 10], 4.75 * 64 * 2.0 / 10),
        (1, [1000, 1000], 4.75 * 64 * 2.0 / 1000),
    ],
)
def test_learning_is_timed_on_a_full_micro_batch_or_for_seconds_on_a_cpu(
    gpus: int, calls: list[int], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 8, 4
    config.algorithm.num_mini_batches = 4
    config.policy.tokens_per_micro_batch = 1004
    config.trainer.gpus_per_node = gpus
    clock = [0.0]
    monkeypatch.setattr(rehearsal.time, "monotonic", lambda: clock[0])
    policy = TimedPolicy(clock)
    group = group_of([0.0, 1.0])
    assert len(group.prompt.token_ids) == 3
    found = rehearsal.training_s(config, [group], policy, mean_tokens=2.0)
    assert policy.num_tokens == calls
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("num", "seconds", "sizes"),
    [
        (512, 1.0, (8, 16)),  # two engines of 64 sequences
        (8, 1.0, (16, 8)),
        (512, 16.0, (8, 10)),  # 64 rollouts took 16 s, so 80 take 20 s
        (512, 100.0, (8, 8)),
    ],
)
def test_a_second_rehearsal_fills_the_engines_within_its_time(num: int, seconds: float, sizes: tuple[int, int]) -> None:
    config = BroRLConfig()
    config.generation.num_engines, config.generation.max_num_seqs = 2, 64
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = num, 16
    first = Rehearsed([group_of([0.0, 1.0])], 64, 640, seconds)
    assert sizes_that_fill(config, first) == sizes
    config.rewards.services.endpoints = {"judge": "http://localhost:8000"}
    assert sizes_that_fill(config, first) == (8, 8), "each reward of a service may cost something"


def test_little_evidence_leaves_a_wide_interval() -> None:
    mixed = expected_keep_rate([1, 4, 0, 8, 2, 0, 3, 5], [8] * 8, 16)
    none = expected_keep_rate([0] * 8, [8] * 8, 16)
    many = expected_keep_rate([0] * 8, [8] * 8, 512)
    assert none.low <= none.mean < 0.3 < mixed.low < mixed.mean < mixed.high
    assert none.mean < many.mean, "a larger N finds what is rare"
    assert many.high - many.low > 0.3, "64 wrong responses say little about 512"


def test_what_does_not_end_in_time_is_cut(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    generator = trainer.parts.generator
    assert isinstance(generator, FakeGenerator)
    generator.held_from = 0
    found = rehearse(small_config(), [make_prompt("train/0")], trainer.parts.sampler, never, limit_s=-1.0)
    assert found.groups == []
    print_rehearsal(small_config(), found, decode, Console())
    assert "none ended within 40 s: lower rollouts.max_response_tokens=32" in capsys.readouterr().out


def test_asked_to_stop_it_waits_for_nobody(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, small_config())
    generator = trainer.parts.generator
    assert isinstance(generator, FakeGenerator)
    generator.held_from = 0  # these rollouts would never end
    asked = iter([False, False, True])
    found = rehearse(small_config(), [make_prompt("train/0")], trainer.parts.sampler, lambda: next(asked))
    assert found.groups == []
    assert next(asked, None) is None, "it looks at each turn"


def steady(row: Mapping[str, float]) -> dict[str, float]:
    """Metrics that no clock is in."""
    return {name: value for name, value in row.items() if not re.search(r"time/|_per_s|seconds", name)}


def test_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    plain, rehearsed = (make_trainer(tmp_path / name, small_config()) for name in ("plain", "rehearsed"))
    prompts = [make_prompt(f"train/{index}") for index in range(4)]
    assert len(rehearse(small_config(), prompts, rehearsed.parts.sampler, never).groups) == 4
    plain.fit()
    rehearsed.fit()
    sinks = (plain.parts.sink, rehearsed.parts.sink)
    assert isinstance(sinks[0], ListSink)
    assert isinstance(sinks[1], ListSink)
    for (step, row), (other_step, other) in zip(sinks[0].rows, sinks[1].rows, strict=True):
        assert step == other_step
        assert steady(row) == pytest.approx(steady(other), nan_ok=True)
    assert fake(plain).weight == fake(rehearsed).weight


def test_failures_are_counted_and_all_of_them_end_the_rehearsal(capsys: pytest.CaptureFixture[str]) -> None:
    errors = ("AttributeError: 'str' object has no attribute 'txt' (rew.py:8)",) * 2
    some = replace(group_of([0.0, 1.0]), errors=errors, num_failed=2)
    printed = lines_of(capsys, [some])
    assert "rehearsal: 4 of 4 responses ended" in printed
    assert f"reward  exact_match failed on 2 of 4: {errors[0]}\n" in printed
    none = replace(some, rewards=some.rewards[:0])
    with pytest.raises(VerifierError, match="exact_match failed on 4 of 4"):
        lines_of(capsys, [replace(none, errors=errors * 2)])


def test_partial_rewards_that_differ_are_informative(capsys: pytest.CaptureFixture[str]) -> None:
    """No response is right, and dynamic sampling would keep two of the four groups."""
    groups = [group_of([0.0, 0.1, 0.1, 0.0]), group_of([0.0] * 4), group_of([0.3] * 4), group_of([0.0, 0.0, 0.2, 0.5])]
    printed = lines_of(capsys, groups)
    kept = expected_keep_rate([2, 0, 0, 1], [4] * 4, BroRLConfig().rollouts.stage_sizes()[0][0])
    assert f": {kept.mean:.0%} (80 % interval" in printed
    assert kept.mean > 0.5
    assert "no response was right" not in printed
