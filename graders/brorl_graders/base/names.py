"""Names of verifiers, services and environments that this process may use: those in the settings, and no others.

Data rows, stored runs and checkpoints are data. They may choose among these names and add none. A name may be an import
path, which is code, or an address, to which responses and a key are sent. The verifiers of this package that run on
this machine are always allowed: `verifiers/registry.py` lists them.

`allow` is called once at the start, from the settings. Child processes read the names from an environment variable.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from brorl_graders.base.errors import NotAllowedError
from brorl_graders.base.foreign import LARGE, read_json
from brorl_graders.base.settings import Endpoint, is_address

MAX_SHOWN = 200  # longest quotation from data in a message, in characters
VARIABLE = "BRORL_NAMES"  # environment variable that hands the names to child processes, as JSON
# Environment variables that a child process with other people's code may see, apart from those that settings name.
# None of them holds a secret.
CHILD_VARIABLES = frozenset(
    (
        "BRORL_CODE_SETTINGS",
        "BRORL_LOG_LEVEL",
        VARIABLE,
        "CUDA_VISIBLE_DEVICES",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
        "MALLOC_ARENA_MAX",
        "MKL_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_CORETYPE",
        "OPENBLAS_L2_SIZE",
        "OPENBLAS_NUM_THREADS",
        "PATH",
        "PYTHONHASHSEED",
        "PYTHONPATH",
        "PYTHONSAFEPATH",
        "TMPDIR",
        "TZ",
        "VIRTUAL_ENV",
    )
)


# Names with which `allow` was called, by their JSON text in the environment. The text lacks addresses and keys.
_given: dict[str, Names] = {}


@dataclass(frozen=True)
class Names:
    """Verifiers, endpoints and environments that the settings add to those of this package."""

    verifiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # import path -> parameters
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)  # name or address -> endpoint
    environments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> fingerprints of its settings
    variables: tuple[str, ...] = ()  # environment variables for children that run other people's code
    given: tuple[bytes, str] | None = None  # pickle and hash of a reward function that is an object (`given.py`)


def allow(names: Names) -> None:
    """Let this process, and those that it starts from now on, use the names in `names` and no others.

    The names are those of verifiers, endpoints and environments. Child processes learn that there is an endpoint of a
    name, and neither its address nor its key.
    """
    endpoints = {name: Endpoint(name=name, url="") for name in names.endpoints}
    text = json.dumps(asdict(replace(names, endpoints=endpoints, given=None)))
    _given[text] = names
    os.environ[VARIABLE] = text


def forget_all_but_environments() -> None:
    """Clear the environment variables of this process, and allow it no names but those of environments.

    So it can use no service, no judge and no verifier that is a user's own code.
    """
    names = Names(environments=allowed().environments)
    os.environ.clear()
    allow(names)


def child_environment(**added: str) -> dict[str, str]:
    """Build the environment variables of a child process that runs other people's code.

    It holds what Python and its libraries need, the variables in `rewards.environment_variables`, and those `added`.
    """
    seen = CHILD_VARIABLES.union(allowed().variables)
    kept = {name: value for name, value in os.environ.items() if name in seen}
    return {**kept, **added}


def allowed() -> Names:
    """Return the verifiers, endpoints and environments that this process may use."""
    text = os.environ.get(VARIABLE, "{}")
    return _given.get(text) or _read(text)


def endpoint(name: str) -> Endpoint:
    """Return the scoring service or judge of this name or address. Raises NotAllowedError when settings have none."""
    named = allowed().endpoints.get(name)
    if named is None:
        raise refused_verifier(name)
    return named


def check_environment_name(name: str) -> None:
    """Raise NotAllowedError unless the settings of the run name this environment."""
    if name not in allowed().environments:
        raise NotAllowedError(
            f"environment {name!r} is not in the settings: data, stored runs and checkpoints cannot add one. If you "
            f"trust it, set data.environment={name}"
        )


def check_environment(name: str, settings: Mapping[str, Any]) -> None:
    """Raise NotAllowedError unless the run's settings name this environment with exactly the settings `settings`."""
    check_environment_name(name)
    if fingerprint(settings) not in allowed().environments[name]:
        shown = repr(dict(settings))[:MAX_SHOWN]
        raise NotAllowedError(
            f"environment {name} has the settings {shown} in its data, and others in the run's: data, stored runs and "
            "checkpoints cannot change them. If you trust these, set data.environment_settings to them"
        )


def refused_verifier(name: str) -> NotAllowedError:
    """Build the error for a verifier that no setting names, with the setting that would allow it."""
    # The query of an address may hold a secret.
    shown = name.partition("?")[0][:MAX_SHOWN]
    remedy = f"rewards.verifiers=[{{name: {shown!r}}}]"
    if is_address(name):
        remedy = f"rewards.services.endpoints=[{{name: NAME, url: {shown!r}}}] and the verifier NAME"
    return NotAllowedError(
        f"verifier {shown!r} is not in the settings: data, stored runs and checkpoints cannot add one. If you trust "
        f"it, set {remedy}"
    )


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an environment's settings, which is equal for equal settings and shows none of them."""
    written = json.dumps(dict(settings), default=str, sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


@lru_cache(maxsize=4)
def _read(text: str) -> Names:
    written = read_json(text, most_bytes=LARGE)
    endpoints = {name: Endpoint(**given) for name, given in written.get("endpoints", {}).items()}
    environments = {name: tuple(known) for name, known in written.get("environments", {}).items()}
    return Names(written.get("verifiers", {}), endpoints, environments, tuple(written.get("variables", ())))
