"""Rules between settings of the policy's life."""

import pytest

from nemo_brorl.config.algorithm_rules import groups_are_large_enough, reference_is_there
from nemo_brorl.config.policy_rules import (
    fp8_is_possible,
    gathers_overlap_where_gradients_do,
    policy_fills_its_devices,
    ranks_are_there,
)
from nemo_brorl.config.schema import BroRLConfig


def without_kl(**reset: object) -> BroRLConfig:
    config = BroRLConfig()
    config.algorithm.kl.coefficient = 0.0
    for name, value in reset.items():
        setattr(config.algorithm.reference_reset, name, value)
    return config


@pytest.mark.parametrize(
    "reset",
    [{}, {"interval": 5, "clear_optimizer": True}, {"patience": 3, "clear_optimizer": True}, {"clear_optimizer": True}],
)
def test_without_a_kl_term_resets_of_the_optimizer_alone_are_fine(reset: dict) -> None:
    assert list(reference_is_there(without_kl(**reset))) == []


@pytest.mark.parametrize("reset", [{"interval": 5}, {"patience": 3}, {"kl_above": 0.1, "clear_optimizer": True}])
def test_without_a_kl_term_other_resets_are_refused(reset: dict) -> None:
    (message,) = reference_is_there(without_kl(**reset))
    assert "needs algorithm.kl.coefficient above 0 (now 0.0)" in message


def test_with_a_kl_term_any_reset_is_fine() -> None:
    config = without_kl(interval=5, kl_above=0.1, patience=2)
    config.algorithm.kl.coefficient = 1e-4
    assert list(reference_is_there(config)) == []


def test_offload_is_refused_where_it_frees_nothing() -> None:
    config = BroRLConfig()
    config.policy.offload = "all"
    (message,) = ranks_are_there(config)
    assert "needs trainer.gpus_per_node above 0 (now 0): set that, or policy.offload=none" in message
    config.trainer.gpus_per_node = 8
    assert list(ranks_are_there(config)) == []
    config.generation.placement = "disaggregated"
    (message,) = ranks_are_there(config)
    assert "needs generation.placement=colocated (now disaggregated): set that, or policy.offload=none" in message


def test_fp8_weights_train_without_a_reference() -> None:
    config = BroRLConfig()
    config.policy.fp8_params = True
    assert list(fp8_is_possible(config)) == []  # does nothing without policy.fp8
    config.policy.fp8, config.policy.precision = "hybrid", "bf16"
    config.trainer.gpus_per_node = 8
    (message,) = fp8_is_possible(config)
    assert "algorithm.kl.coefficient=0" in message
    config.algorithm.kl.coefficient = 0.0
    assert list(fp8_is_possible(config)) == []


def test_weights_overlap_only_where_gradients_do() -> None:
    config = BroRLConfig()
    config.policy.overlap_param_gather = True
    (message,) = gathers_overlap_where_gradients_do(config)
    assert "policy.overlap_grad_reduce=null" in message
    assert "set policy.overlap_grad_reduce=true, or policy.overlap_param_gather=false" in message
    config.policy.overlap_grad_reduce = True
    assert list(gathers_overlap_where_gradients_do(config)) == []


def test_fp8_weights_do_not_overlap() -> None:
    config = BroRLConfig()
    config.policy.fp8_params = True
    config.policy.overlap_param_gather = True
    (message,) = fp8_is_possible(config)
    assert "needs policy.fp8_params=false (now true): set that, or policy.overlap_param_gather=false" in message


@pytest.mark.parametrize(("engines", "is_refused"), [(None, False), (2, True), (3, False)])
def test_engines_on_cpu_that_are_chosen_later_are_not_judged_before(engines: int | None, is_refused: bool) -> None:
    config = BroRLConfig()
    config.trainer.num_nodes = 3
    config.policy.data_parallel_size = 4
    config.generation.num_engines = engines
    found = [message for message in policy_fills_its_devices(config) if "engines on CPU" in message]
    assert len(found) == is_refused


@pytest.mark.parametrize(("k", "fraction", "limit"), [(9, 1.0, 8), (16, 1.0, 8), (17, 1.0, 8), (5, 0.5, 4)])
def test_pass_at_k_leaves_half_of_a_group_to_compare(k: int, fraction: float, limit: int) -> None:
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.min_fraction = 16, fraction
    config.algorithm.advantage, config.algorithm.pass_at_k = "pass_at_k", k
    (message,) = groups_are_large_enough(config)
    assert message.endswith(f"set algorithm.pass_at_k={limit} or less")
    config.algorithm.pass_at_k = limit
    assert list(groups_are_large_enough(config)) == []


def test_one_baseline_for_all_groups_needs_all_groups() -> None:
    config = BroRLConfig()
    config.algorithm.advantage = "reinforce_plus_plus"
    (message,) = groups_are_large_enough(config)
    assert "dynamic_sampling.enabled=false" in message
    config.dynamic_sampling.enabled = False
    assert list(groups_are_large_enough(config)) == []
