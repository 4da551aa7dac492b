"""Values cross the sandbox with their types, or not at all."""

from __future__ import annotations

import datetime
import json
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from brorl_graders.sandbox.values import NoJson, NotPlainError, as_json, decode, encode


class AlwaysEqual(int):
    """A number that equals any other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class OwnDict(dict[str, int]):
    """A user's subclass of dict."""


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**200,
        1.5,
        "ä\n\ud800",
        b"\0x",
        1j,
        [1, [2]],
        (1, (2,)),
        {1, 2},
        {"a": 1, 2: (3,), None: {4}},
        float("inf"),
        Counter("aab"),
        OrderedDict([(1, 2)]),
        deque([1, 2], 3),
        range(3),
        frozenset({frozenset({1})}),
        bytearray(b"a"),
        Fraction(1, 3),
        Decimal("1.10"),
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 1, 2, tzinfo=datetime.UTC),
        datetime.time(1, 2),
        datetime.timedelta(1, 2, 3),
    ],
)
def test_plain_values_come_back_the_same(value: Any) -> None:
    back = decode(json.loads(encode(value)))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (AlwaysEqual(3), 3),
        (OwnDict(a=1), {"a": 1}),
        (np.int64(7), 7),
        ({1: 2}.keys(), (1,)),
        (map(abs, [-1]), (1,)),
    ],
)
def test_what_is_like_a_plain_value_becomes_one(value: Any, plain: Any) -> None:
    back = decode(json.loads(encode(value)))
    assert back == plain and type(back) is type(plain)


def test_arrays_and_named_tuples_come_back_as_such() -> None:
    array = decode(json.loads(encode(np.array([[1, 2]], dtype="int32"))))
    assert array.dtype == "int32" and array.tolist() == [[1, 2]]
    point = decode(json.loads(encode(namedtuple("Point", "x y")(1, 2))))
    assert (point.y, point, type(point).__name__) == (2, (1, 2), "Point")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        ({1: (2,), None: 3}, {"1": [2], "None": 3}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict([(1, 2)]), {"1": 2}),
        (deque([1]), [1]),
        (range(3), [0, 1, 2]),
        (np.array([1.0]), [1.0]),
        (2**70, 2**70),
    ],
)
def test_values_as_json(value: Any, plain: Any) -> None:
    assert as_json(json.loads(encode(value))) == plain


@pytest.mark.parametrize("value", [{1}, 1j, b"a", Fraction(1, 2)])
def test_what_json_does_not_have_equals_nothing(value: Any) -> None:
    found = as_json(json.loads(encode(value)))
    assert found != value and isinstance(found, NoJson)


def test_nothing_that_a_program_chose_is_hashed_outside() -> None:
    multiples = [{"int": hex(number * (2**61 - 1))} for number in range(1, 30_000)]  # all of one hash
    assert isinstance(as_json({"set": multiples}), NoJson)
    assert len(as_json({"dict": [[number, 1] for number in multiples]})) == len(multiples)  # hashed as texts


def test_integers_too_long_to_be_written_are_no_keys() -> None:
    with pytest.raises(NotPlainError):
        as_json({"dict": [[{"int": hex(10**5000)}, 1]]})


@pytest.mark.parametrize("value", [object(), print, [object()], {(1,): object()}, Ellipsis])
def test_other_values_do_not_leave(value: Any) -> None:
    with pytest.raises(NotPlainError, match="is not plain data"):
        encode(value)


@pytest.mark.parametrize(
    "data",
    [{}, {"a": 1, "b": 2}, {"set": [[1]]}, {"tuple": 1}, {"int": "x"}, {"dict": [1]}, {"bytes": "0"}, {"other": 1}],
)
def test_what_is_not_an_encoded_value_is_refused(data: Any) -> None:
    with pytest.raises(NotPlainError, match="not an encoded value"):
        decode(data)
