"""Find environments by name or import path, and check their settings and tools.

Only an environment that the settings of the run name is made, and only with the settings in them
(`graders/brorl_graders/base/names.py`).
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from brorl_graders.base.components import import_function, is_import_path, typed_params
from brorl_graders.base.errors import BroRLError, ConfigError, DataError
from brorl_graders.base.extras import require, to_install
from brorl_graders.base.foreign import LARGE, read_json
from brorl_graders.base.names import check_environment, check_environment_name
from brorl_graders.environments.protocol import (
    ISOLATIONS,
    Environment,
    Message,
    Task,
    Traits,
    resolve,
    run_without_waiting,
    to_messages,
)

PLACE = "brorl_graders.environments"
ENVIRONMENTS = {
    "agent": f"{PLACE}.agent:Agent",
    "calculator": f"{PLACE}.judged:Calculator",
    "mastermind": f"{PLACE}.mastermind:Mastermind",
    "python": f"{PLACE}.judged:PythonTool",
    "verifiers": f"{PLACE}.agent:Verifiers",
    "verify_and_retry": f"{PLACE}.judged:VerifyAndRetry",
}


def find(name: str) -> type[Environment]:
    """Return the class of an environment by its name or import path.

    Raises ConfigError when there is none, and NotAllowedError when no setting names it.
    """
    check_environment_name(name)
    path = ENVIRONMENTS.get(name, name)
    if not is_import_path(path):
        known = ", ".join(ENVIRONMENTS)
        raise ConfigError(f"unknown environment {name!r}; choose {known}, or your own as package.module:Class")
    kind = import_function("environment", path)
    if not isinstance(kind, type) or not issubclass(kind, Environment):
        raise ConfigError(f"environment {name!r} is no class derived from {Environment.__module__}:Environment")
    return kind


def make_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Make an object of the environment `name` with these settings.

    Raises ConfigError for an unknown name, a wrong setting or a malformed tool, and NotAllowedError for a name or
    settings that the run's settings do not have.
    """
    check_environment(name, settings)
    written = json.dumps(dict(settings), default=str, sort_keys=True)
    kind, typed = _checked_settings(name, written)
    return kind(**copy.deepcopy(typed))


@lru_cache(maxsize=256)
def _checked_settings(name: str, written: str) -> tuple[type[Environment], dict[str, Any]]:
    """Return the class and the settings of an environment after all checks, cached since many episodes share them."""
    kind = find(name)
    typed = _typed_settings(name, kind, read_json(written, most_bytes=LARGE))
    environment = kind(**copy.deepcopy(typed))
    check_tools(name, environment)
    if environment.isolation not in ISOLATIONS:
        raise ConfigError(f"environment {name}: its isolation is {environment.isolation!r}; set one of {ISOLATIONS}")
    return kind, typed


def find_traits(name_and_task: tuple[str, Task]) -> Traits:
    """Return the properties that decide which process may run an episode of this environment and task.

    Also imports what the environment needs for such tasks. Raises ConfigError when the environment is unknown or cannot
    be imported.
    """
    name, task = name_and_task
    kind = find(name)
    try:
        import jsonschema  # noqa: F401 imported once, for all forks of this process

        return kind.traits(task)
    except (ImportError, OSError, LookupError) as error:
        reason = f"{type(error).__name__}: {error}{to_install(error)}"
        raise ConfigError(f"environment {name} cannot be loaded: {reason}") from error


def check_tools(name: str, environment: Environment) -> None:
    """Raise ConfigError unless each tool is a function by name with a JSON schema of its parameters."""
    require("jsonschema")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    for tool in environment.tools:
        function = tool.get("function", {})
        schema = function.get("parameters")
        if not isinstance(function.get("name"), str) or not isinstance(schema, Mapping):
            raise ConfigError(
                f"environment {name}: {tool!r:.300} is no tool; write "
                '{"type": "function", "function": {"name": …, "description": …, "parameters": a JSON schema}}'
            )
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ConfigError(
                f"environment {name}, tool {function['name']}: its parameters are no JSON schema: {error.message}"
            ) from error


def _typed_settings(name: str, kind: type[Environment], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an environment's settings to the types that its constructor's annotations have.

    Raises ConfigError for an unknown setting or a value of another type.
    """
    setting = f"settings of environment {name}"
    hints = get_type_hints(kind.__init__)
    fields: list[Any] = []
    parameters = inspect.signature(kind).parameters
    for name_of_field, parameter in parameters.items():
        is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_rest:
            continue
        field = dataclasses.field()
        if parameter.default is not parameter.empty:
            field = dataclasses.field(default=parameter.default)
        hint = hints.get(name_of_field, Any)
        fields.append((name_of_field, hint, field))
    try:
        declared = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True)
        typed = typed_params(setting, name, declared, settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{setting}: {error}") from error
    values = {}
    for field in dataclasses.fields(declared):
        values[field.name] = getattr(typed, field.name)
    return values


def first_messages(name: str, environment: Environment, task: Task) -> tuple[Message, ...]:
    """Return the messages that an episode of this task starts with. Raises DataError when it does not start."""
    try:
        beginning = _begin(environment, task)
        if inspect.iscoroutinefunction(environment.reset):
            return asyncio.run(beginning)
        return run_without_waiting(beginning)
    except BroRLError:
        raise
    # A user's environment may raise any exception.
    except Exception as error:
        raise DataError(f"environment {name}: reset does not take its task: {type(error).__name__}: {error}") from error


async def _begin(environment: Environment, task: Task) -> tuple[Message, ...]:
    """Return the first messages of an episode, and close the episode in the event loop that it started in."""
    try:
        observation = await resolve(environment.reset(task, 0))
        return to_messages(observation, "user")
    finally:
        environment.close()
