"""Settings of the test run: one thread per process, no plugins in vLLM, GPU tests skipped where there is no GPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from graders.tests.support.names import names_kept
from nemo_brorl.config import load
from nemo_brorl.core.console import LOGGED
from nemo_brorl.core.quick_imports import quick_imports
from tests.support.forked_workers import use_forked_workers
from tests.support.quick_compose import quick_compose

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # by its own 15 actors stand still beside tests that compute
os.environ.setdefault("VLLM_PLUGINS", "")  # NeMo registers one that costs every engine four seconds and fails
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # inherited by actors, which would compile all imports again


def pytest_configure(config: pytest.Config) -> None:
    """Start what forks actors before pytest-xdist starts its processes, which share it."""
    has_processes = bool(config.getoption("numprocesses", None))
    if has_processes and any("end_to_end" in argument for argument in config.args):
        use_forked_workers()


LONGEST = ("test_training_run.py", "test_attacks.py")  # begun last, they would leave other workers idle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark end-to-end tests by their folder, put the longest file first, and skip GPU tests where there is no GPU."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    for item in items:
        if "end_to_end" in item.path.parts:
            item.add_marker("end_to_end")
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, this machine has none"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the test modules quickly. No test needs sklearn, which transformers imports where it is installed."""
    with quick_imports("sklearn"):
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def recipes_are_composed_once() -> Iterator[None]:
    """Let `load_config` compose each shipped recipe once for all tests of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "compose", quick_compose)
        yield


@pytest.fixture(autouse=True)
def records_reach_caplog() -> None:
    """Undo what `setup_logging` and NeMo did to the log handlers of this process in an earlier test."""
    for package in LOGGED:
        logger = logging.getLogger(package)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def tables_have_their_full_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the width of the terminal in which the tests run, or which a library sets, from tables."""
    monkeypatch.delenv("COLUMNS", raising=False)


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
