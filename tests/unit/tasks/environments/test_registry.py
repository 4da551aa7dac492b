"""Environments by name or path: what is wrong with one is said before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_brorl.core.errors import ConfigError
from nemo_brorl.tasks.environments.registry import make
from tests.support.bad_environments import COUNTER, Counter

PLACE = "tests.support.bad_environments:"


def test_settings_are_the_arguments_of_the_constructor() -> None:
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
    with pytest.raises(ConfigError, match=message):
        make(name, settings)
