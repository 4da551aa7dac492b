"""Proposed layouts are valid, fit, and come fastest first; what does not fit is told what would."""

from __future__ import annotations

import pytest
from brorl_launcher.planner.hardware import configured_hardware
from brorl_launcher.planner.plan import Plan, make_plan
from brorl_launcher.planner.proposals import (
    HEADROOM_GIB,
    MOST_UTILIZATION,
    advice_to_fit,
    fewest_nodes,
    format_override_value,
    propose_layouts,
    remedies,
    with_changes,
)
from brorl_launcher.planner.workload import ASSUMED

from nemo_brorl.config.load import load_config
from nemo_brorl.config.model_rules import misfits
from nemo_brorl.config.rules import check_rules

pytestmark = pytest.mark.slow


def planned(*overrides: str) -> Plan:
    config = load_config("brorl_64gpu", overrides)
    return make_plan(config, configured_hardware(config))


def test_changes_make_a_copy() -> None:
    config = load_config("brorl_64gpu")
    changed = with_changes(config, {"policy.recompute": "full", "trainer.num_nodes": 2})
    assert (changed.policy.recompute, changed.trainer.num_nodes) == ("full", 2)
    assert (config.policy.recompute, config.trainer.num_nodes) == (None, 8)


def test_values_are_written_as_hydra_reads_them() -> None:
    assert [format_override_value(value) for value in (None, True, 0.8, 16384, "full")] == [
        "null",
        "true",
        "0.8",
        "16384",
        "full",
    ]


def test_proposals_keep_all_rules_fit_with_room_to_spare_and_are_no_slower() -> None:
    plan = planned("policy.model=qwen2.5-7b", "trainer.num_nodes=2")
    found = propose_layouts(plan.config, plan.hardware, ASSUMED, plan.shape, 3)
    assert len(found) == 3
    for proposal in found:
        config = proposal.plan.config
        check_rules(config)
        assert list(misfits(config, plan.shape)) == []
        assert proposal.plan.fits
        assert proposal.plan.devices[0].peak("generate") <= plan.hardware.memory_gib - HEADROOM_GIB
        assert config.generation.gpu_memory_utilization <= MOST_UTILIZATION
        assert (
            load_config("brorl_64gpu", ["policy.model=qwen2.5-7b", "trainer.num_nodes=2", *proposal.overrides.split()])
            == config
        )
    times = [proposal.plan.time.seconds for proposal in found]
    assert times[0] <= 1.02 * min(times)


def test_layouts_of_disaggregated_roles_keep_the_engines_devices() -> None:
    plan = planned(
        "generation.placement=disaggregated", "generation.num_engines=32", "generation.sleep=off", "trainer.num_nodes=8"
    )
    found = propose_layouts(plan.config, plan.hardware, ASSUMED, plan.shape, 2)
    assert found
    for proposal in found:
        generation = proposal.plan.config.generation
        assert generation.num_engines * generation.tensor_parallel_size == 32


def test_single_changes_that_help_are_listed_and_only_those() -> None:
    plan = planned("policy.tokens_per_micro_batch=32768")
    found = [proposal.overrides for proposal in remedies(plan, ASSUMED)]
    assert "policy.tokens_per_micro_batch=16384" in found
    assert "policy.recompute=full" in found
    assert all(
        "gpu_memory_utilization" not in overrides for overrides in found
    )  # the engines are asleep when memory is short
    assert advice_to_fit(plan).startswith("what would fit: policy.tokens_per_micro_batch=16384; or ")


def test_too_large_a_share_for_engines_is_told_the_largest_that_fits() -> None:
    plan = planned("generation.gpu_memory_utilization=0.95")
    assert "at the moment 'generate', most of it KV cache" in plan.refusal
    [share] = [
        one.changes["generation.gpu_memory_utilization"]
        for one in remedies(plan, ASSUMED)
        if "generation" in one.overrides
    ]
    assert 0.7 < share < 0.85


@pytest.mark.parametrize(("model", "nodes"), [("qwen2.5-32b", 2)])
def test_too_few_nodes_are_told_how_many_it_takes(model: str, nodes: int) -> None:
    plan = planned(f"policy.model={model}", "trainer.num_nodes=1", "trainer.gpus_per_node=4")
    assert not plan.fits
    assert propose_layouts(plan.config, plan.hardware, ASSUMED, plan.shape, 1) == []
    more = fewest_nodes(plan, ASSUMED)
    assert more is not None
    assert more.plan.fits
    assert more.changes["trainer.num_nodes"] >= nodes
