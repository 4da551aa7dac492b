"""The reference policy: exchanged with the model bit for bit, reset with or without Adam's state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.policy.state.reference import ReferenceWeights
from tests.support.model_factory import make_config, make_plan

pytestmark = pytest.mark.numbers

NewLearner = Callable[[Path, BroRLConfig], Any]


def params(learner: Any) -> list[torch.Tensor]:
    return [param.detach().clone() for model in learner.state.models for param in model.parameters()]


def are_equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inside_are_the_reference_weights_and_outside_the_current_ones(
    precision: str, new_learner: NewLearner, model_folder: Path
) -> None:
    learner = new_learner(model_folder, make_config(precision=precision))
    initial = params(learner)
    learner.update(make_plan())
    current = params(learner)
    assert not are_equal(initial, current)
    with learner.state.references[0].swapped_in():
        assert are_equal(params(learner), initial)
    assert are_equal(params(learner), current)


def test_weights_come_back_when_scoring_fails(new_learner: NewLearner, model_folder: Path) -> None:
    learner = new_learner(model_folder, make_config())
    initial = params(learner)
    learner.update(make_plan())
    current = params(learner)
    with pytest.raises(RuntimeError, match="out of memory"), learner.state.references[0].swapped_in():
        raise RuntimeError("out of memory")
    assert are_equal(params(learner), current)
    with learner.state.references[0].swapped_in():
        assert are_equal(params(learner), initial)


def test_a_reset_that_clears_the_optimizer_leaves_one_as_freshly_built(
    new_learner: NewLearner, model_folder: Path, tmp_path: Path
) -> None:
    learner = new_learner(model_folder, make_config())
    learner.update(make_plan(seed=1))
    learner.export(tmp_path)
    fresh = new_learner(tmp_path, make_config())
    learner.reset_reference(clear_optimizer=True)
    assert learner.update(make_plan(seed=2)).metrics == fresh.update(make_plan(seed=2)).metrics
    assert are_equal(params(learner), params(fresh))


def test_a_reset_that_keeps_the_optimizer_changes_its_next_step_only_through_the_kl_term(
    new_learner: NewLearner, model_folder: Path
) -> None:
    learners = [new_learner(model_folder, make_config()) for _ in range(3)]
    for learner in learners:
        learner.update(make_plan(seed=1))
        learner.state.settings.algorithm.kl.coefficient = 0.0  # the reference is still scored, and weighs nothing
    _, kept, cleared = learners
    kept.reset_reference(clear_optimizer=False)
    cleared.reset_reference(clear_optimizer=True)
    for learner in learners:
        learner.update(make_plan(seed=2))
    untouched, kept_weights, cleared_weights = map(params, learners)
    assert are_equal(kept_weights, untouched)
    assert not are_equal(cleared_weights, untouched)


def test_without_a_kl_term_a_reset_can_still_clear_the_optimizer(new_learner: NewLearner, model_folder: Path) -> None:
    config = make_config()
    config.algorithm.kl.coefficient = 0.0
    learner = new_learner(model_folder, config)
    learner.update(make_plan())
    learner.reset_reference(clear_optimizer=True)
    moments = [
        state["exp_avg"]
        for part in learner.state.optimizer.chained_optimizers
        for state in part.optimizer.state.values()
    ]
    assert moments and not any(moment.any() for moment in moments)


class QuantizedTensor(torch.Tensor):
    """As Transformer Engine's FP8 parameters: a tensor that is no plain one."""


def test_parameters_kept_in_fp8_are_refused() -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2).as_subclass(QuantizedTensor))
    with pytest.raises(ConfigError, match="policy.fp8_params=false"):
        ReferenceWeights([model])  # type: ignore[list-item]
