"""Environments by name or path: what is wrong with one is said before it runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.environments.protocol import Action, Step
from brorl_graders.environments.registry import ENVIRONMENTS, find, make

from nemo_brorl.core.errors import ConfigError
from tests.support.bad_environments import COUNTER, Counter
from tests.support.names import allow_also
from tests.support.source_tree import ROOT

PLACE = "tests.support.bad_environments:"


def test_settings_are_the_arguments_of_the_constructor() -> None:
    allow_also(environments=[(COUNTER, {"start": 4}), (COUNTER, {})])
    environment = make(COUNTER, {"start": 4})
    assert isinstance(environment, Counter)
    assert environment.count == 4
    assert make(COUNTER, {}).count == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (COUNTER, {"start": "many"}, r"start.*takes start: int = 0"),
        (COUNTER, {"begin": 1}, r"begin.*takes start: int = 0"),
        (PLACE + "AsyncCounter", {"start": 1}, "takes no settings"),
        (PLACE + "BadTool", {}, "BadTool, tool add: its parameters are no JSON schema: 'nothing' is not"),
        (PLACE + "NoEnvironment", {}, "is no class derived from"),
        (PLACE + "Nothing", {}, "cannot be imported"),
        ("chess", {}, "unknown environment 'chess'; choose .*package.module:Class"),
    ],
)
def test_what_is_wrong_is_one_message(name: str, settings: dict[str, Any], message: str) -> None:
    allow_also(environments=[(name, settings)])
    with pytest.raises(ConfigError, match=message):
        make(name, settings)


def test_the_pages_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    source, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_game.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    allow_also(environments=[("my_game:GuessTheNumber", {"highest": 10})])
    game = make("my_game:GuessTheNumber", {"highest": 10})
    assert game.task(12) == {"number": 3}
    assert game.reset({"number": 3}, 0) == "Guess my number from 1 to 10. Write digits only."
    assert [game.step(Action(text)) for text in ("2", "5", "3")] == [
        Step("higher"),
        Step("lower"),
        Step(reward=1.0, terminated=True),
    ]


def test_the_page_names_every_environment_and_its_settings() -> None:
    page = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    allow_also(environments=[(name, {}) for name in ENVIRONMENTS])
    for name in ENVIRONMENTS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        for setting in inspect.signature(find(name)).parameters:
            assert f"`{setting}`" in row
