"""The registry of metrics: what is written is declared, and the page is made of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from brorl_lab.metric_registry import GROUPS, declared_names, undeclared_names
from brorl_lab.renamed_metrics import RENAMED

from scripts import metrics_page
from tests.support.source_tree import name, package_files, tree

pytestmark = pytest.mark.slow

METRIC = re.compile(rf"({'|'.join(GROUPS)})(/[\w{{}}]+)+")


def literals(path: Path) -> Iterator[str]:
    """String literals of a file; what a formatted one fills in becomes `{}`."""
    inside = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield "".join(str(text) for text in texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def is_declared(text: str) -> bool:
    """Whether a literal is a declared metric, or with something filled in for its `{}` is one."""
    pattern = re.compile(".*".join(re.escape(part) for part in text.split("{}")))
    return undeclared_names([text]) == [] or any(pattern.fullmatch(declared) for declared in declared_names())


def test_every_metric_that_the_package_names_is_declared() -> None:
    wrong = []
    for path in package_files():
        named = [text for text in literals(path) if METRIC.fullmatch(text)]
        wrong += [f"{name(path)}: {text}" for text in named if not (text in RENAMED or is_declared(text))]
    assert not wrong, "\n".join(wrong)


def test_names_are_declared_once() -> None:
    names = declared_names()
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("metric", "is_known"),
    [
        ("reward/mean", True),
        ("reward/gcd", True),
        ("validation/pass_at_8", True),
        ("validation/pass_at_1/gcd", True),
        ("domain/math/reward", True),
        ("reward/gcd/hard", False),
        ("policy/entropie", False),
    ],
)
def test_a_name_is_known_by_its_pattern(metric: str, is_known: bool) -> None:
    assert (undeclared_names([metric]) == []) is is_known


def test_the_page_of_metrics_is_current() -> None:
    assert metrics_page.PAGE.read_text(encoding="utf-8") == metrics_page.page(), "run `make docs`"
