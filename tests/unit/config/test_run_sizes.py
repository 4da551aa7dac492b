"""Sizes of a run: what null stands for on CPUs and on GPUs, colocated and apart."""

from __future__ import annotations

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig

ON_GPUS = ["trainer.gpus_per_node=8", "policy.data_parallel_size=null"]
APART = ["generation.placement=disaggregated"]


def test_disaggregated_engines_get_the_gpus_that_the_policy_leaves() -> None:
    config = load_config(
        "brorl_cpu",
        [
            *ON_GPUS,
            *APART,
            "policy.data_parallel_size=4",
            "generation.tensor_parallel_size=2",
        ],
    )
    assert (RunSizes.from_config(config).num_ranks, RunSizes.from_config(config).num_engines) == (4, 2)
    config = load_config("brorl_cpu", [*ON_GPUS, *APART, "generation.num_engines=2"])
    assert (RunSizes.from_config(config).num_ranks, RunSizes.from_config(config).num_engines) == (6, 2)


def test_null_sizes_mean_all_gpus_or_the_cpu_defaults() -> None:
    cpu, gpu = load_config("brorl_cpu"), load_config("brorl_64gpu")
    assert (RunSizes.from_config(cpu).data_parallel, RunSizes.from_config(cpu).num_engines) == (1, 2)
    assert (RunSizes.from_config(gpu).data_parallel, RunSizes.from_config(gpu).num_engines) == (64, 64)


def test_gpus_are_shared_where_roles_are_colocated_on_them() -> None:
    assert RunSizes.from_config(load_config("brorl_1gpu")).shares_gpus
    assert not RunSizes.from_config(load_config("brorl_cpu")).shares_gpus
    apart = load_config("brorl_64gpu", [*APART, "generation.num_engines=32", "generation.sleep=off"])
    assert not RunSizes.from_config(apart).shares_gpus


def test_replicas_on_gpus_reduce_gradients_while_they_compute_and_others_do_not() -> None:
    config = BroRLConfig()
    config.policy.data_parallel_size = 2
    assert not RunSizes.from_config(config).overlaps_gradients  # on CPU
    config.trainer.gpus_per_node = 2
    assert RunSizes.from_config(config).overlaps_gradients
    config.policy.data_parallel_size = 1
    assert not RunSizes.from_config(config).overlaps_gradients
    config.policy.context_parallel_size = 2  # its ranks are replicas for gradients
    assert RunSizes.from_config(config).overlaps_gradients


@pytest.mark.parametrize(
    ("gpus", "placement", "transport"),
    [(0, "colocated", "object_store"), (8, "colocated", "cuda_ipc"), (8, "disaggregated", "collective")],
)
def test_weights_travel_as_devices_allow_unless_a_way_is_given(gpus: int, placement: str, transport: str) -> None:
    config = BroRLConfig()
    config.trainer.gpus_per_node, config.generation.placement = gpus, placement
    assert RunSizes.from_config(config).weight_transport == transport
    config.generation.weight_transport = "object_store"
    assert RunSizes.from_config(config).weight_transport == "object_store"


def test_log_probs_in_bf16_may_differ_by_more() -> None:
    config = BroRLConfig()
    assert RunSizes.from_config(config).parity_bound == 1e-3
    config.generation.precision = "bf16"
    assert RunSizes.from_config(config).parity_bound == 0.05
    config.parity.max_mean_abs_diff = 0.02
    assert RunSizes.from_config(config).parity_bound == 0.02
