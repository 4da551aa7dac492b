"""A reward function that is not there, given to the commands that start engines."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from nemo_brorl.commands import evaluate, train, try_out, wiring
from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError, ModelError


@pytest.mark.parametrize("command", [train, try_out, evaluate])
def test_a_misspelt_reward_is_refused_before_the_model_is_looked_for(
    command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="data.verifier=no_rewards:score: there is no module no_rewards"):
        command.main(["data.verifier=no_rewards:score", "policy.model=/no/such/model"])
    assert capsys.readouterr().out == ""


def test_an_evaluation_needs_no_functions_of_the_training() -> None:
    with pytest.raises(ModelError, match="policy.model=/no/such/model"):
        evaluate.main(["algorithm.loss=no_losses:loss", "policy.model=/no/such/model"])


def test_inputs_are_not_read_with_a_misspelt_reward() -> None:
    config = load_config("brorl_cpu", ["data.verifier=no_rewards:score"])
    with pytest.raises(ConfigError, match="data.verifier=no_rewards:score: there is no module"):
        wiring.read_inputs(config, Path("/no/such/model"))
