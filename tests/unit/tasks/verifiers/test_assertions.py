"""Assertions leave for the sandbox without what they expect, and are judged by what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_brorl.tasks.verifiers.code.assertions import holds, take_apart


@pytest.mark.parametrize(
    ("source", "inside"),
    [
        ("assert f(2) == [41]", "__check__(0, f(2))"),
        ("assert 41 == f(2), 'message'", "__check__(0, f(2))"),
        ("assert abs(f(2) - 0.41) < 1e-06", "__check__(0, f(2))"),
        ("assert math.isclose(f(2), 41.0, rel_tol=0.01)", "__check__(0, f(2))"),
        ("assert 41 < f(2) <= 42 and (not f(3))", "__check__(0, f(2), f(3))"),
        ("assert sorted(f(2)) == [41]", "__check__(0, sorted(f(2)))"),
        ("assert f(2) is None", "__check__(0, f(2))"),
        ("assert f(2) in {41, 42}", "__check__(0, f(2))"),
        ("assert f(2) == g(3)", "__check__(0, f(2), g(3))"),
        ("assert False", "__check__(0)"),
    ],
)
def test_what_is_expected_stays_outside(source: str, inside: str) -> None:
    script = take_apart(source)
    assert script.source == inside
    assert "41" not in script.source


@pytest.mark.parametrize(
    ("source", "values", "truth"),
    [
        ("assert f() == [1, 2]", [[1, 2]], True),
        ("assert f() == [1, 2]", [(1, 2)], False),
        ("assert f() != -3", [-3], False),
        ("assert abs(f() - 0.5) < 1e-6", [0.50000001], True),
        ("assert abs(f() - 0.5) < 1e-6", [0.6], False),
        ("assert abs(f() - 0.5) < 1e-6", ["x"], False),
        ("assert math.isclose(f(), 1.0, rel_tol=0.1)", [1.05], True),
        ("assert np.allclose(f(), [1.0, 2.0])", [[1.0, 2.0000001]], True),
        ("assert np.allclose(f(), [1.0, 2.0], atol=0.5)", [[1.0, 2.6]], False),
        ("assert 1 < f() <= 3", [3], True),
        ("assert f() or g()", [0, 1], True),
        ("assert f() and g()", [1, 0], False),
        ("assert not f()", [0], True),
        ("assert f() is None", [None], True),
        ("assert f() in (1, 2)", [3], False),
        ("assert f()", [[0]], True),
        ("assert f()", [[]], False),
        ("assert -f() == 2", [-2], True),
        ("assert f() + [1] == [0, 1]", [[0]], True),
        ("assert True", [], True),
        ("assert False, 'must raise'", [], False),
        ("assert f() == 1", [], False),
    ],
)
def test_a_check_holds_as_the_assertion_would(source: str, values: list[Any], truth: bool) -> None:
    assert holds(take_apart(source).checks[0], values) is truth


def test_checks_under_a_condition_may_be_passed_over() -> None:
    body = [
        "assert f(1)",
        "for i in x:\n        assert f(i)",
        "try:\n        f(0)\n        assert False\n    except E: pass",
    ]
    script = take_apart("def check(f):\n    " + "\n    ".join(body))
    assert [check.is_required for check in script.checks.values()] == [True, False, False]


def test_numbers_go_on_from_the_first() -> None:
    assert list(take_apart("assert a\nassert b", 5).checks) == [5, 6]
