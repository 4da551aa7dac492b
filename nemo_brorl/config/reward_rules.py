"""Rules of verifiers' deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from nemo_brorl.config.data_rules import sources
from nemo_brorl.config.schema import BroRLConfig

SHARE_OF_TESTS = 0.8  # of the deadline of a response whose tests are run: what remains is for the rest of the verifier


def timeouts_are_positive(config: BroRLConfig) -> Iterator[str]:
    for name, seconds in config.rewards.timeouts.items():
        if not 0 < seconds < math.inf:
            yield (
                f"rewards.timeouts.{name}={seconds:g} must be above 0: write the seconds that this verifier may "
                f"take for one response"
            )
    for where, source in sources(config):
        value = source.verifier_options.get("timeout_s", 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            yield (
                f"{where}.verifier_options.timeout_s={value} must be a number above 0: write the seconds for one "
                f"response"
            )


def a_test_fits_its_response(config: BroRLConfig) -> Iterator[str]:
    one, whole = config.rewards.code.test_timeout_s, config.rewards.timeouts.get("code", config.rewards.timeout_s)
    if one > SHARE_OF_TESTS * whole > 0:
        yield (
            f"rewards.code.test_timeout_s={one:g} is more than all tests of a response have, {SHARE_OF_TESTS:.0%} of "
            f"rewards.timeouts.code="
            f"{whole:g}: write rewards.timeouts.code={one / SHARE_OF_TESTS:g} or more"
        )


REWARD_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (timeouts_are_positive, a_test_fits_its_response)
