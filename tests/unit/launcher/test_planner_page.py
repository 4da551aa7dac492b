"""docs/planner.md shows what the planner prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
RECIPES = ("brorl_64gpu", "brorl_7b", "brorl_32b", "brorl_qwen3_30b_a3b")


@pytest.fixture(scope="module")
def page_writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("planner_page", ROOT / "scripts" / "planner_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_has_todays_plan_of_a_recipe(page_writer: ModuleType, name: str) -> None:
    assert name in page_writer.RECIPES
    block = (
        (ROOT / "docs" / "planner.md").read_text(encoding="utf-8").split(f"<!-- {name} -->\n```\n")[1].split("\n```")[0]
    )
    shown, separator, proposals = block.partition("\n\nlayouts of these")
    assert separator  # proposals are written by the same script; making them again would take seconds
    assert proposals
    assert shown == page_writer.output(name, num_proposals=0), "run PYTHONPATH=. python scripts/planner_page.py"
