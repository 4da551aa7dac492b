"""Checks of verifiers before anything expensive starts: services answer, and programs can be held."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from brorl_graders.base.names import allowed
from brorl_graders.services.service_client import check_endpoint
from brorl_graders.verifiers.code import code

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.scoring.grader_settings import configure_code


def check_verifiers(rewards: RewardsConfig, verifiers: Sequence[str]) -> None:
    """Check that services answer. Raises ConfigError, and as `prepare_sandbox`."""
    if rewards.services.replay is None:
        endpoints = allowed().endpoints
        for name in filter(endpoints.__contains__, verifiers):
            check_endpoint(endpoints[name])
    prepare_sandbox(rewards, verifiers)


def prepare_sandbox(rewards: RewardsConfig, verifiers: Collection[str]) -> None:
    """Check that programs can be held where a verifier runs some. Raises ResourceError."""
    if "code" in verifiers:
        configure_code(rewards)
        code.load()
