"""Responses whose verifier failed: left out of their groups, counted by kind, and the end of a run if all failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from nemo_brorl.config.evaluation import EvaluationConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import USER_ERROR, VerifierError
from nemo_brorl.evaluation.validation import Evaluator
from nemo_brorl.rollouts.batches import Batches
from nemo_brorl.rollouts.failures import FailureCount
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.training.carriers import load_carriers, save_carriers
from nemo_brorl.types import FilledBatch, Prompt, ScoredGroup
from tests.support.fakes import SAMPLING, FailingVerifier, FakeGenerator, FakePrompts, make_group, make_prompt

ERROR = "AttributeError: 'str' object has no attribute 'txt' (rew.py:8)"


def sampler(failing: Collection[int], chunk_size: int = 4) -> Sampler:
    return Sampler(FakeGenerator(), FailingVerifier(failing, ERROR), Console(), chunk_size=chunk_size, seed=1)


def fill(failing: Collection[int]) -> FilledBatch:
    config = BroRLConfig()
    config.rollouts.num_per_prompt, config.rollouts.prompts_per_step = 8, 2
    sizes = replace(RunSizes.from_config(config), num_engines=2)
    batches = Batches(
        config.rollouts, config.dynamic_sampling, config.policy.optim, sizes, FakePrompts(), sampler(failing)
    )
    return batches.take_batch(0, lambda: None, lambda: None)


def test_a_group_is_trained_on_without_the_responses_whose_verifier_failed() -> None:
    filled = fill({1, 4, 5, 6, 7})
    group = filled.batch[0]
    # Of train/1, whose every second rollout is right, 0, 2 and 3 are left: the second chunk failed altogether.
    assert group.prompt.uid == "train/1"
    assert (group.indices.tolist(), group.rewards.tolist()) == ([0, 2, 3], [1.0, 1.0, 0.0])
    assert [chunk.data.token_ids.tolist() for chunk in group.group.chunks] == [[0, 1, 20, 21, 30, 31]]
    assert group.num_failed == 5
    num_groups = filled.metrics["dynamic_sampling/num_groups"]
    assert filled.metrics["reward/num_failed"] == 5 * num_groups
    assert filled.failures == (f"toy failed on {5 * num_groups:.0f} of {8 * num_groups:.0f}: {ERROR}",)


def test_a_step_in_which_every_response_failed_ends_the_run() -> None:
    with pytest.raises(VerifierError, match=r"toy failed on 16 of 16: AttributeError.*\(rew.py:8\)") as raised:
        fill(range(8))
    assert raised.value.exit_code == USER_ERROR
    assert "data.changed_rows=accept" in str(raised.value)


def test_groups_with_one_scored_response_cannot_disagree_and_are_dropped() -> None:
    with pytest.raises(Exception, match="found 0 of 2 informative groups .*failed"):
        fill(range(1, 8))


def test_nothing_changes_where_nothing_fails() -> None:
    filled = fill(())
    assert filled.failures == ()
    assert filled.metrics["reward/num_failed"] == 0
    assert filled.metrics["dynamic_sampling/failed"] == 0


def failing_group(*errors: str, rewards: tuple[float, ...] = (), verifier: str = "rew:score") -> ScoredGroup:
    group = make_group(rewards or [0.0])
    if not rewards:
        group = replace(group, rewards=group.rewards[:0])
    prompt = replace(group.prompt, verifier=verifier)
    return replace(group, group=replace(group.group, prompt=prompt), num_failed=len(errors), errors=errors)


def test_failures_are_counted_by_type_and_line() -> None:
    keys = [f"KeyError: 'w{number}' (rew.py:3)" for number in range(3)]
    group = failing_group(*keys, "KeyError: 'w9' (rew.py:4)", "crashed", rewards=(1.0, 0.0))
    assert FailureCount([group]).lines() == ["rew:score failed on 5 of 7: KeyError: 'w0' (rew.py:3); 2 other errors"]


def test_each_verifier_has_its_line_without_the_query_of_its_address() -> None:
    groups = [failing_group("status 500", verifier="http://host/score?key=secret"), failing_group("crashed\x1b[2J")]
    lines = FailureCount(groups).lines()
    assert lines[0] == "http://host/score failed on 1 of 1: status 500"
    assert "\x1b" not in lines[1]


def evaluator(failing: Collection[int], prompts: list[Prompt]) -> Evaluator:
    config = BroRLConfig()
    settings = EvaluationConfig(samples_per_prompt=4)
    return Evaluator(settings, config.rollouts, prompts, sampler(failing))


def test_validation_leaves_failures_out(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [make_prompt("val/1"), make_prompt("val/2")]
    # Every second and every third rollout is right. Rollout 1, which is wrong, fails in both.
    overall = evaluator({1}, prompts).evaluate().overall
    assert overall.pass_at_1 == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert f"reward  toy failed on 2 of 8: {ERROR}" in capsys.readouterr().out


def test_a_validation_without_any_score_is_an_error() -> None:
    with pytest.raises(VerifierError, match="toy failed on 4 of 4"):
        evaluator(range(4), [make_prompt("val/1")]).evaluate()


def test_failed_rollouts_are_saved_with_a_checkpoint(tmp_path: Any) -> None:
    [group] = sampler({2}).sample([make_prompt("train/1")], 4, SAMPLING, "test")
    save_carriers(tmp_path / "groups.npz", [group])
    [read] = load_carriers(tmp_path / "groups.npz")
    assert (read.errors, read.indices.tolist()) == ((ERROR,), [0, 1, 3])
