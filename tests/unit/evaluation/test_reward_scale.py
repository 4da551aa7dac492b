"""One meaning of right: a full mark that travels with the prompt, and what is said of rewards at the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brorl_graders import full_mark, lowest_right
from brorl_graders.environments.judged import VerifyAndRetry

from nemo_brorl.algorithm.advantages import GroupRewards
from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.algorithm import AlgorithmConfig
from nemo_brorl.config.data import DataConfig, DomainConfig
from nemo_brorl.config.rewards import ShapingConfig
from nemo_brorl.config.rollouts import DynamicSamplingConfig
from nemo_brorl.evaluation.answers import AnswerFile, answers_of
from nemo_brorl.evaluation.estimates import success
from nemo_brorl.evaluation.reward_scale import scale_lines
from nemo_brorl.evaluation.shown_responses import summary
from nemo_brorl.rollouts.dynamic_sampling import judge
from nemo_brorl.rollouts.ledger import close_group
from nemo_brorl.rollouts.metrics import domain_metrics, mean_pass_at, success_histogram
from nemo_brorl.rollouts.spent import outcomes
from nemo_brorl.types import ScoredGroup, is_right
from tests.support.fakes import make_prompt, score_chunk
from tests.unit.evaluation.answers import group_of, identity, make_benchmark

NINE_TENTHS = {"data.success_reward": 0.9}


def of_domain(domain: str, rewards: Sequence[float], verifier: str, **payload: Any) -> ScoredGroup:
    group = group_of(rewards, verifier, **payload)
    prompt = replace(group.prompt, domain=domain)
    return replace(group, group=replace(group.group, prompt=prompt))


@pytest.mark.parametrize("mark", [0.9, 1.0, 0.5, 10.0, 100.0, 1 / 3, 0.0, -2.0])
def test_the_full_mark_in_32_bits_is_right_and_the_next_part_of_it_is_not(mark: float) -> None:
    group = group_of([mark, mark - 0.05 * max(abs(mark), 1)], **{"data.success_reward": mark})
    assert is_right(group).tolist() == [True, False]
    assert lowest_right(full_mark({})) == 1.0 - 1e-6


def test_every_count_of_right_rollouts_asks_the_full_mark_of_the_prompt() -> None:
    half, whole = group_of([0.9, 0.1, 0.9, 0.0], **NINE_TENTHS), group_of([0.9] * 4, **NINE_TENTHS)
    assert outcomes([half]) == [(half.prompt, 0.5)]
    assert mean_pass_at([half, whole])[1] == pytest.approx(0.75)
    assert success_histogram([half, whole])["rollouts/successes_all"] == 0.5
    assert judge(whole, DynamicSamplingConfig()).reason == "all_correct"
    assert judge(group_of([0.9] * 4), DynamicSamplingConfig()).reason == "all_equal"
    assert "2 of 4 right" in summary([half])[0]
    assert success(answers_of(half)) == 0.5


def test_the_covered_mass_and_the_advantages_of_right_rollouts_ask_it_too() -> None:
    prompt = replace(make_prompt("train/0"), payload=NINE_TENTHS)
    half = group_of([0.9, 0.1, 0.9, 0.0], **NINE_TENTHS)
    chunk = replace(half.group.chunks[0], request=replace(half.group.chunks[0].request, prompt=prompt))
    closed = close_group(prompt, [score_chunk(chunk, [0.9, 0.1, 0.9, 0.0])])
    assert closed.mass.correct == pytest.approx(2 / 8)
    algorithm = AlgorithmConfig(advantage="pass_at_k", pass_at_k=1)
    (advantages,) = make_train_batch([half], 1, algorithm, ShapingConfig(), 8).advantages
    np.testing.assert_allclose(advantages, [1, -1, 1, -1], rtol=1e-6)


def test_answers_of_an_earlier_version_are_read_and_right_from_1_on(tmp_path: Path) -> None:
    group = group_of([1.0, 0.9])
    with AnswerFile(tmp_path, identity(make_benchmark())) as file:
        file.add(answers_of(group))
    text = file.path.read_text()
    file.path.write_text(text.replace(',"full_mark":1.0', ""))
    assert text != file.path.read_text()
    with AnswerFile(tmp_path, identity(make_benchmark())) as again:
        assert again.found["train/0"].is_correct == (True, False)


def test_an_answer_that_has_the_full_mark_ends_an_environment_that_lets_the_model_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = VerifyAndRetry(max_turns=3)
    environment.reset({"text": "?", "verifier": "exact_match", "payload": {"answer": "7", **NINE_TENTHS}}, 0)
    monkeypatch.setattr(environment, "score", lambda text: 0.9)
    assert environment.step(type("Said", (), {"text": "7"})()).terminated


def test_rewards_that_differ_by_rounding_alone_make_no_domain_informative() -> None:
    noise = of_domain("d", [33.333332] * 7 + [33.333336], "own:f")
    assert domain_metrics([noise])["domain/d/informative"] == 0
    assert domain_metrics([of_domain("d", [0.0, 0.01], "own:f")])["domain/d/informative"] == 1


@pytest.mark.parametrize(
    ("rewards", "verifier", "payload", "line"),
    [
        ([0, 0.9], "own:f", {}, "rewards 0 to 0.9, none reaches data.success_reward=1: set data.success_reward=0.9 "),
        ([-1, 0.5], "own:f", {}, "rewards -1 to 0.5, none reaches data.success_reward=1: set data.success_reward=0.5 "),
        (
            [1, 10],
            "own:f",
            {},
            "rewards 1 to 10, and a response is right from data.success_reward=1 on: set data.success_reward=10 ",
        ),
        ([0, 0.9], "own:f", NINE_TENTHS, "rewards 0 to 0.9, right from data.success_reward=0.9 on"),
        ([0, 0], "own:f", {}, "rewards 0 to 0, right from data.success_reward=1 on"),
        ([0, 0.01], "exact_match", {}, None),
        ([0, 1], "exact_match", {}, None),
    ],
)
def test_the_start_says_which_rewards_it_saw_and_what_to_set(
    rewards: list[float], verifier: str, payload: dict[str, float], line: str | None
) -> None:
    lines = scale_lines([group_of(rewards, verifier, **payload)], DataConfig(), "grpo")
    assert [found.strip().startswith(line or "-") for found in lines] == ([] if line is None else [True])


def mixture(**second: Any) -> DataConfig:
    return DataConfig(source="mixture", domains=[DomainConfig(name="math"), DomainConfig(name="points", **second)])


def test_domains_whose_scales_differ_tenfold_are_named_with_what_to_set() -> None:
    groups = [of_domain("math", [0, 0], "exact_match"), of_domain("points", [0, 10], "own:f")]
    first, second = scale_lines(groups, mixture(), "reinforce_plus_plus_baseline")
    assert "set data.domains.1.success_reward=10 if" in first
    assert second.strip().startswith("rewards of domain points reach 10, those of domain math 1,")
    assert second.endswith("set algorithm.advantage=grpo")
    assert len(scale_lines(groups, mixture(), "grpo")) == 1
    close = [of_domain("math", [0, 1], "exact_match"), of_domain("points", [0, 9], "own:f")]
    assert len(scale_lines(close, mixture(), "reinforce_plus_plus_baseline")) == 1


def test_rewards_of_single_rollouts_keep_their_full_mark() -> None:
    rewards = np.array([0.9, 0.0], np.float32)
    chosen = GroupRewards(rewards, rewards, np.array([1, 1], np.int32), 0.9).select(np.array([0]))
    assert chosen.is_correct.tolist() == [True]
