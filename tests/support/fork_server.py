"""The fork server of a test process: it has imported the large libraries once, so that a rank or a command starts at
once."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from tests.support.source_tree import CODE_PATH

_modules: list[str] = []


def preload(*modules: str, is_first: bool = False) -> None:
    """Modules that the server imports before its first child; called while test modules are imported."""
    if is_first:
        _modules[:0] = modules
    else:
        _modules.extend(modules)


def start(function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Call a function of a module in a child of the server."""
    context: ForkServerContext = mp.get_context("forkserver")
    context.set_forkserver_preload(list(_modules))
    process = context.Process(target=function, args=arguments)
    with _repository_on_path():
        process.start()
    return process


@contextmanager
def _repository_on_path() -> Iterator[None]:
    """The server inherits the environment of the moment it starts in, and not `sys.path`."""
    old_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = CODE_PATH
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if old_path is not None:
            os.environ["PYTHONPATH"] = old_path
