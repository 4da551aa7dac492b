"""Every recipe of conf/ can be planned, and rendered as a job, in a clone that has been used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documented_commands.table import GPU_MODEL, Row
from tests.documented_commands.used_clone import UsedClone
from tests.support.source_tree import ROOT

SHAPE = f"policy.model={GPU_MODEL['MODEL']}"
ON_CPU = "policy.model=models/sums"
DATA = "data.path=questions.jsonl"
DOMAINS = " ".join(f"data.domains.{number}.path={path}" for number, path in enumerate(
    ("DATA/deepscaler.json", "DATA/deepscaler.json", "DATA/ifeval-0.parquet", "DATA/deepscaler.json")
))  # fmt: skip
RECIPES = {
    "agent_cpu": "",
    "brorl": "",
    "brorl_1gpu": "",
    "brorl_32b": "",
    "brorl_64gpu": "",
    "brorl_64gpu_fast": "",
    "brorl_7b": "",
    "brorl_7b_fp8": "",
    "brorl_8gpu": "",
    "brorl_cpu": ON_CPU,
    "brorl_five_domains": DOMAINS,
    "brorl_on_plateau": "",
    "brorl_qwen3_30b_a3b": "",
    "evaluation": f"{SHAPE} generation.gpu_memory_utilization=0.5",
    "evaluation_brorl": "generation.gpu_memory_utilization=0.5",
    "prorl_n16_cpu": ON_CPU,
    "prorl_v1": "",
    "prorl_v2": "",
    "sft": f"{ON_CPU} {DATA} sft.max_tokens=256",
    "smollm2_cpu": ON_CPU,
    "smollm2_sft": ON_CPU,
    "sums_cpu": "",
    "your_model": ON_CPU,
}  # what its first comment asks a reader to set


def test_the_recipes_are_those_of_conf() -> None:
    assert set(RECIPES) == {path.stem for path in (ROOT / "conf").glob("*.yaml")}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_planned_and_rendered(recipe: str, clone: UsedClone) -> None:
    run = f"runs/rendered/{recipe}"
    for command, leaves in ((f"brorl plan --config-name {recipe}", ""), (f"brorl render --config-name {recipe}", run)):
        text = f"{command} {RECIPES[recipe]} {f'--run {run}' if leaves else ''}"
        outcome = clone.run(Row(text), text, f"recipe_{recipe}")
        assert (outcome.code, "Traceback" in outcome.output) == (0, False), f"{text}\n{outcome.output[-3000:]}"
    assert (Path(clone.folder) / run / "launch" / "code" / "conf" / f"{recipe}.yaml").exists()
