"""Groups that grow in waves, through filling, advantages and checkpoints, on fakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.algorithm.train_batch import make_train_batch
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.rollouts.batch_fill import BatchFill
from nemo_brorl.types import RolloutChunk, ScoredChunk, ScoredGroup
from tests.support.fakes import FakeVerifier, score_chunk
from tests.support.loop import fake, make_trainer, small_config


def config_of_waves(max_steps: int = 4) -> BroRLConfig:
    """Up to 16 rollouts in waves of 4, 4 and 8."""
    config = small_config(max_steps)
    config.rollouts.allocation, config.rollouts.num_per_prompt = "waves", 16
    config.rollouts.waves.first_wave, config.rollouts.waves.growth, config.rollouts.waves.half_signal = 4, 2.0, 1.0
    return config


def sampled(folder: Path) -> tuple[ScoredGroup, ...]:
    return make_trainer(folder, config_of_waves()).fill_batch().sampled


def test_a_group_is_as_large_as_its_waves_and_the_last_of_them_ends_at_n(tmp_path: Path) -> None:
    groups = sampled(tmp_path)
    for group in groups:
        assert len(group.rewards) == sum(wave.num_rollouts for wave in group.waves)
        assert [wave.num_rollouts for wave in group.waves] == [4, 4, 8][: len(group.waves)]
        assert group.waves[0].probability == 1.0
        assert all(0.2 <= wave.probability <= 1 for wave in group.waves)
        places = np.concatenate([chunk.indices for chunk in group.group.chunks])
        assert places.tolist() == list(range(len(group.rewards)))
    assert len({len(group.rewards) for group in groups}) > 1


def test_decisions_are_the_same_when_the_step_is_taken_again(tmp_path: Path) -> None:
    first, again = sampled(tmp_path / "a"), sampled(tmp_path / "b")
    assert [group.waves for group in first] == [group.waves for group in again]


def test_every_wave_of_a_batch_sums_to_no_advantage(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, config_of_waves())
    batch = make_train_batch(trainer.fill_batch().batch, trainer.config, 1)
    for group, advantages in zip(batch.groups, batch.advantages, strict=True):
        ends = np.cumsum([wave.num_rollouts for wave in group.waves])
        assert [float(part.sum()) for part in np.split(advantages, ends[:-1])] == pytest.approx(
            [0.0] * len(group.waves), abs=1e-5
        )


def test_a_resumed_run_with_waves_learns_what_the_whole_one_does(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", config_of_waves(4))
    whole.fit()
    half = make_trainer(tmp_path / "half", config_of_waves(2))
    half.fit()
    resumed = make_trainer(tmp_path / "half", config_of_waves(4))
    assert resumed.resume()
    resumed.parts.prompts.load_state_dict(half.parts.prompts.state_dict())
    resumed.fit()
    assert fake(resumed).weight == fake(whole).weight


def test_a_group_whose_last_wave_misses_the_deadline_closes_on_the_waves_before_it(tmp_path: Path) -> None:
    """Everything beyond a first wave is slow: dropping these groups would drop those worth extending."""
    config = config_of_waves()
    config.rollouts.step_deadline_s = 0.05
    trainer = make_trainer(tmp_path, config)
    trainer.parts.generator.held_from = 4  # type: ignore[attr-defined]
    filled = trainer.fill_batch()
    lost = filled.metrics["dynamic_sampling/lost_wave"]
    assert lost > 0
    assert filled.metrics["dynamic_sampling/timed_out"] == 0
    closed = {group.prompt.uid for group in filled.sampled}
    assert closed == set(trainer.parts.prompts.taken), "every prompt is there"  # type: ignore[attr-defined]
    for group in filled.sampled:
        assert [wave.num_rollouts for wave in group.waves] == [4]
        assert len(group.rewards) == 4


class RandomVerifier(FakeVerifier):
    """Every rollout of every prompt is right with the same probability."""

    rate = 0.3

    def scored(self, chunk: RolloutChunk) -> ScoredChunk:
        random = np.random.default_rng(chunk.request.seed + chunk.request.first_index)
        rewards = random.random(len(chunk.indices)) < self.rate
        return score_chunk(chunk, rewards.tolist())


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_a_deadline_takes_no_weight_from_prompts_worth_extending(tmp_path: Path, rate: float) -> None:
    """All later waves miss the deadline. The mean of the groups' estimates of p (1 − p) is that number."""
    num_groups = 1500
    config = config_of_waves()
    config.rollouts.prompts_per_step = num_groups
    config.rollouts.chunk_size = 8
    config.dynamic_sampling.enabled = False
    trainer = make_trainer(tmp_path, config)
    trainer.parts.generator.held_from = 4  # type: ignore[attr-defined]
    trainer.parts.sampler.chunk_size = 8
    verifier = RandomVerifier()
    verifier.rate = rate
    trainer.parts.sampler.verifier = verifier
    fill = BatchFill(trainer.batches.carry_over, trainer.schedule.stage, version=0)
    for _ in range(2):  # first waves are sampled, then scored and extended
        fill.advance(0.0)
    config.rollouts.step_deadline_s = 1e-9
    fill.complete()
    filled = fill.finish()
    assert filled.metrics["dynamic_sampling/lost_wave"] > num_groups / 10
    assert len(filled.sampled) == num_groups
    estimates = []
    for group in filled.sampled:
        (wave,) = group.waves
        right = float(group.rewards.sum())
        estimates.append(wave.weight * right * (4 - right) / (4 * 3))
    error = np.std(estimates) / np.sqrt(num_groups)
    assert np.mean(estimates) == pytest.approx(rate * (1 - rate), abs=4 * error)
