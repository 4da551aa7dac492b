"""Figures of size: what counts as code, docstring, comment and door, and what a figure above its bound says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from scripts import prose_check
from tests.support.source_tree import load_script

CODE = '''"""Add numbers.

They are integers.
"""

# Nothing is imported,
# because nothing is needed.
ONE = 1  # a comment after code

TEXT = """
a string is code
"""


class Sum:
    """Hold a sum."""

    def add(self, value: int) -> int:
        """Return the sum."""
        return ONE + value
'''


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("house_figures")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_lines_are_code_docstrings_comments_or_blank(script: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, {"sums.py": CODE})
    assert script.kinds(tmp_path / "sums.py") == {"code": 7, "docstrings": 6, "comments": 2}


def test_a_door_is_a_module_that_its_package_imports_from_outside_of_its_folder(
    script: ModuleType, tmp_path: Path
) -> None:
    write(
        tmp_path,
        {
            "nemo_brorl/top.py": "from nemo_brorl.core.clock import now\n",  # enters core
            "nemo_brorl/core/clock.py": "import nemo_brorl.top\n",  # top lies in no folder
            "nemo_brorl/core/machine.py": "from nemo_brorl.core import lock\n",  # within its own folder
            "nemo_brorl/core/lock.py": "",
            "nemo_brorl/policy/rank.py": "def f():\n    from nemo_brorl.core import clock, machine\n",  # enters twice
            "nemo_brorl/policy/deep/rows.py": "import nemo_brorl.policy.rank\n",  # a folder within the same folder
            "lab/brorl_lab/page.py": "import nemo_brorl.core.lock\n",  # another package
        },
    )
    figures = script.growth(tmp_path)
    assert figures["nemo_brorl: doors"] == 2  # clock, machine
    assert figures["in all: doors"] == 2
    assert figures["in all: code"] == 7


def test_only_a_figure_above_its_bound_is_reported_with_what_to_do(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "BOUNDS", {"nemo_brorl: code": 1000, "nemo_brorl: doors": 7})
    assert script.above({"nemo_brorl: code": 1000, "nemo_brorl: doors": 6, "in all: code": 5000}) == []
    [message] = script.above({"nemo_brorl: code": 1062, "nemo_brorl: doors": 7})
    assert message == (
        "nemo_brorl: code=1,062: 62 above its bound. Delete as much, or raise the bound as the header of "
        "scripts/bounds.toml allows."
    )


def test_every_figure_of_size_but_the_sums_has_a_bound(script: ModuleType) -> None:
    run = {"two-step run: functions called", "two-step run: without the policy's ranks"}
    figures = {name for name in script.growth(script.ROOT) if not name.startswith("in all")}
    assert set(script.BOUNDS) == figures | run


def test_a_docstring_is_longer_than_its_code_if_it_has_more_lines_than_the_body() -> None:
    source = '''
def longer():
    """Return one.

    It is a number.
    """
    return 1

def as_long(
    a,
):
    """Return one."""
    return 1

def without_code():
    """Return what an implementation chooses.

    It is a protocol's method.
    """
'''
    found = list(prose_check.docstrings(source, "one.py"))
    assert [text.where for text in found] == ["one.py:2", "one.py:9", "one.py:15"]
    assert [text.is_longer_than_code for text in found] == [True, False, False]
