"""One rank, the whole path: log-probs as transformers computes them, updates that do not depend on how work was cut."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.file_sums import SUMS
from nemo_brorl.policy.rank.hf_log_probs import hf_log_probs
from nemo_brorl.types import UpdatePlan
from tests.support.closeness import (
    GRADIENT_BOUND,
    LOG_PROB_BOUND,
    check_same_update,
    gradient_difference,
    gradients_of,
    largest_difference,
)
from tests.support.learners import save
from tests.support.model_factory import VOCAB_SIZE, as_trajectories, make_config, make_model, make_plan

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

# Relative, of metrics. Where a gradient is tiny its rounding decides where Adam goes, by a few percent of a step: 2e-5
# of what follows is seen.
AFTER_A_STEP = 1e-4

NewLearner = Callable[[Path, BroRLConfig], Any]


def sequences(num: int = 8) -> tuple[list[list[int]], list[list[int]]]:
    rng = np.random.default_rng(1)
    return tuple([rng.integers(0, VOCAB_SIZE, rng.integers(1, 12)).tolist() for _ in range(num)] for _ in range(2))


def make_packed_groups(num: int) -> list[Any]:
    """Prompts with one response each."""
    from nemo_brorl.policy.rows.packed_rows import PackedGroup, Response

    packed_groups = []
    for index, (prompt, response) in enumerate(zip(*sequences(num), strict=True)):
        tokens = np.array(response, np.int32)
        drawn = Response(index, 0, tokens, np.zeros(len(tokens), np.float32), 1.0, is_fresh=True)
        packed_groups.append(PackedGroup(np.array(prompt, np.int32), (drawn,)))
    return packed_groups


def weights(learner: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.hf_export.stream()}


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_log_probs_are_those_of_transformers(architecture: str, new_learner: NewLearner, tmp_path: Path) -> None:
    folder = make_model(tmp_path, architecture)
    config = make_config(tokens_per_micro_batch=40)  # several rows
    config.rollouts.temperature = 0.8
    prompts, responses = sequences()
    own = new_learner(folder, config).log_probs(prompts, responses)
    for mine, theirs in zip(own, hf_log_probs(folder, prompts, responses, 0.8), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=LOG_PROB_BOUND)


def test_sharing_a_prompt_changes_neither_loss_nor_gradient(new_learner: NewLearner, model_folder: Path) -> None:
    plan, apart = (make_plan(num_mini_batches=1, shared=shared) for shared in (True, False))
    check_same_update(*(new_learner(model_folder, make_config()) for _ in range(2)), plan, apart)


def test_the_cut_into_micro_batches_changes_neither_loss_nor_gradient(
    new_learner: NewLearner, model_folder: Path
) -> None:
    one, many = (make_plan(num_mini_batches=1, micro_batches=num) for num in (1, 5))
    check_same_update(*(new_learner(model_folder, make_config()) for _ in range(2)), one, many)


@pytest.mark.parametrize("other", [{"shared": False}, {"micro_batches": 5}], ids=["apart", "cut"])
def test_a_second_mini_batch_is_trained_alike_too(
    other: dict[str, Any], new_learner: NewLearner, model_folder: Path
) -> None:
    first, second = (
        new_learner(model_folder, make_config()).update(plan) for plan in (make_plan(), make_plan(**other))
    )
    assert second.metrics == pytest.approx(first.metrics, rel=AFTER_A_STEP)


def test_a_response_that_weighs_one_percent_more_is_seen_in_the_gradient(
    new_learner: NewLearner, model_folder: Path
) -> None:
    """Moves it far beyond what rounding may do."""
    plan = make_plan(num_mini_batches=1)
    heavier = plan.groups[0].advantages * np.array([1.01] + 7 * [1.0], np.float32)
    groups = (replace(plan.groups[0], advantages=heavier), *plan.groups[1:])
    one, other = (new_learner(model_folder, make_config()) for _ in range(2))
    one.update(plan)
    other.update(replace(plan, groups=groups))
    assert gradient_difference(gradients_of(one), gradients_of(other)) > 20 * GRADIENT_BOUND


def as_sampled_by(learner: Any, plan: UpdatePlan) -> UpdatePlan:
    """The plan with the log-probs that a learner gives its responses."""
    groups = []
    for group in plan.groups:
        chunks = []
        for chunk in group.chunks:
            responses = [tokens.tolist() for tokens in np.split(chunk.token_ids, chunk.offsets[1:-1])]
            log_probs = learner.log_probs([group.prompt_ids.tolist()] * len(responses), responses)
            chunks.append(replace(chunk, log_probs=np.concatenate(log_probs)))
        groups.append(replace(group, chunks=tuple(chunks)))
    return replace(plan, groups=tuple(groups))


def test_the_samplers_log_probs_as_old_ones_learn_the_same_without_a_pass_to_score(
    new_learner: NewLearner, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nemo_brorl.policy.rank import update

    configs = [make_config(old_log_probs=old) for old in ("policy", "sampler")]
    for config in configs:
        config.algorithm.kl.coefficient = 0.0
        config.algorithm.importance_correction.enabled = False
    one, other = (new_learner(model_folder, config) for config in configs)
    plan = as_sampled_by(one, make_plan())
    scored: list[int] = []
    score_rows = update.score_rows

    def note_and_score(chunks: Any, rows: Any) -> Any:
        scored.append(len(rows))
        return score_rows(chunks, rows)

    monkeypatch.setattr(update, "score_rows", note_and_score)
    before = one.update(plan).metrics
    assert len(scored) == 1, "of the second mini-batch"
    after = other.update(plan).metrics
    assert len(scored) == 1, "none more"
    for name in ("policy/loss", "policy/grad_norm", "policy/clip_fraction"):
        assert after[name] == pytest.approx(before[name], rel=AFTER_A_STEP, abs=1e-6), name
    assert after["policy/log_prob_mismatch"] < 1e-5, "measured in the first mini-batch"


def test_the_samplers_log_probs_are_what_the_loss_is_clipped_by(new_learner: NewLearner, model_folder: Path) -> None:
    """Random ones are far from the policy's, so that most ratios are clipped in the first mini-batch."""
    config = make_config(old_log_probs="sampler")
    config.algorithm.importance_correction.enabled = False
    metrics = new_learner(model_folder, config).update(make_plan(num_mini_batches=1)).metrics
    assert metrics["policy/clip_fraction"] > 0.2
    assert metrics["policy/log_prob_mismatch"] > 0.1


def test_trees_of_trajectories_change_no_metric(new_learner: NewLearner, model_folder: Path) -> None:
    """The loss looks at whole responses, whose tokens lie in several segments; two optimizer steps."""
    config = make_config(min_shared_tokens=1)
    config.algorithm.aggregation = "sequence_turn_mean"
    config.algorithm.importance_correction.kind = "sequence_tis"
    plans = [as_trajectories(make_plan(shared=shared, objective="gspo")) for shared in (True, False)]
    tree, plain = (new_learner(model_folder, config).update(plan).metrics for plan in plans)
    assert tree == pytest.approx(plain, rel=1e-3)  # the gain is a small difference of ratios after a step of Adam


@pytest.mark.parametrize("kind", ["clip_cov", "kl_cov"])
def test_tokens_that_are_held_are_the_same_however_a_mini_batch_is_cut(
    kind: str, new_learner: NewLearner, model_folder: Path
) -> None:
    config = make_config()
    config.algorithm.loss_params = {"covariance": {"kind": kind, "share": 0.1, "low": 0.1}}
    free, one, many = (new_learner(model_folder, used) for used in (make_config(), config, config))
    without = free.update(make_plan()).metrics
    first, second = one.update(make_plan(micro_batches=1)), many.update(make_plan(micro_batches=5))
    assert 0.05 < first.metrics["policy/covariance_tokens"] <= 0.1
    assert second.metrics == pytest.approx(first.metrics, rel=AFTER_A_STEP)
    assert first.metrics["policy/grad_norm"] != pytest.approx(without["policy/grad_norm"], rel=1e-3)


def test_repeating_an_update_is_bit_identical(new_learner: NewLearner, model_folder: Path) -> None:
    first, second = (new_learner(model_folder, make_config()) for _ in range(2))
    assert first.update(make_plan()).metrics == second.update(make_plan()).metrics
    assert largest_difference(weights(first), weights(second)) == 0


def ppo_clip_with_a_word_of_its_own(batch: Any, config: Any) -> Any:
    from nemo_brorl.algorithm.losses import ppo_clip

    sums = ppo_clip(batch, config)
    return replace(sums, metrics={**sums.metrics, "policy/loss": torch.tensor(math.nan)})


def test_what_a_users_loss_reports_skips_no_step(new_learner: NewLearner, model_folder: Path) -> None:
    objective = f"{__name__}:ppo_clip_with_a_word_of_its_own"
    own = new_learner(model_folder, make_config()).update(make_plan(objective=objective))
    built_in = new_learner(model_folder, make_config()).update(make_plan())
    assert (own.num_skipped, own.num_updates) == (0, built_in.num_updates)
    assert own.metrics == built_in.metrics


def test_supervised_loss_is_the_mean_of_minus_log_prob(new_learner: NewLearner, model_folder: Path) -> None:
    learner, plan = new_learner(model_folder, make_config()), make_plan(num_mini_batches=1, objective="cross_entropy")
    prompts, responses = [], []
    for group in plan.groups:
        for chunk in group.chunks:
            parts = np.split(chunk.token_ids, chunk.offsets[1:-1])
            responses += [part.tolist() for part in parts]
            prompts += [group.prompt_ids.tolist()] * len(parts)
    expected = -np.concatenate(hf_log_probs(model_folder, prompts, responses, 1.0)).mean()
    report = learner.update(plan)
    assert report.metrics["policy/loss"] == pytest.approx(expected, rel=1e-5)
    assert "policy/log_prob_mismatch" not in report.metrics
    assert learner.update(plan).metrics["policy/loss"] < expected


def test_a_non_finite_mini_batch_is_skipped_and_changes_nothing(new_learner: NewLearner, model_folder: Path) -> None:
    learner, plan = new_learner(model_folder, make_config()), make_plan(num_mini_batches=1)
    before = weights(learner)
    groups = tuple(replace(group, advantages=np.full(8, np.nan, np.float32)) for group in plan.groups)
    report = learner.update(replace(plan, groups=groups))
    assert (report.num_updates, report.num_skipped) == (0, 1)
    assert math.isnan(report.metrics["policy/loss"]) and math.isnan(report.metrics["policy/grad_norm"])
    assert largest_difference(before, weights(learner)) == 0
    report = learner.update(plan)  # and the next good one is as if nothing had happened
    assert report.metrics == new_learner(model_folder, make_config()).update(plan).metrics


def test_the_learning_rate_is_the_plans(new_learner: NewLearner, model_folder: Path) -> None:
    """Adam's first step moves every weight that has a gradient by just under the learning rate."""
    for rate in (0.0, 1e-3):
        learner = new_learner(model_folder, make_config())
        before = weights(learner)
        learner.update(make_plan(num_mini_batches=1, learning_rate=rate))
        assert largest_difference(before, weights(learner)) == pytest.approx(rate, rel=1e-3)


def test_mismatch_compares_sampled_and_trained_log_probs(new_learner: NewLearner, model_folder: Path) -> None:
    learner, plan = new_learner(model_folder, make_config()), make_plan()
    shifted = tuple(
        replace(
            group,
            chunks=tuple(replace(chunk, log_probs=_exact(learner, group, chunk) - 0.25) for chunk in group.chunks),
        )
        for group in plan.groups
    )
    metrics = learner.update(replace(plan, groups=shifted)).metrics
    assert metrics["policy/log_prob_mismatch"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["policy/log_prob_mismatch_max"] == pytest.approx(0.25, abs=1e-4)
    assert metrics["policy/importance_weight"] == pytest.approx(math.exp(0.25), rel=1e-4)


def _exact(learner: Any, group: Any, chunk: Any) -> np.ndarray:
    responses = [part.tolist() for part in np.split(chunk.token_ids, chunk.offsets[1:-1])]
    return np.concatenate(learner.log_probs([group.prompt_ids.tolist()] * len(responses), responses))


def test_kl_is_to_the_reference_and_a_reset_moves_it(new_learner: NewLearner, model_folder: Path) -> None:
    learner, plan = new_learner(model_folder, make_config()), make_plan(num_mini_batches=1)
    assert learner.update(plan).metrics["policy/kl_to_reference"] == 0
    assert learner.update(plan).metrics["policy/kl_to_reference"] > 1e-4
    learner.reset_reference(clear_optimizer=False)
    assert learner.update(plan).metrics["policy/kl_to_reference"] == 0


def test_without_a_kl_term_there_is_no_reference(new_learner: NewLearner, model_folder: Path) -> None:
    config = make_config()
    config.algorithm.kl.coefficient = 0.0
    learner = new_learner(model_folder, config)
    assert learner.state.references == []
    assert "policy/kl_to_reference" not in learner.update(make_plan()).metrics


@pytest.mark.parametrize("num_updates", [0, 1])
def test_a_loaded_checkpoint_continues_bit_for_bit(
    num_updates: int, new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    for _ in range(num_updates):
        learner.update(make_plan(seed=1))
    save(learner, tmp_path / "checkpoint")
    expected = learner.update(make_plan(seed=2))
    other = new_learner(make_model(tmp_path / "other", seed=5), make_config())
    other.load(tmp_path / "checkpoint")
    assert other.update(make_plan(seed=2)).metrics == expected.metrics
    assert largest_difference(weights(learner), weights(other)) == 0


@pytest.mark.parametrize("file", ["metadata.json", "common.pt", ".metadata", "__0_0.distcp"])
def test_a_checkpoint_with_a_damaged_file_is_refused(
    file: str, new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    save(learner, tmp_path)
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:20])
    with pytest.raises(CheckpointError, match=f"damaged since it was saved: .*/{re.escape(file)} has 20 of"):
        learner.load(tmp_path)
    (tmp_path / SUMS).unlink()  # as an earlier version left it
    with pytest.raises(CheckpointError, match="cannot be read"):
        learner.load(tmp_path)


def test_an_empty_folder_is_no_checkpoint(new_learner: NewLearner, model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no policy checkpoint"):
        new_learner(model_folder, make_config()).load(tmp_path)


def test_an_export_can_be_trained_on_and_bf16_is_kept(
    new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config(precision="bf16"))
    learner.update(make_plan())
    learner.export(tmp_path / "hf")
    again = new_learner(tmp_path / "hf", make_config(precision="bf16"))
    assert largest_difference(weights(learner), weights(again)) == 0
    prompts, responses = sequences()
    own, theirs = learner.log_probs(prompts, responses), hf_log_probs(tmp_path / "hf", prompts, responses, 1.0)
    differences = np.abs(np.concatenate(own) - np.concatenate(theirs))
    assert differences.mean() < 0.05  # bf16 products against fp32


def test_a_batch_of_half_the_size_has_half_the_gradient(new_learner: NewLearner, model_folder: Path) -> None:
    plan = make_plan(num_mini_batches=1)
    whole = new_learner(model_folder, make_config()).update(plan)
    half = new_learner(model_folder, make_config()).update(replace(plan, loss_scale=0.5))
    assert half.metrics["policy/grad_norm"] == pytest.approx(whole.metrics["policy/grad_norm"] / 2, rel=1e-5)
    assert half.metrics["policy/loss"] == pytest.approx(whole.metrics["policy/loss"], rel=1e-5)


def test_a_plan_with_a_rollout_several_times_is_learnt_from(new_learner: NewLearner, model_folder: Path) -> None:
    plan = make_plan(num_mini_batches=1, micro_batches=1)
    ((micro,),) = plan.mini_batches[0]
    slices = tuple(replace(group_slice, rollouts=group_slice.rollouts * 2) for group_slice in micro.slices)
    prompt_tokens = micro.num_tokens - micro.num_loss_tokens
    twice = replace(
        micro,
        slices=slices,
        num_tokens=prompt_tokens + 2 * micro.num_loss_tokens,
        num_loss_tokens=2 * micro.num_loss_tokens,
    )
    once = new_learner(model_folder, make_config()).update(plan)
    again = new_learner(model_folder, make_config()).update(replace(plan, mini_batches=(((twice,),),)))
    assert again.metrics["policy/grad_norm"] == pytest.approx(once.metrics["policy/grad_norm"], rel=1e-5)
