"""Stored responses scored again, over a fake pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brorl_lab.commands.rescore import changes_by_task, confusion, main, prompt_for_verifier, rescore

from nemo_brorl.config.load import load_config, to_yaml
from nemo_brorl.core.errors import ConfigError, DataError, ModelError, NotAllowedError
from nemo_brorl.training.store.files import StoreFiles
from tests.support.environments import environment_prompt
from tests.support.fakes import FailingVerifier, FakeVerifier, make_prompt
from tests.support.run_folders import put_run
from tests.support.stored import group

NAME = "exact_match"


def test_rewards_come_back_in_the_order_of_the_groups_and_their_rollouts() -> None:
    """The fake gives 1 to every rollout of train/0, to every second one of train/1."""
    groups = [group("train/1", [0.0, 0.0, 1.0, 1.0]), group("train/0", [1.0, 0.0])]
    first, second = rescore(groups, FakeVerifier(), NAME, {})
    np.testing.assert_array_equal(first.rewards, [1, 0, 1, 0])
    np.testing.assert_array_equal(first.changed, [0, 3])
    np.testing.assert_array_equal(second.rewards, [1, 1])


def test_a_response_whose_verifier_fails_keeps_its_reward() -> None:
    groups = [group("train/1", [0.0, 0.5, 1.0, 1.0]), group("train/0", [1.0, 0.0])]
    first, second = rescore(groups, FailingVerifier({0, 1}), NAME, {})
    assert (first.rewards.tolist(), first.num_failed) == ([0.0, 0.5, 1.0, 0.0], 2)
    assert (second.rewards.tolist(), second.num_failed) == ([1.0, 0.0], 2)


def test_right_and_wrong_are_counted_before_and_now() -> None:
    groups = rescore([group("train/1", [0.0, 0.0, 1.0, 1.0]), group("train/0", [1.0, 0.0])], FakeVerifier(), NAME, {})
    np.testing.assert_array_equal(confusion(groups), [[2, 1], [2, 1]])
    overall = changes_by_task(groups)["all"]
    assert (overall.num, overall.num_changed, overall.reward_before, overall.reward_now) == (6, 3, 3.0, 4.0)
    assert (overall.num_groups, overall.informative_before, overall.informative_now) == (2, 2, 1)


def test_options_stand_over_those_of_the_prompt() -> None:
    prompt = make_prompt()
    again = prompt_for_verifier(prompt, NAME, {"answer": "2"})
    assert (again.verifier, again.payload) == (NAME, {"answer": "2"})
    assert prompt_for_verifier(again, None, {}).verifier == NAME


def test_a_verifier_that_cannot_score_these_prompts_is_refused_first() -> None:
    with pytest.raises(ConfigError, match="unknown verifier 'maths'"):
        prompt_for_verifier(make_prompt(), "maths", {})
    with pytest.raises(DataError, match="verifier instruction_following"):
        prompt_for_verifier(make_prompt(), "instruction_following", {})


def test_what_an_environment_answered_is_not_scored_again_by_it() -> None:
    with pytest.raises(DataError, match="answered by an environment"):
        prompt_for_verifier(environment_prompt(), None, {})


def strangers_run(folder: Path, step: int = 2, **changes: Any) -> Path:
    """A run whose stored prompts of a step say something else, and whose model is not there."""
    run = put_run(folder / "run", num_steps=2, prompts=2, size=4)
    (run / "config.yaml").write_text(to_yaml(load_config("brorl_cpu", ["policy.model=nowhere"])))
    path = StoreFiles(run).groups(step)
    table = pq.read_table(path)
    for name, value in changes.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array([value] * len(table)))
    pq.write_table(table, path)
    return run


@pytest.mark.parametrize("verifier", ["hydra.utils:instantiate", "http://127.0.0.1:9/score"])
def test_a_stored_prompt_of_any_step_names_neither_code_nor_an_address(verifier: str, tmp_path: Path) -> None:
    """Before Ray starts, and with what to write."""
    run = strangers_run(tmp_path, verifier=verifier)
    with pytest.raises(NotAllowedError, match=r"prompt train/\d+: verifier .* is not in the settings.*rewards\."):
        main([str(run)])


def test_verifiers_that_the_command_line_names_score_again(tmp_path: Path) -> None:
    """As far as the model, which is not there."""
    name = "graders.tests.support.bad_verifiers:half"
    run = strangers_run(tmp_path, verifier=name)
    for words in (["--verifier", "math"], [f"rewards.verifiers=[{{name: '{name}'}}]"]):
        with pytest.raises(ModelError, match="nowhere"):
            main([str(run), *words])


def test_what_loosens_the_sandbox_comes_from_the_command_line(tmp_path: Path) -> None:
    run = strangers_run(tmp_path)
    loose = ["policy.model=nowhere", "rewards.code.allow_unsandboxed=true", "rewards.code.readable=[/etc]"]
    (run / "config.yaml").write_text(to_yaml(load_config("brorl_cpu", loose)))
    with pytest.raises(ConfigError) as refused:
        main([str(run)])
    assert "pass 'rewards.code.readable=[/etc]' rewards.code.allow_unsandboxed=true after the command" in str(
        refused.value
    )
    with pytest.raises(ModelError, match="nowhere"):
        main([str(run), "rewards.code.allow_unsandboxed=false", "rewards.code.readable=[/etc]"])
