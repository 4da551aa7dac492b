"""Values cross the wall as what they are, or not at all."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest

from nemo_brorl.tasks.sandbox.values import NotPlainError, decode, encode


class AlwaysEqual(int):
    """A number that claims to be any other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


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
    ],
)
def test_plain_values_come_back_the_same(value: Any) -> None:
    back = decode(json.loads(encode(value)))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (AlwaysEqual(3), 3),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict([(1, 2)]), {1: 2}),
        (deque([1, 2]), [1, 2]),
        (np.int64(7), 7),
        (np.array([[1.0, 2.0]]), [[1.0, 2.0]]),
        (range(3), [0, 1, 2]),
        (frozenset({1}), {1}),
    ],
)
def test_what_is_like_a_plain_value_becomes_one(value: Any, plain: Any) -> None:
    back = decode(json.loads(encode(value)))
    assert back == plain and type(back) is type(plain)


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
