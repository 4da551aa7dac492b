"""What graders are told is what the settings of a run say."""

from __future__ import annotations

import pytest
from brorl_graders.base.names import allowed
from brorl_graders.base.settings import Endpoint

from nemo_brorl.config.load import load_config
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.scoring.grader_settings import configure

NEAR = "my_verifiers:near"


def test_a_verifier_of_ones_own_has_the_parameters_that_settings_give() -> None:
    configure(load_config("brorl_cpu", [f"rewards.verifiers=[{{name: '{NEAR}', params: {{tolerance: 1}}}}]"]))
    assert allowed().verifiers == {NEAR: {"tolerance": 1}}


def test_a_verifier_that_settings_name_for_questions_needs_no_second_mention() -> None:
    configure(load_config("brorl_cpu", [f"data.verifier={NEAR}"]))
    assert allowed().verifiers == {NEAR: {}}


def test_parameters_of_a_built_in_verifier_are_refused_and_not_ignored() -> None:
    with pytest.raises(ConfigError, match=r"rewards.verifiers.0.name=math .*package.module:function"):
        load_config("brorl_cpu", ["rewards.verifiers=[{name: math, params: {tolerance: 1}}]"])


def test_an_address_that_settings_name_as_a_verifier_is_an_endpoint() -> None:
    address = "https://host/score"
    configure(load_config("brorl_cpu", [f"data.verifier='{address}'"]))
    assert allowed().endpoints == {address: Endpoint(address, address)}


def test_an_endpoint_cannot_take_the_name_of_a_verifier_of_ours() -> None:
    config = load_config("brorl_cpu", ["rewards.services.endpoints=[{name: math, url: 'http://host'}]"])
    with pytest.raises(ConfigError, match="math has a meaning of its own: choose another name"):
        configure(config)
