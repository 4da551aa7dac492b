"""docs/cluster.md says what is: the planner's numbers, the site's settings."""

from __future__ import annotations

import dataclasses

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.config.schema import PolicyConfig
from nemo_brorl.launcher.code_snapshot import code_root
from nemo_brorl.launcher.planner.hardware import gpu_hardware
from nemo_brorl.launcher.planner.plan import make_plan
from nemo_brorl.launcher.site import Site

PAGE = (code_root() / "docs" / "cluster.md").read_text(encoding="utf-8")


def layout(policy: PolicyConfig) -> str:
    sizes = {
        "TP": policy.tensor_model_parallel_size,
        "PP": policy.pipeline_model_parallel_size,
        "CP": policy.context_parallel_size,
        "EP": policy.expert_model_parallel_size,
    }
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "DP only"


@pytest.mark.parametrize(
    ("size", "name"),
    [("1.5B", "brorl_64gpu"), ("7B", "brorl_7b"), ("32B", "brorl_32b"), ("30B-A3B", "brorl_qwen3_30b_a3b")],
)
def test_the_table_of_larger_models_is_the_planner_s(size: str, name: str) -> None:
    config = load_config(name)
    nodes, gpus = config.trainer.num_nodes, config.trainer.gpus_per_node
    plan = make_plan(config, gpu_hardware("h100", nodes, gpus))
    assert plan.fits
    peak, [capacity] = (
        max(memory.peak(memory.worst) for memory in plan.devices),
        {memory.capacity_gib for memory in plan.devices},
    )
    engines = f"engines of {config.generation.tensor_parallel_size}"
    row = (
        f"| {size} | `{name}` | {nodes} × {gpus} | {layout(config.policy)}; {engines} | {peak:.1f} of {capacity:.1f} "
        f"GiB "
        f"| {plan.time.seconds:,.0f} s | {plan.gpu_hours:,.0f} |"
    )
    assert row in PAGE


def test_every_setting_of_a_site_is_explained() -> None:
    assert [field.name for field in dataclasses.fields(Site) if f"`{field.name}`" not in PAGE] == []
