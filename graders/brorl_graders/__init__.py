"""Grade responses: verifiers, a sandbox for their programs, and environments that answer a model's turns.

The names in `__all__` are the public interface. Users may also import from `brorl_graders.base` the modules `errors`,
`components` (functions by name or import path), `environment_values` and `private_folder`, and for other frameworks
`brorl_graders.adapters`. A module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from brorl_graders.answers import answers_of as answers_of
    from brorl_graders.answers import is_reference as is_reference
    from brorl_graders.answers import reading_of as reading_of
    from brorl_graders.base.answer import boxed_answers as boxed_answers
    from brorl_graders.base.errors import BroRLError, ConfigError, DataError, ResourceError, ServiceError
    from brorl_graders.base.names import Names
    from brorl_graders.base.payload import ENVIRONMENT as ENVIRONMENT
    from brorl_graders.base.payload import FULL_MARK_KEY as FULL_MARK_KEY
    from brorl_graders.base.payload import Deadlines
    from brorl_graders.base.payload import accepted_answers as accepted_answers
    from brorl_graders.base.payload import full_mark as full_mark
    from brorl_graders.base.payload import lowest_right as lowest_right
    from brorl_graders.base.payload import reference_text as reference_text
    from brorl_graders.base.payload import with_full_mark as with_full_mark
    from brorl_graders.base.settings import SCORE_LINE as SCORE_LINE
    from brorl_graders.base.settings import SHARE_OF_TESTS as SHARE_OF_TESTS
    from brorl_graders.base.settings import Endpoint, ServiceLimits
    from brorl_graders.base.settings import is_address as is_address
    from brorl_graders.base.settings import wrong_address as wrong_address
    from brorl_graders.base.verdicts import Verdicts
    from brorl_graders.environments.protocol import Action, Environment, Step
    from brorl_graders.environments.registry import first_messages as first_messages
    from brorl_graders.environments.registry import make_environment
    from brorl_graders.given import GIVEN_REWARD as GIVEN_REWARD
    from brorl_graders.given import give_reward as give_reward
    from brorl_graders.given import keep_reward as keep_reward
    from brorl_graders.grading import Grade, Pool, Processes, grade
    from brorl_graders.named_code import NamedCode as NamedCode
    from brorl_graders.named_code import look_up as look_up
    from brorl_graders.named_code import source_hashes as source_hashes
    from brorl_graders.verifiers.registry import check_name as check_name
    from brorl_graders.verifiers.registry import check_payload, use_names
    from brorl_graders.verifiers.registry import endpoints_in as endpoints_in
    from brorl_graders.verifiers.registry import is_open as is_open
    from brorl_graders.verifiers.registry import names_in as names_in
    from brorl_graders.verifiers.registry import runs_own_code as runs_own_code

__all__ = [
    "Action",
    "BroRLError",
    "ConfigError",
    "DataError",
    "Deadlines",
    "Endpoint",
    "Environment",
    "Grade",
    "Names",
    "Pool",
    "Processes",
    "ResourceError",
    "ServiceError",
    "ServiceLimits",
    "Step",
    "Verdicts",
    "check_payload",
    "grade",
    "make_environment",
    "use_names",
]

# Names are imported late: child processes import this file, and few need a verifier.
_PUBLIC = {
    "base.errors": ("BroRLError", "ConfigError", "DataError", "ResourceError", "ServiceError"),
    "base.names": ("Names",),
    "base.payload": ("Deadlines",),
    "base.settings": ("Endpoint", "ServiceLimits"),
    "base.verdicts": ("Verdicts",),
    "environments.protocol": ("Action", "Environment", "Step"),
    "environments.registry": ("make_environment",),
    "grading": ("Grade", "Pool", "Processes", "grade"),
    "verifiers.registry": ("check_payload", "use_names"),
}
# Names for packages that train with the graders. They may change with the training backend.
_FOR_TRAINING = {
    "answers": ("answers_of", "is_reference", "reading_of"),
    "base.answer": ("boxed_answers",),
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
    "environments.registry": ("first_messages",),
    "given": ("GIVEN_REWARD", "give_reward", "keep_reward"),
    "named_code": ("NamedCode", "look_up", "source_hashes"),
    "verifiers.registry": ("check_name", "endpoints_in", "is_open", "names_in", "runs_own_code"),
}
_MODULE_OF: dict[str, str] = {}
_MODULE_FOR_TRAINING: dict[str, str] = {}
for _found, _modules in ((_MODULE_OF, _PUBLIC), (_MODULE_FOR_TRAINING, _FOR_TRAINING)):
    for _module, _names in _modules.items():
        _found.update(dict.fromkeys(_names, _module))


def __getattr__(name: str) -> Any:
    """Import the module that defines a public name of this package, and return the name's value."""
    relative = _MODULE_OF.get(name) or _MODULE_FOR_TRAINING.get(name)
    if relative is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{relative}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names of this package, imported or not."""
    return sorted({*globals(), *__all__})
