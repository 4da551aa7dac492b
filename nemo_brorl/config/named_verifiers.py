"""List every verifier that the settings name, with the options given for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from brorl_graders import is_address, wrong_address

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.rewards import EndpointConfig
from nemo_brorl.config.schema import BroRLConfig

# Settings of an endpoint, which earlier versions took from a prompt's payload.
OF_ENDPOINTS = tuple(field.name for field in dataclasses.fields(EndpointConfig) if field.name != "name")


class NamedVerifier(NamedTuple):
    """A verifier that the settings name, its options, and the settings key that holds them."""

    where: str
    name: str
    options: Mapping[str, Any]


def all_sources(config: BroRLConfig) -> Iterator[tuple[str, SourceConfig]]:
    """Yield every source of questions with its settings key, including benchmarks and sources of weight 0."""
    yield "data", config.data
    for index, domain in enumerate(config.data.domains):
        yield f"data.domains.{index}", domain
    for index, benchmark in enumerate(config.evaluation.benchmarks):
        yield f"evaluation.benchmarks.{index}", benchmark


def named_verifiers(config: BroRLConfig) -> Iterator[NamedVerifier]:
    """Yield the verifiers that settings name outside `rewards.verifiers` and `rewards.services.endpoints`."""
    for where, source in all_sources(config):
        yield from with_parts(f"{where}.verifier_options", source.verifier, source.verifier_options)


def with_parts(where: str, name: str | None, options: Mapping[str, Any]) -> Iterator[NamedVerifier]:
    """Yield a named verifier, and the verifiers that its option `parts` names."""
    if name is not None:
        yield NamedVerifier(where, name, options)
    parts = options.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, Mapping) and isinstance(part.get("verifier"), str):
            own = part.get("options")
            yield NamedVerifier(
                f"{where}.parts.{index}.options", part["verifier"], own if isinstance(own, Mapping) else {}
            )


def services_are_set_as_endpoints(config: BroRLConfig) -> Iterator[str]:
    """Yield a message for each invalid service address, and each verifier option that belongs to an endpoint."""
    endpoints = {endpoint.name for endpoint in config.rewards.services.endpoints}
    for where, name, options in named_verifiers(config):
        if is_address(name):
            wrong = wrong_address(name)
            if wrong is not None:
                yield wrong
        elif name not in endpoints:
            continue
        for option in OF_ENDPOINTS:
            if option in options:
                yield (
                    f"{where}.{option} is a setting of the service itself: set rewards.services.endpoints=[{{name: "
                    f"NAME, url: …, {option}: …}}] and the verifier NAME"
                )
