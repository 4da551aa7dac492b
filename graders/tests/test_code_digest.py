"""The hash of a callable: equal for what does the same, another for what does something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from brorl_graders.base.code_digest import code_digest


def defined(source: str, name: str = "reward") -> Callable[..., Any]:
    """What a program defines under a name, as a cell of a notebook does."""
    known: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), known)
    return known[name]


BASE = "def reward(row, response):\n    return 1.0 if response == row['answer'] else 0.0\n"
WITH_HELPER = "BONUS = 0.5\ndef near(text):\n    return BONUS * ('7' in text)\ndef reward(row, response):\n"
WITH_HELPER += "    return max(map(lambda part: near(part), response.split()))\n"
OF_CLASS = "class Grader:\n    weight = 2\n    def __init__(self, base):\n        self.base = base\n"
OF_CLASS += "    def __call__(self, row, response):\n        return self.base * self.weight\nreward = Grader(3)\n"


@pytest.mark.parametrize(
    ("source", "same"),
    [
        (BASE, "# a comment\n\n\n" + BASE.replace(":\n", ":  # and another\n")),
        (WITH_HELPER, "UNUSED = 3\n" + WITH_HELPER),
        (OF_CLASS, "\n\n" + OF_CLASS),
        ("reward = lambda row, response: len(row)", "\nreward = (lambda row, response: len(row))"),
    ],
)
def test_comments_blank_lines_and_other_definitions_do_not_count(source: str, same: str) -> None:
    assert code_digest(defined(source)) == code_digest(defined(same))


@pytest.mark.parametrize(
    ("source", "was", "now"),
    [
        (BASE, "else 0.0", "else 0.1"),
        (BASE, "==", "!="),
        (BASE, "response == row", "response.strip() == row"),
        (WITH_HELPER, "BONUS = 0.5", "BONUS = 0.6"),
        (WITH_HELPER, "'7' in text", "'8' in text"),
        (WITH_HELPER, "near(part)", "near(part + 'x')"),
        (OF_CLASS, "Grader(3)", "Grader(4)"),
        (OF_CLASS, "weight = 2", "weight = 3"),
        (OF_CLASS, "self.base *", "self.base +"),
        ("def reward(row, response, weight=1): return weight", "weight=1", "weight=2"),
        ("def reward(row, response, *, weight=1): return weight", "weight=1", "weight=True"),
        ("reward = lambda row, response: response in {'a', 'b'}", "'b'", "'c'"),
        ("import math\ndef reward(row, response): return math.sin(1)", "math.sin", "math.cos"),
    ],
)
def test_whatever_changes_a_reward_changes_its_hash(source: str, was: str, now: str) -> None:
    assert was in source
    assert code_digest(defined(source)) != code_digest(defined(source.replace(was, now)))


def weighted(weight: Any) -> Callable[..., float]:
    return lambda row, response: float(weight == response)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), ({1, 2}, {1, 3}), (weighted(1), weighted(2))],
)
def test_closures_bound_arguments_and_objects_count_by_their_values(one: Any, other: Any) -> None:
    assert code_digest(weighted(one)) == code_digest(weighted(one)) != code_digest(weighted(other))
    assert code_digest(partial(pow, one)) != code_digest(partial(pow, other))


def test_a_function_that_calls_itself_has_a_hash() -> None:
    source = "def reward(row, response): return reward(row, response[1:]) if response else 0.0"
    assert code_digest(defined(source)) != code_digest(defined(source.replace("0.0", "1.0")))


def test_processes_with_other_hash_seeds_agree() -> None:
    program = (
        "from brorl_graders.base.code_digest import code_digest\n"
        "words = {'alpha', 'beta', 'gamma', 'delta'}\n"
        "print(code_digest(lambda row, response: response in words or response in {'x', 'y', 'z'}))"
    )
    found = set()
    for seed in ("1", "2", "3"):
        child = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.add(child.stdout)
    assert len(found) == 1


def test_what_a_decorator_wraps_and_a_module_of_ones_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = "import functools, helper_of_a_reward\n@functools.lru_cache\ndef reward(row, response):\n"
    source += "    return helper_of_a_reward.near(response) * 2\n"
    digests = []
    for factor in (3, 4):
        (tmp_path / "helper_of_a_reward.py").write_text(f"def near(text): return {factor} * len(text)\n# {factor}")
        monkeypatch.delitem(sys.modules, "helper_of_a_reward", raising=False)
        digests += [code_digest(defined(source)), code_digest(defined(source.replace("* 2", "* 5")))]
    assert len(set(digests)) == 4
