"""Fixtures of all graders' tests: names that a test or module allows are taken back at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from graders.tests.support.names import names_kept

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module", autouse=True)
def names_of_a_module_end_with_it() -> Iterator[None]:
    """Take back the names that fixtures of a module have let questions use."""
    with names_kept():
        yield


@pytest.fixture(autouse=True)
def names_of_a_test_end_with_it() -> Iterator[None]:
    """Take back the names that a test has let questions use."""
    with names_kept():
        yield
