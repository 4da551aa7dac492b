"""The page of modules says what there is."""

from __future__ import annotations

import pytest

from scripts import module_map
from tests.support.source_tree import PACKAGE, name

pytestmark = pytest.mark.slow


def test_the_map_of_modules_is_current() -> None:
    assert module_map.PAGE.read_text(encoding="utf-8") == module_map.page(), "run `make docs`"


def test_the_map_names_every_module() -> None:
    text = module_map.page()
    missing = [
        name(path) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" and f"{path.stem}.py`" not in text
    ]
    assert missing == []
