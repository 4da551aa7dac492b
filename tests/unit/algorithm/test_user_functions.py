"""Advantages, losses and reward shaping of a module outside the package, chosen by import path, with typed
parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_brorl.algorithm.advantages import GroupRewards, advantages_of
from nemo_brorl.algorithm.losses import find_loss
from nemo_brorl.algorithm.token_batch import ResponseIndex, TokenBatch
from nemo_brorl.algorithm.user_functions import check_functions
from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import ConfigError, TrainingError
from tests.support.fakes import make_group
from tests.support.train_batches import batch_of

pytestmark = [pytest.mark.slow, pytest.mark.numbers]

MODULE = """
from dataclasses import dataclass

import numpy as np

from nemo_brorl.algorithm.losses import finish


@dataclass
class Power:
    exponent: float = 2.0

    def __post_init__(self):
        if self.exponent <= 0:
            raise ValueError(f"exponent={self.exponent} must be above 0")


def powered(groups, config, params: Power):
    return [group.shaped.astype(np.float32) ** params.exponent for group in groups]


def plain(groups, config):
    return [group.shaped for group in groups]


def too_few(groups, config):
    return [group.shaped[1:] for group in groups]


def not_finite(groups, config):
    return [group.shaped + np.nan for group in groups]


@dataclass(frozen=True)
class Scale:
    factor: float = 1.0


def policy_gradient(batch, config, params: Scale):
    objective = params.factor * batch.advantages * batch.log_probs
    return finish(batch, config, objective, {"policy/objective": objective.sum()})


def shorter_is_better(rewards, scored, max_tokens, step, params: Scale):
    return rewards - params.factor * scored.group.lengths / max_tokens


def untyped(groups, config, params):
    return []


number = 3
"""


@pytest.fixture(autouse=True)
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_functions", None)


def config_with(*overrides: str) -> BroRLConfig:
    return load_config("brorl_cpu", overrides)


def check(*overrides: str) -> None:
    config = config_with(*overrides)
    check_functions(config.algorithm, config.rewards.shaping)


def rewards(*values: float) -> GroupRewards:
    array = np.asarray(values, np.float32)
    return GroupRewards(array, array, np.full(len(array), 2, np.int32))


def test_an_advantage_by_import_path_gets_its_own_parameters() -> None:
    config = config_with("algorithm.advantage=my_functions:powered", "algorithm.advantage_params={exponent: 3}")
    (values,) = advantages_of([rewards(1, 2)], config.algorithm)
    assert values.tolist() == [1, 8]


def test_parameters_that_are_not_given_have_their_defaults() -> None:
    (values,) = advantages_of([rewards(1, 3)], config_with("algorithm.advantage=my_functions:powered").algorithm)
    assert values.tolist() == [1, 9]


def test_an_advantage_without_parameters_takes_two_arguments() -> None:
    (values,) = advantages_of([rewards(0, 1)], config_with("algorithm.advantage=my_functions:plain").algorithm)
    assert values.tolist() == [0, 1]


def test_the_weight_of_rare_successes_applies_to_it_too() -> None:
    config = config_with(
        "algorithm.advantage=my_functions:plain", "algorithm.advantage_params={rare_success_exponent: 1}"
    )
    (values,) = batch_of([make_group([0, 0, 0, 1])], config).advantages
    assert values.tolist() == [0, 0, 0, 0.75]


@pytest.mark.parametrize(
    ("function", "message"),
    [("too_few", r"shape \(1,\) for group 0 of 2 rollouts"), ("not_finite", "not finite for group 0")],
)
def test_an_advantage_of_the_wrong_shape_ends_the_run_with_its_name(function: str, message: str) -> None:
    config = config_with(f"algorithm.advantage=my_functions:{function}")
    with pytest.raises(TrainingError, match=f"algorithm.advantage=my_functions:{function} returned .*{message}"):
        advantages_of([rewards(0, 1)], config.algorithm)


def test_a_loss_by_import_path_is_finished_like_the_others() -> None:
    # objective 2 · 3 · log 1/2; no correction and no KL term: the loss is minus that
    config = config_with(
        "algorithm.loss=my_functions:policy_gradient",
        "algorithm.loss_params={factor: 2}",
        "algorithm.importance_correction.enabled=false",
    ).algorithm
    log_probs = torch.log(torch.tensor([0.5])).requires_grad_()
    batch = TokenBatch(
        log_probs=log_probs,
        entropies=torch.zeros(1),
        old_log_probs=log_probs.detach(),
        sampled_log_probs=log_probs.detach(),
        reference_log_probs=None,
        advantages=torch.tensor([3.0]),
        weights=torch.ones(1),
        sequences=ResponseIndex(torch.zeros(1, dtype=torch.int64), torch.ones(1)),
    )
    result = find_loss(config.loss, config)(batch, config)
    assert result.loss.item() == pytest.approx(-6 * np.log(0.5))
    assert result.metrics["policy/objective"].item() == pytest.approx(6 * np.log(0.5))
    result.loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-6]


def test_the_warm_up_has_its_own_loss_whatever_the_run_trains_with() -> None:
    config = config_with("algorithm.loss=my_functions:policy_gradient", "algorithm.loss_params={factor: 2}")
    assert find_loss("cross_entropy", config.algorithm).__name__ == "cross_entropy"


def test_reward_shaping_by_import_path_comes_last() -> None:
    # rewards 0 and 1 of 2 tokens each, of at most 8: less 4 · 2 / 8
    config = config_with(
        "rewards.shaping.function=my_functions:shorter_is_better",
        "rewards.shaping.function_params={factor: 4}",
        "rollouts.max_response_tokens=8",
        "algorithm.advantage=my_functions:plain",
    )
    group = make_group([0.0, 1.0])
    batch = batch_of([group], config)
    assert batch.advantages[0].tolist() == (np.array([0, 1]) - 4 * group.group.lengths / 8).tolist()
    assert batch.groups[0].rewards.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.advantage=my_functions:absent"], "algorithm.advantage: 'my_functions:absent' cannot be imported"),
        (["algorithm.advantage=nowhere:f"], "No module named 'nowhere'.*PYTHONPATH"),
        (["algorithm.loss=my_functions:number"], "'my_functions:number' is a int and not a function"),
        (
            ["algorithm.advantage=my_functions:powered", "algorithm.advantage_params={exponnt: 3}"],
            r"exponnt.*takes exponent: float = 2.0",
        ),
        (
            ["algorithm.advantage=my_functions:powered", "algorithm.advantage_params={exponent: much}"],
            "'much'.*could not be converted to Float",
        ),
        (
            ["algorithm.advantage=my_functions:powered", "algorithm.advantage_params={exponent: -1}"],
            "exponent=-1.0 must be above 0",
        ),
        (
            ["algorithm.advantage=grpo", "algorithm.advantage_params={exponent: 1}"],
            "algorithm.advantage_params={'exponent': 1}: grpo takes no parameters",
        ),
        (["algorithm.advantage=my_functions:untyped"], "annotate its argument `params` with a dataclass"),
        (["rewards.shaping.function=shorter"], "set .*package.module:function"),
    ],
)
def test_a_mistake_is_found_before_anything_starts(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(*overrides)


def test_built_in_functions_pass_the_check() -> None:
    check()


def test_a_name_that_is_neither_built_in_nor_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.advantage=gpr.*set one of .*package.module:function"):
        config_with("algorithm.advantage=gpr")
