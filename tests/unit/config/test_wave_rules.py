"""What rollouts.allocation=waves goes together with."""

from __future__ import annotations

import pytest

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError

WAVES = "rollouts.allocation=waves"

WRONG = [
    (
        [WAVES, "algorithm.advantage=grpo"],
        "algorithm.advantage=reinforce_plus_plus_baseline or dr_grpo or rloo (now grpo): write that, or rollouts.",
    ),
    (
        [WAVES, "algorithm.advantage=reinforce_plus_plus"],
        "(now reinforce_plus_plus): write that, or rollouts.allocation=fixed",
    ),
    (
        [WAVES, "algorithm.credit=turn"],
        "needs algorithm.credit=outcome or return (now turn)",
    ),
    (
        [WAVES, "algorithm.train_rollouts=16"],
        "needs algorithm.train_rollouts=null (now 16)",
    ),
    (
        [WAVES, "algorithm.rare_success_exponent=1"],
        "needs algorithm.rare_success_exponent=0 (now 1.0): write that, or rollouts.allocation=fixed",
    ),
    (
        [WAVES, "rollouts.num_per_prompt=64"],
        "write for example rollouts.waves.first_wave=8, or rollouts.allocation=fixed",
    ),
    (
        [WAVES, "rollouts.waves.first_wave=2", "rollouts.prompts_per_step=1", "policy.data_parallel_size=2"],
        "cannot fill algorithm.num_mini_batches=4 on 2",
    ),
    ([WAVES, "dynamic_sampling.in_flight=drop"], "needs dynamic_sampling.in_flight=finish or resume (now drop)"),
    (
        [WAVES, "dynamic_sampling.order=completion", "dynamic_sampling.carry_over=false"],
        "order=prompt (now completion) or dynamic_sampling.carry_over=true (now false)",
    ),
    (["rollouts.waves.min_probability=0"], "rollouts.waves.min_probability=0.0 is out of range"),
    (["rollouts.allocation=more"], "write one of fixed, waves"),
]


@pytest.mark.parametrize(("overrides", "fragment"), WRONG)
def test_a_combination_that_would_bias_the_gradient_is_refused(overrides: list[str], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("brorl_cpu", overrides)
    assert fragment in str(caught.value)


@pytest.mark.parametrize("advantage", ["reinforce_plus_plus_baseline", "dr_grpo", "rloo"])
def test_advantages_that_only_subtract_a_mean_are_accepted(advantage: str) -> None:
    assert load_config("brorl_cpu", [WAVES, f"algorithm.advantage={advantage}"]).rollouts.allocation == "waves"
