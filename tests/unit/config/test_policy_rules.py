"""Rules between settings of the policy's life."""

import pytest

from nemo_brorl.config.cross_rules import precision_allows_what_is_asked
from nemo_brorl.config.derived import overlaps_gradients
from nemo_brorl.config.device_rules import turns_free_something, weights_overlap_where_gradients_do
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
    assert list(without_kl(**reset).algorithm.violations()) == []


@pytest.mark.parametrize("reset", [{"interval": 5}, {"patience": 3}, {"kl_above": 0.1, "clear_optimizer": True}])
def test_without_a_kl_term_other_resets_are_refused(reset: dict) -> None:
    (message,) = without_kl(**reset).algorithm.violations()
    assert "algorithm.kl.coefficient=0" in message


def test_with_a_kl_term_any_reset_is_fine() -> None:
    config = without_kl(interval=5, kl_above=0.1, patience=2)
    config.algorithm.kl.coefficient = 1e-4
    assert list(config.algorithm.violations()) == []


def test_offload_is_refused_where_it_frees_nothing() -> None:
    config = BroRLConfig()
    config.policy.offload = "all"
    (message,) = turns_free_something(config)
    assert "nothing to free on CPU: write none" in message
    config.trainer.gpus_per_node = 8
    assert list(turns_free_something(config)) == []
    config.generation.placement = "disaggregated"
    (message,) = turns_free_something(config)
    assert "write policy.offload=none" in message


def test_fp8_weights_train_without_a_reference() -> None:
    config = BroRLConfig()
    config.policy.fp8_params = True
    assert list(precision_allows_what_is_asked(config)) == []  # does nothing without policy.fp8
    config.policy.fp8 = "hybrid"
    (message,) = precision_allows_what_is_asked(config)
    assert "algorithm.kl.coefficient=0" in message
    config.algorithm.kl.coefficient = 0.0
    assert list(precision_allows_what_is_asked(config)) == []


def test_replicas_on_gpus_reduce_gradients_while_they_compute_and_others_do_not() -> None:
    config = BroRLConfig()
    config.policy.data_parallel_size = 2
    assert not overlaps_gradients(config)  # on CPU
    config.trainer.gpus_per_node = 2
    assert overlaps_gradients(config)
    config.policy.data_parallel_size = 1
    assert not overlaps_gradients(config)
    config.policy.context_parallel_size = 2  # its ranks are replicas for gradients
    assert overlaps_gradients(config)


def test_weights_overlap_only_where_gradients_do() -> None:
    config = BroRLConfig()
    config.policy.overlap_param_gather = True
    (message,) = weights_overlap_where_gradients_do(config)
    assert "policy.overlap_grad_reduce=null" in message
    assert "write policy.overlap_grad_reduce=true, or policy.overlap_param_gather=false" in message
    config.policy.overlap_grad_reduce = True
    assert list(weights_overlap_where_gradients_do(config)) == []


def test_fp8_weights_do_not_overlap() -> None:
    config = BroRLConfig()
    config.policy.fp8_params = True
    config.policy.overlap_param_gather = True
    (message,) = config.policy.violations()
    assert "policy.fp8_params=true keeps weights in FP8: write policy.overlap_param_gather=false" in message
