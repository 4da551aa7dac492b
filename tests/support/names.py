"""Names that a test lets questions use, as the settings of a run would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from brorl_graders.names import allow, allowed

from nemo_brorl.config.data import SourceConfig
from nemo_brorl.config.rewards import EndpointConfig, OwnVerifierConfig
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.scoring.grader_settings import names_of

Environment = tuple[str, Mapping[str, Any]]  # name and settings


def allow_also(
    verifiers: Iterable[str | OwnVerifierConfig] = (),
    endpoints: Iterable[EndpointConfig] = (),
    environments: Iterable[Environment] = (),
) -> None:
    """Allow these beside what is allowed, until the test ends (or its module, where a fixture of a module asks)."""
    config = BroRLConfig()
    for verifier in verifiers:
        own = OwnVerifierConfig(verifier) if isinstance(verifier, str) else verifier
        config.rewards.verifiers.append(own)
    config.rewards.services.endpoints.extend(endpoints)
    before = allowed()
    fingerprints = dict(before.environments)
    for name, settings in environments:
        config.data = replace(config.data, environment=name, environment_settings=dict(settings))
        known = fingerprints.get(name, ())
        fingerprints[name] = (*known, *names_of(config).environments[name])
    added = names_of(config)
    allow(
        replace(
            added,
            verifiers={**before.verifiers, **added.verifiers},
            endpoints={**before.endpoints, **added.endpoints},
            environments=fingerprints,
            variables=(*before.variables, *added.variables),
        )
    )


def allow_source(source: SourceConfig) -> None:
    """Allow what the settings of a source name, and no more."""
    config = BroRLConfig()
    config.data.domains.append(source)  # type: ignore[arg-type]
    allow(names_of(config))
