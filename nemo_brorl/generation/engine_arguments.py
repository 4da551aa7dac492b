"""Check of `generation.engine_args` against the installed vLLM, before anything is started.

The names of its EngineArgs are read from its source: importing vLLM takes ten seconds, and nothing else on the driver
needs it.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_brorl.core.errors import ConfigError


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for a name in `generation.engine_args` that vLLM's EngineArgs does not have."""
    if not arguments:
        return
    known = known_arguments()
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            remedy = f"Set {' or '.join(close)}." if close else "The class vllm.EngineArgs lists all arguments."
            raise ConfigError(f"generation.engine_args.{name} is no argument of this vLLM's EngineArgs. {remedy}")


@functools.cache
def known_arguments() -> tuple[str, ...]:
    """Return the argument names of the installed vLLM's EngineArgs.

    Raises ConfigError if vLLM is not installed.
    """
    vllm = importlib.util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        raise ConfigError("generation.engine_args cannot be checked: vLLM is not installed here")
    source = Path(vllm.origin).parent / "engine" / "arg_utils.py"
    return fields_of(source.read_text(encoding="utf-8"), "EngineArgs")


def fields_of(source: str, class_name: str) -> tuple[str, ...]:
    """Return the field names of a dataclass, in order, as read from the source code of its module."""
    names = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name != class_name:
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                names.append(field.target.id)
    return tuple(names)
