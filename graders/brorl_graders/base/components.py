"""Functions chosen by name or by import path (`package.module:function`), with typed parameters of their own.

A function that takes parameters declares them as a dataclass, the annotation of its argument `params`:

    @dataclass
    class Params:
        temperature: float = 2.0

    def my_advantage(groups, config, params: Params): ...

Settings then give them by name: `algorithm.advantage_params={temperature: 3}`. When the run starts, types are checked
and unknown names refused.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from brorl_graders.base.environment_values import hidden, plain
from brorl_graders.base.errors import ConfigError
from brorl_graders.base.extras import to_install
from brorl_graders.base.typed_values import typed

PACKAGE = str(Path(__file__).parents[1])
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))

Function = TypeVar("Function", bound=Callable[..., Any])


def is_import_path(name: str) -> bool:
    """Return whether a name has the form `package.module:function`."""
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_function(what: str, path: str) -> Callable[..., Any]:
    """Import and return the function at `path`, which has the form `package.module:function`.

    Raises ConfigError when it cannot be imported or is no function. The message begins with `what`, the function's
    purpose.
    """
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(
            f"{what} {path!r} cannot be imported ({type(error).__name__}: {error}); set package.module:function and "
            f"put the folder of the package on PYTHONPATH{to_install(error)}"
        ) from error
    if not callable(function):
        raise ConfigError(f"{what} {path!r} is a {type(function).__name__} and not a function")
    return function


def own_line(error: BaseException) -> str:
    """Return the innermost line of a user's own code behind an exception, as `rew.py:8`, or "" if none is.

    Where all of the user's code is installed as a library, the line is the outermost one.
    """
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    lines = [(file, number) for file, number in lines if not file.startswith(("<", PACKAGE))]
    own = [(file, number) for file, number in lines if not file.startswith(LIBRARIES)]
    return next((f"{Path(file).name}:{number}" for file, number in (*reversed(own), *lines)), "")


def find_function(setting: str, name: str, built_in: Mapping[str, Function]) -> Function | Callable[..., Any]:
    """Return the function that a setting names: one of `built_in`, or a user's function by its import path.

    Raises ConfigError when there is none of that name.
    """
    if name in built_in:
        return built_in[name]
    if is_import_path(name):
        return import_function(f"{setting}:", name)
    raise ConfigError(
        f"{setting}={name}: set one of {', '.join(built_in)}, or a function of your own as package.module:function"
    )


def with_params(
    setting: str,
    name: str,
    function: Callable[..., Any],
    given: Mapping[str, Any],
) -> Callable[..., Any]:
    """Return the function with its argument `params` filled in from the settings.

    `params` is an object of the dataclass that annotates this argument. Its fields have the values `given` in
    `setting`, and their defaults otherwise. Raises ConfigError for an unknown field, a value of another type, a value
    that the dataclass refuses with a ValueError, and a required field without a value.
    """
    declared = params_type(name, function)
    if declared is None:
        if given:
            raise ConfigError(f"{setting}={dict(given)}: {name} takes no parameters; leave them out")
        return function
    params = typed_params(setting, name, declared, given)
    return partial(function, params=params)


def typed_params(
    setting: str,
    name: str,
    declared: type,
    given: Mapping[str, Any],
) -> Any:
    """Return an object of the dataclass `declared` with the parameters that a setting gives to the function `name`.

    The values `given` in `setting` replace the defaults of the dataclass. Raises ConfigError for an unknown field, a
    value of another type, and a required field without a value.
    """
    try:
        return typed(declared, plain(dict(given)))
    except (ValueError, TypeError, ConfigError) as error:
        reason = hidden(str(error).partition("\n")[0], given)
        takes = _signature(declared) or "no settings"
        raise ConfigError(f"{setting}={dict(given)}: {reason}; {name} takes {takes}") from None


def params_type(name: str, function: Callable[..., Any]) -> type | None:
    """Return the dataclass that annotates the argument `params` of a function, or None when it has no such argument.

    Raises ConfigError when the argument is not annotated with a dataclass.
    """
    if "params" not in inspect.signature(function).parameters:
        return None
    declared = get_type_hints(function).get("params")
    if not isinstance(declared, type) or not dataclasses.is_dataclass(declared):
        raise ConfigError(f"{name}: annotate its argument `params` with a dataclass of what may be set")
    return declared


def _signature(declared: type) -> str:
    """Return the fields of a dataclass with types and defaults, as Python source."""
    fields = []
    for field in dataclasses.fields(declared):
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        annotation = getattr(field.type, "__name__", field.type)
        fields.append(f"{field.name}: {annotation}{default}")
    return ", ".join(fields)
