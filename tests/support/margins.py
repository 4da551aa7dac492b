"""Writes down, as a plugin of pytest, how near every numeric assertion came to its bound.

`-p tests.support.margins` loads it, and `scripts/test_numbers.py --margins 3` reads what it writes: a line of JSON per
test and assertion, of its nearest comparison. Assertions are `np.testing.assert_allclose`, `pytest.approx`,
`torch.testing.assert_close`, and `assert value < bound` where the bound is below a hundredth.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.approx import ApproxScalar
from _pytest.assertion import util

# Names the file to write to.
VARIABLE = "BRORL_MARGINS"

# Larger bounds are of counts, shares and chances, not of rounding.
LARGEST_BOUND = 0.01

# Asserts on tensors without memory, which pytest would print if it were to show assertions that hold.
NOT_SHOWN = ("test_offload.py",)

NUMBER = r"(?:tensor\()?(-?\d[\d.]*(?:e[+-]?\d+)?)\)?"
LESS = re.compile(rf"^\(?{NUMBER} <=? {NUMBER}$")

# Of the running test, by assertion: observed, bound, kind.
_nearest: dict[str, tuple[float, float, str]] = {}


def note(observed: float, bound: float, kind: str) -> None:
    """Note a comparison inside a test, unless both were equal."""
    if not (observed > 0 and bound > 0 and math.isfinite(observed)):
        return
    _keep_nearest(_caller(), observed, bound, kind)


def _keep_nearest(place: str, observed: float, bound: float, what: str) -> None:
    before = _nearest.get(place, (0.0, 1.0, ""))
    if observed / bound > before[0] / before[1]:
        _nearest[place] = (observed, bound, what)


def _caller() -> str:
    """Name the innermost line of a test file or its support."""
    for frame in inspect.stack(context=0):
        path = Path(frame.filename)
        if "tests" in path.parts and path.name != "margins.py":
            return f"{path.name}:{frame.lineno}"
    return ""


def note_arrays(mine: Any, theirs: Any, rtol: float, atol: float, kind: str) -> None:
    """Note the entry nearest to its bound."""
    first, second = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    bounds = np.broadcast_to(atol + rtol * np.abs(second), np.broadcast(first, second).shape)
    differences = np.abs(first - second)
    ratios = np.divide(differences, bounds, where=bounds > 0, out=np.zeros(bounds.shape))
    if ratios.size and np.isfinite(ratios).all():
        worst = np.unravel_index(int(ratios.argmax()), ratios.shape)
        note(float(differences[worst]), float(bounds[worst]), kind)


def pytest_configure(config: pytest.Config) -> None:
    np.testing.assert_allclose = _noted_allclose(np.testing.assert_allclose)
    torch.testing.assert_close = _noted_close(torch.testing.assert_close)
    ApproxScalar.__eq__ = _noted_equal(ApproxScalar.__eq__)


def _noted_allclose(check: Callable[..., None]) -> Callable[..., None]:
    def call(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **settings: Any) -> None:
        note_arrays(actual, desired, rtol, atol, "assert_allclose")
        check(actual, desired, rtol=rtol, atol=atol, **settings)

    return call


def _noted_close(check: Callable[..., None]) -> Callable[..., None]:
    def call(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None, **more: Any) -> None:
        if isinstance(actual, torch.Tensor):
            usual = torch.testing._comparison.default_tolerances(actual, expected)
            used = usual if rtol is None or atol is None else (rtol, atol)
            note_arrays(actual.detach().double(), expected.detach().double(), *used, "assert_close")
        check(actual, expected, rtol=rtol, atol=atol, **more)

    return call


def _noted_equal(equal: Callable[..., bool]) -> Callable[..., bool]:
    def call(self: Any, actual: Any) -> bool:
        is_equal = equal(self, actual)
        if is_equal and isinstance(actual, (float, np.floating)):
            note(abs(float(actual) - float(self.expected)), float(self.tolerance), "approx")
        return is_equal

    return call


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    found = LESS.match(expl.split("\n")[0])
    if found and 0 < float(found[2]) <= LARGEST_BOUND:
        _keep_nearest(f"{item.path.name}:{lineno}", abs(float(found[1])), float(found[2]), orig.split("\n")[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    _nearest.clear()
    if item.path.name in NOT_SHOWN:
        util._assertion_pass = None


def pytest_runtest_teardown(item: pytest.Item) -> None:
    with open(os.environ[VARIABLE], "a") as file:
        for place, (observed, bound, what) in _nearest.items():
            line = {"test": item.nodeid, "what": what, "place": place, "observed": observed, "bound": bound}
            file.write(json.dumps(line) + "\n")
