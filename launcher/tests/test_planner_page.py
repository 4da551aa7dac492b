"""launcher/brorl_launcher/planner/README.md and the plan of one recipe show what the planner says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.support.source_tree import load_script

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "launcher" / "brorl_launcher" / "planner" / "README.md").read_text(encoding="utf-8")
REMEDY = "run PYTHONPATH=. python scripts/planner_page.py"


@pytest.fixture(scope="module")
def page_writer() -> ModuleType:
    return load_script("planner_page")


def block(name: str) -> str:
    return PAGE.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- end of {name} -->")[0]


def test_the_file_of_one_recipe_has_todays_whole_plan(page_writer: ModuleType) -> None:
    assert page_writer.WHOLE_PLAN.name in PAGE
    plan = page_writer.WHOLE_PLAN.read_text(encoding="utf-8")
    shown, separator, proposals = plan.partition("\n\nlayouts of these")
    assert separator  # proposals are written by the same script; making them again would take seconds
    assert proposals
    assert shown == page_writer.output(page_writer.WHOLE, num_proposals=0), REMEDY


def test_the_page_has_todays_key_numbers_of_every_recipe(page_writer: ModuleType) -> None:
    assert block("key numbers") == page_writer.key_numbers(), REMEDY


def test_every_recipe_of_the_page_fits(page_writer: ModuleType) -> None:
    assert all(page_writer.plan_of(name).fits for name in page_writer.RECIPES)
    assert [name for name in page_writer.RECIPES[1:] if f"| `{name}` |" not in block("fastest layouts")] == []
