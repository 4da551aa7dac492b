"""Libraries of single verifiers, and the extra of this package that installs each."""

from __future__ import annotations

from importlib import import_module

from brorl_graders.base.errors import ConfigError

EXTRAS = {
    "aiohttp": "environments",
    "httpx": "services",
    "jsonschema": "environments",
    "openai": "environments",
    "py3langid": "ifeval",
    "reasoning_gym": "reasoning-gym",
    "sympy": "math",
}


def require(library: str) -> None:
    """Import a library. Raises ConfigError, with the extra to install, if it is missing."""
    try:
        import_module(library)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}{to_install(error)}") from error


def to_install(error: BaseException) -> str:
    """Return advice to install the extra with the library that an import did not find, or ""."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f". Install it: pip install 'brorl-graders[{EXTRAS[name]}]'" if name in EXTRAS else ""
