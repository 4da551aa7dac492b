"""Deadlines of verifiers that cannot be meant."""

from __future__ import annotations

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rewards.timeouts.code=0"], "rewards.timeouts.code=0 must be above 0"),
        (["+data.verifier_options.timeout_s=soon"], "data.verifier_options.timeout_s=soon must be a number"),
        (["rewards.code.test_timeout_s=30"], "write rewards.timeouts.code=37.5 or more"),
    ],
)
def test_deadlines_are_checked(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("brorl_cpu", overrides)


def test_programs_have_more_time_than_other_answers_and_both_can_be_set() -> None:
    config = load_config(
        "brorl_cpu", ["rewards.timeouts.math=9", "rewards.timeouts.code=60", "rewards.code.test_timeout_s=30"]
    )
    assert (config.rewards.timeout_s, config.rewards.timeouts) == (5.0, {"code": 60.0, "math": 9.0})
    assert load_config("brorl_cpu").rewards.timeouts == {"code": 20.0}
