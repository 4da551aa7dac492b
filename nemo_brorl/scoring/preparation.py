"""Checks of verifiers before a run starts: services answer, and the sandbox can isolate programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from brorl_graders.base.names import allowed
from brorl_graders.given import GIVEN_REWARD
from brorl_graders.grading import Pool
from brorl_graders.services.service_client import check_endpoint
from brorl_graders.verifiers import composite
from brorl_graders.verifiers.code import code
from brorl_graders.verifiers.registry import VERIFIERS

from nemo_brorl.config.rewards import RewardsConfig
from nemo_brorl.scoring.grader_settings import configure_code


def check_verifiers(rewards: RewardsConfig, verifiers: Sequence[str]) -> None:
    """Check that the scoring services among `verifiers` answer, and that the sandbox works if programs are run.

    A reward function that was passed as an object must arrive in a scoring process. Raises ConfigError or
    ResourceError.
    """
    if GIVEN_REWARD in verifiers:
        with Pool(rewards.timeout_s) as pool:
            pool.load(GIVEN_REWARD)
    if rewards.services.replay is None:
        endpoints = allowed().endpoints
        for name in filter(endpoints.__contains__, verifiers):
            check_endpoint(endpoints[name])
    prepare_sandbox(rewards, verifiers)


def keys_of(verifiers: Collection[str]) -> set[str] | None:
    """Return the keys of a payload that verifiers of the graders read, or None if another verifier is among them."""
    keys = {key.name for key in composite.KEYS} | {"timeout_s"}
    for name in verifiers:
        if name not in VERIFIERS:
            return None
        keys.update(key.name for key in VERIFIERS[name].keys)
    return keys


def prepare_sandbox(rewards: RewardsConfig, verifiers: Collection[str]) -> None:
    """Check that the sandbox can isolate programs, if one of the verifiers runs some. Raises ResourceError if not."""
    if "code" in verifiers:
        configure_code(rewards)
        code.load()
