"""When a batch is full, by `dynamic_sampling.fill`, and what batches of different sizes count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.config.rollouts import DynamicSamplingConfig, StageConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import StarvationError
from nemo_brorl.rollouts.dynamic_sampling import DynamicSampling
from nemo_brorl.training.trainer import BroRLTrainer
from nemo_brorl.types import RolloutChunk, ScoredChunk, ScoredGroup
from tests.support.fakes import FakeGenerator, FakeVerifier, make_group
from tests.support.loop import fake, last_row, make_trainer, small_config
from tests.support.train_batches import batch_of

INFORMATIVE = [0.0, 1.0]
USELESS = [0.0, 0.0]


def filled(config: DynamicSamplingConfig, groups: list[list[float]], wanted: int) -> tuple[DynamicSampling, int]:
    """A step over these groups, each judged before the next is begun; how many of them it took."""
    sampling = DynamicSampling(config)
    sampling.begin_step(version=0, wanted=wanted)
    for index, rewards in enumerate(groups):
        if sampling.is_full:
            return sampling, index
        assert sampling.num_to_admit() > 0
        sampling.admit([f"train/{index}"])
        sampling.offer(make_group(rewards, uid=f"train/{index}"))
    return sampling, len(groups)


def test_of_a_fixed_number_of_groups_the_informative_ones_are_learnt_from() -> None:
    config = DynamicSamplingConfig(fill="samples")
    sampling, num = filled(config, [INFORMATIVE, USELESS, INFORMATIVE, USELESS, INFORMATIVE], wanted=4)
    assert num == 4
    assert sampling.num_to_admit() == 0
    batch = sampling.take_batch()
    assert [group.prompt.uid for group in batch] == ["train/0", "train/2"]
    assert sampling.kept == []
    assert sampling.share_of_step(batch) == 0.5
    metrics = sampling.metrics()
    assert metrics["dynamic_sampling/sampled_rollouts"] == 8
    assert metrics["dynamic_sampling/informative_rollouts"] == 4
    assert metrics["dynamic_sampling/keep_rate"] == 0.5


def test_without_an_informative_group_sampling_goes_on_for_one() -> None:
    _, num = filled(DynamicSamplingConfig(fill="samples"), [USELESS] * 5 + [INFORMATIVE] * 5, wanted=2)
    assert num == 6
    sampling, _ = filled(DynamicSamplingConfig(fill="samples", max_sampled=2), [USELESS] * 4, wanted=2)
    with pytest.raises(StarvationError, match="found 0 of 1 informative groups among 4"):
        sampling.num_to_admit()


def test_at_least_goes_on_until_its_minimum_is_there() -> None:
    config = DynamicSamplingConfig(fill="at_least", min_groups=2)
    _, num = filled(config, [INFORMATIVE, USELESS, USELESS, USELESS, INFORMATIVE, INFORMATIVE], wanted=3)
    assert num == 5
    _, num = filled(config, [INFORMATIVE] * 9, wanted=3)
    assert num == 3, "more than the minimum: the budget is spent and all are kept"


def test_all_of_the_budget_is_in_flight_at_once_and_what_is_missing_by_the_keep_rate() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(fill="at_least", min_groups=2))
    sampling.keep_rate = 0.5
    sampling.begin_step(version=0, wanted=4)
    assert sampling.num_to_admit() == 4
    sampling.admit(f"train/{index}" for index in range(4))
    for index in range(4):
        sampling.offer(make_group(USELESS, uid=f"train/{index}"))
    # keep rate 0.5 · 0.95⁴ = 0.407: two missing need ceil(2 / 0.407) = 5
    assert sampling.num_to_admit() == 5


def test_a_batch_that_varies_in_size_counts_as_one_of_all_groups_sampled() -> None:
    """Sum over tokens of advantage times score, divided by the batch's rollouts and scaled: the same as with every
    group in the batch, whose own advantages are 0."""
    groups = [
        make_group([1, 0, 0, 0]),
        make_group([0, 0, 0, 0], uid="train/1"),
        make_group([1, 1, 1, 1], uid="train/2"),
    ]
    config = BroRLConfig()
    config.algorithm.advantage = "grpo"
    config.dynamic_sampling.fill = "samples"
    sampling = DynamicSampling(config.dynamic_sampling)
    sampling.begin_step(version=0, wanted=3)
    sampling.admit(group.prompt.uid for group in groups)
    for group in groups:
        sampling.offer(group)
    batch = tuple(sampling.take_batch())
    kept = batch_of(batch, config, sampling.share_of_step(batch))
    config.dynamic_sampling.enabled = False
    whole = batch_of(groups, config)
    scores = np.random.default_rng(0).normal(size=(3, 4))
    of_kept = kept.loss_scale * float(kept.advantages[0] @ scores[0]) / 4
    of_whole = sum(float(values @ score) for values, score in zip(whole.advantages, scores, strict=True)) / 12
    assert of_kept == pytest.approx(of_whole)


def test_steps_of_few_groups_weighed_like_those_of_many_are_noisier() -> None:
    """The number k of informative groups of a step is Poisson with mean 2, one at least; a group's gradient is 1 ± 3.
    Of what 20 steps have moved, the squared signal-to-noise by means is lower by 1 / (E[k] E[1/k]) = 1 / 1.34."""
    random, num_runs = np.random.default_rng(0), 20_000
    drawn = random.poisson(2.0, 100_000)
    sizes = random.choice(drawn[drawn > 0], (num_runs, 20))
    noise = 3 * np.sqrt(sizes) * random.normal(size=sizes.shape)

    def squared_signal_to_noise(factors: np.ndarray) -> float:
        signal = (factors * sizes).sum(1).mean()
        return float((signal / (factors * noise).sum(1).std()) ** 2)

    by_sums = squared_signal_to_noise(np.ones_like(sizes, float))
    by_means = squared_signal_to_noise(1 / sizes)
    assert sizes.mean() * (1 / sizes).mean() == pytest.approx(1.34, abs=0.02)
    assert by_sums / by_means == pytest.approx(1.34, abs=0.06)


class HardVerifier(FakeVerifier):
    """Of five prompts one is informative."""

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        scored = super().scored(chunk)
        is_hard = int(chunk.request.prompt.uid.rsplit("/", 1)[1]) % 5 > 0
        return replace(scored, rewards=np.zeros_like(scored.rewards)) if is_hard else scored


def config_of(fill: str, max_steps: int = 6) -> BroRLConfig:
    config = small_config(max_steps)
    config.rollouts.prompts_per_step = 3
    config.dynamic_sampling.fill = fill
    config.dynamic_sampling.min_groups = 2 if fill == "at_least" else 1
    return config


def hard_trainer(folder: Path, config: BroRLConfig, num_per_poll: int | None = None) -> BroRLTrainer:
    trainer = make_trainer(folder, config)
    generator = trainer.parts.generator
    assert isinstance(generator, FakeGenerator)
    generator.num_per_poll = num_per_poll
    trainer.parts.sampler.verifier = HardVerifier(period=3)
    return trainer


@pytest.mark.parametrize("fill", ["samples", "at_least"])
def test_what_is_sampled_does_not_depend_on_how_much_arrives_at_a_time(tmp_path: Path, fill: str) -> None:
    weights = []
    for name, num in (("one", 1), ("two", 2), ("all", None)):
        trainer = hard_trainer(tmp_path / name, config_of(fill), num)
        trainer.fit()
        weights.append(fake(trainer).weight)
    assert weights[0] == weights[1] == weights[2]
    sizes = {len(plan.groups) for plan in fake(trainer).plans}
    assert min(sizes) >= (2 if fill == "at_least" else 1)
    scales = [plan.loss_scale for plan in fake(trainer).plans]
    assert scales == [len(plan.groups) / 3 for plan in fake(trainer).plans]
    assert last_row(trainer)["dynamic_sampling/loss_scale"] == scales[-1]


@pytest.mark.parametrize("fill", ["samples", "at_least"])
@pytest.mark.parametrize("variant", ["plain", "overlap", "resume"])
def test_a_resumed_run_comes_to_what_one_does_that_was_never_stopped(tmp_path: Path, fill: str, variant: str) -> None:
    def config(max_steps: int) -> BroRLConfig:
        made = config_of(fill, max_steps)
        made.rollouts.overlap = variant == "overlap"
        if variant == "resume":
            made.rollouts.unfinished = "resume"
        return made

    whole = hard_trainer(tmp_path / "whole", config(6))
    whole.fit()
    first = hard_trainer(tmp_path / "parts", config(6))
    for _ in range(3):  # a checkpoint is written after two
        first.step()
        first.after_step()
    second = hard_trainer(tmp_path / "parts", config(6))
    assert second.resume()
    second.fit()
    assert fake(second).weight == fake(whole).weight
    assert second.batches.carry_over.state().carry_over == whole.batches.carry_over.state().carry_over


@pytest.mark.parametrize("overlap", [False, True])
def test_a_schedule_by_rollouts_is_the_same_after_a_restart(tmp_path: Path, overlap: bool) -> None:
    def config() -> BroRLConfig:
        made = config_of("samples", 8)
        made.rollouts.overlap = overlap
        made.rollouts.schedule.kind = "budget"
        made.rollouts.schedule.stages = [StageConfig(8, None, 100), StageConfig(12)]
        return made

    whole = hard_trainer(tmp_path / "whole", config())
    whole.fit()
    assert {plan.groups[0].advantages.size for plan in fake(whole).plans} == {8, 12}
    first = hard_trainer(tmp_path / "parts", config())
    for _ in range(3):  # a checkpoint is written after two
        first.step()
        first.after_step()
    second = hard_trainer(tmp_path / "parts", config())
    assert second.resume()
    second.fit()
    assert fake(second).weight == fake(whole).weight
    assert second.schedule.state_dict() == whole.schedule.state_dict()


def test_the_rest_of_a_cut_group_counts_as_its_share_of_the_group() -> None:
    sampling = DynamicSampling(DynamicSamplingConfig(fill="samples"))
    sampling.begin_step(version=0, wanted=4)
    rest: ScoredGroup = replace(make_group([0, 1, 0, 1]), train_indices=np.array([3]))
    assert sampling.share_of_step([make_group([0, 1]), rest]) == 1.25 / 4
