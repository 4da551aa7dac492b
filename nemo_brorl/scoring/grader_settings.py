"""Settings of the graders (verifiers, services, environments, sandbox), built from the settings of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from brorl_graders.base.components import is_import_path
from brorl_graders.base.names import Names, fingerprint
from brorl_graders.base.payload import Deadlines
from brorl_graders.base.settings import CodeLimits, Endpoint, ServiceLimits, is_address
from brorl_graders.environments.host import HostLimits
from brorl_graders.given import kept_reward
from brorl_graders.services.remote_scores import FOLDER
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.registry import use_names

from nemo_brorl.config.named_verifiers import all_sources, named_verifiers
from nemo_brorl.config.rewards import CodeConfig, EndpointConfig, EnvironmentsConfig, RewardsConfig, ServicesConfig
from nemo_brorl.config.schema import BroRLConfig


def configure(config: BroRLConfig) -> None:
    """Allow the verifiers, services and environments that a run's settings name, in this process and in its children.

    Imports none of them. `check_names` does. Raises ConfigError where a service has the name of a built-in verifier.
    """
    use_names(names_of(config))


def names_of(config: BroRLConfig) -> Names:
    """Return the verifiers, services, environments and environment variables that the settings of a run name."""
    environments: dict[str, set[str]] = {}
    for _, source in all_sources(config):
        if source.environment is not None:
            known = environments.setdefault(source.environment, set())
            known.add(fingerprint(source.environment_settings))
    return Names(
        verifiers=_own_verifiers(config),
        endpoints=_endpoints(config),
        environments={name: tuple(sorted(known)) for name, known in environments.items()},
        variables=tuple(config.rewards.environment_variables),
        given=kept_reward(),
    )


def deadlines_of(rewards: RewardsConfig, at_most: float = math.inf) -> Deadlines:
    """Return the seconds that scoring a response may take, by verifier, each `at_most` so many."""
    by_verifier = {name: min(seconds, at_most) for name, seconds in rewards.timeouts.items()}
    return Deadlines(min(rewards.timeout_s, at_most), by_verifier)


def endpoint_of(config: EndpointConfig) -> Endpoint:
    """Return the address and the parameters of one scoring service or LLM judge, as its settings give them."""
    return Endpoint(**asdict(config))


def service_limits(config: ServicesConfig) -> ServiceLimits:
    """Return the limits of requests to scoring services and LLM judges, as the settings give them."""
    return ServiceLimits(**{field.name: getattr(config, field.name) for field in fields(ServiceLimits)})


def host_limits(config: EnvironmentsConfig, tool_format: str) -> HostLimits:
    """Return the time and size limits of episodes with environments, for a model that calls tools in `tool_format`."""
    return HostLimits(
        step_s=config.step_timeout_s,
        episode_s=config.episode_timeout_s,
        max_characters=config.max_observation_characters,
        num_processes=config.num_processes,
        tool_format=tool_format,
    )


def service_folder(run_folder: Path) -> Path:
    """Return the folder of a run that stores the replies of scoring services and LLM judges."""
    return run_folder.absolute() / FOLDER


def code_limits(config: CodeConfig) -> CodeLimits:
    """Return the limits of programs that the sandbox runs, as the settings give them."""
    return CodeLimits(**asdict(config))


def configure_code(rewards: RewardsConfig) -> None:
    """Set the limits under which the verifier `code` runs programs, in this process and in its children."""
    code.configure(code_limits(rewards.code), deadlines_of(rewards).seconds("code", {}))


def _own_verifiers(config: BroRLConfig) -> dict[str, dict[str, Any]]:
    params: dict[str, dict[str, Any]] = {}
    for named in named_verifiers(config):
        if is_import_path(named.name):
            params[named.name] = {}
    for verifier in config.rewards.verifiers:
        params[verifier.name] = dict(verifier.params)
    return params


def _endpoints(config: BroRLConfig) -> dict[str, Endpoint]:
    endpoints = {}
    for named in named_verifiers(config):
        if is_address(named.name):
            endpoints[named.name] = Endpoint(name=named.name, url=named.name)
    for declared in config.rewards.services.endpoints:
        endpoints[declared.name] = endpoint_of(declared)
    return endpoints
