"""Grade responses: verifiers, a sandbox for their programs, and environments that answer a model's turns.

The names in `__all__` are the public interface. Users may also import from `brorl_graders.base` the modules `errors`,
`components` (functions by name or import path), `environment_values` and `private_folder`. A module is imported when
one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from brorl_graders.answers import answers_of, is_reference, reading_of
    from brorl_graders.base.answer import boxed_answers
    from brorl_graders.base.errors import BroRLError, ConfigError, DataError, ResourceError, ServiceError
    from brorl_graders.base.payload import (
        ENVIRONMENT,
        FULL_MARK_KEY,
        accepted_answers,
        full_mark,
        lowest_right,
        reference_text,
        with_full_mark,
    )
    from brorl_graders.base.settings import SCORE_LINE, SHARE_OF_TESTS, is_address, wrong_address
    from brorl_graders.base.verdicts import Verdicts
    from brorl_graders.environments.protocol import Action, Environment, Step
    from brorl_graders.environments.registry import first_messages, make_environment
    from brorl_graders.given import GIVEN_REWARD, give_reward, keep_reward
    from brorl_graders.grading import Grade, Pool, grade
    from brorl_graders.named_code import NamedCode, look_up, source_hashes
    from brorl_graders.verifiers.registry import (
        check_name,
        check_payload,
        endpoints_in,
        is_open,
        names_in,
        runs_own_code,
    )

__all__ = [
    "ENVIRONMENT",
    "FULL_MARK_KEY",
    "GIVEN_REWARD",
    "SCORE_LINE",
    "SHARE_OF_TESTS",
    "Action",
    "BroRLError",
    "ConfigError",
    "DataError",
    "Environment",
    "Grade",
    "NamedCode",
    "Pool",
    "ResourceError",
    "ServiceError",
    "Step",
    "Verdicts",
    "accepted_answers",
    "answers_of",
    "boxed_answers",
    "check_name",
    "check_payload",
    "endpoints_in",
    "first_messages",
    "full_mark",
    "give_reward",
    "grade",
    "is_address",
    "is_open",
    "is_reference",
    "keep_reward",
    "look_up",
    "lowest_right",
    "make_environment",
    "names_in",
    "reading_of",
    "reference_text",
    "runs_own_code",
    "source_hashes",
    "with_full_mark",
    "wrong_address",
]

# The module of each public name. Names are imported late: child processes import this file, and few need a verifier.
_NAMES_OF_MODULES = {
    "answers": ("answers_of", "is_reference", "reading_of"),
    "base.answer": ("boxed_answers",),
    "base.errors": ("BroRLError", "ConfigError", "DataError", "ResourceError", "ServiceError"),
    "base.payload": (
        "ENVIRONMENT",
        "FULL_MARK_KEY",
        "accepted_answers",
        "full_mark",
        "lowest_right",
        "reference_text",
        "with_full_mark",
    ),
    "base.settings": ("SCORE_LINE", "SHARE_OF_TESTS", "is_address", "wrong_address"),
    "base.verdicts": ("Verdicts",),
    "environments.protocol": ("Action", "Environment", "Step"),
    "environments.registry": ("first_messages", "make_environment"),
    "given": ("GIVEN_REWARD", "give_reward", "keep_reward"),
    "grading": ("Grade", "Pool", "grade"),
    "named_code": ("NamedCode", "look_up", "source_hashes"),
    "verifiers.registry": ("check_name", "check_payload", "endpoints_in", "is_open", "names_in", "runs_own_code"),
}
_MODULE_OF: dict[str, str] = {}
for _module, _names in _NAMES_OF_MODULES.items():
    _MODULE_OF.update(dict.fromkeys(_names, _module))


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name of this package, and return the name's value."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names of this package, imported or not."""
    return sorted({*globals(), *__all__})
