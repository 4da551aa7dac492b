"""Imports without garbage collections, and without a library that only others import."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_brorl.core.quick_imports import quick_imports


@pytest.fixture(autouse=True)
def nothing_stays_exempt() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A library that can be imported."""
    (tmp_path / "own_library_of_this_test.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_library_of_this_test"
    sys.modules.pop("own_library_of_this_test", None)


def test_inside_nothing_is_collected_and_outside_what_was_there_is_exempt() -> None:
    with quick_imports():
        assert not gc.isenabled()
        with quick_imports():
            pass
        assert not gc.isenabled(), "the inner one leaves it to the outer one"
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_a_library_that_is_left_out_is_there_again_outside(library: str) -> None:
    with quick_imports(library), pytest.raises(ImportError):
        importlib.import_module(library)
    assert importlib.import_module(library).__name__ == library


def test_a_library_that_is_imported_already_is_not_left_out() -> None:
    with quick_imports("json"):
        import json

        assert json is sys.modules["json"]


def test_an_import_that_fails_leaves_collections_on_and_the_library_to_be_found(library: str) -> None:
    with pytest.raises(ModuleNotFoundError), quick_imports(library):
        importlib.import_module("a_library_that_nobody_has")
    assert gc.isenabled()
    assert library not in sys.modules
