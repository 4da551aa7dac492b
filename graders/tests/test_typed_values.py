"""Values of settings are converted as annotations say, or refused with a message."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.components import typed_params
from brorl_graders.base.errors import ConfigError


class Colour(enum.Enum):
    """An enum for tests."""

    RED = 1


@dataclass
class Inner:
    """A nested section of settings."""

    depth: int = 7
    name: str = "k"


@dataclass
class Params:
    """A dataclass with one field of each kind."""

    share: float = 1.0
    number: int | None = 2
    is_on: bool = False
    text: str = "a"
    numbers: list[int] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=lambda: {"k": 2.0})
    anything: Any = None
    colour: Colour = Colour.RED
    place: Path = Path("x")
    inner: Inner = field(default_factory=Inner)
    either: int | str = 3

    def __post_init__(self) -> None:
        """Refuse a share below 0."""
        if self.share < 0:
            raise ValueError(f"share={self.share} must not be below 0")


@dataclass(frozen=True)
class Required:
    """A dataclass with a required field."""

    number: int


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("share", 3, 3.0),
        ("share", "1e3", 1000.0),
        ("number", "3", 3),
        ("number", None, None),
        ("is_on", "yes", True),
        ("is_on", "0", False),
        ("text", 3.5, "3.5"),
        ("text", True, "True"),
        ("text", "${a}", "${a}"),
        ("numbers", [1, "2"], [1, 2]),
        ("shares", {"x": 4}, {"k": 2.0, "x": 4.0}),
        ("anything", {"x": [1, None]}, {"x": [1, None]}),
        ("colour", "RED", Colour.RED),
        ("place", "y", Path("y")),
        ("inner", {"name": "z"}, Inner(7, "z")),
        ("either", "3", "3"),
        ("text", "???", "a"),
    ],
)
def test_values_become_what_annotations_say(name: str, given: Any, made: Any) -> None:
    typed = getattr(typed_params("setting", "f", Params, {name: given}), name)
    assert typed == made
    assert type(typed) is type(made)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nothing": 1}, "Key 'nothing' not in 'Params'; f takes share: float = 1.0, number: int"),
        ({"share": "much"}, "Value 'much' of type 'str' could not be converted to Float"),
        ({"share": True}, "Value 'True' of type 'bool' could not be converted to Float"),
        ({"share": None}, "Incompatible value 'None' for field of type 'float'"),
        ({"share": -1}, "share=-1.0 must not be below 0"),
        ({"number": 3.5}, "Value '3.5' of type 'float' could not be converted to Integer"),
        ({"is_on": "perhaps"}, "Value 'perhaps' is not a valid bool (type str)"),
        ({"text": [1]}, "Cannot convert 'list' to string: '[1]'"),
        ({"numbers": "3"}, "Value '3' of type 'str' is no list"),
        ({"numbers": ["x"]}, "Value 'x' of type 'str' could not be converted to Integer"),
        ({"numbers": None}, "field 'numbers' is not Optional"),
        ({"shares": {1: 2}}, "Key 1 (int) is incompatible with (str)"),
        ({"shares": 3}, "Value '3' of type 'int' is no mapping"),
        ({"colour": "BLUE"}, "Invalid value 'BLUE', expected one of [RED]"),
        ({"inner": {"width": 1}}, "Key 'width' not in 'Inner'"),
        ({"inner": "zz"}, "Merge error: str is not a subclass of Inner. value: zz"),
        ({"either": 3.5}, "Value '3.5' of type 'float' is incompatible with type hint 'Union[int, str]'"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_it_is(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        typed_params("setting", "f", Params, given)
    assert message in str(refused.value)


def test_what_must_be_given_and_is_not_is_named() -> None:
    assert typed_params("setting", "f", Required, {"number": "4"}) == Required(4)
    with pytest.raises(ConfigError, match="`Required` has missing mandatory value: number; f takes number: int"):
        typed_params("setting", "f", Required, {})
