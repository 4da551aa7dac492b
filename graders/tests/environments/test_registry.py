"""Environments by name or path: errors in one are reported before it runs."""

from __future__ import annotations

from typing import Any

import pytest
from brorl_graders.base.errors import ConfigError
from brorl_graders.environments.registry import make_environment

from graders.tests.support.bad_environments import COUNTER, Counter
from graders.tests.support.names import allow_also

PLACE = "graders.tests.support.bad_environments:"


def test_settings_are_the_arguments_of_the_constructor() -> None:
    allow_also(environments=[(COUNTER, {"start": 4}), (COUNTER, {})])
    environment = make_environment(COUNTER, {"start": 4})
    assert isinstance(environment, Counter)
    assert environment.count == 4
    assert make_environment(COUNTER, {}).count == 0  # type: ignore[attr-defined]


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
    with pytest.raises(ConfigError, match=message) as wrong:
        make_environment(name, settings)
    assert str(wrong.value).count("settings of environment") <= 1
