"""Replicas that exchange gradients and weights while they compute learn what they learn when they wait, over Gloo. What
it cannot show: that anything is faster, and NCCL's order of messages on a GPU's streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.overlap_ranks import play_in_buckets
from tests.support.policy_ranks import Outcome, Scenario, run_ranks

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

NUM_UPDATES = 2
BOTH = {"overlap_grad_reduce": True, "overlap_param_gather": True}
DP2 = {"data_parallel_size": 2}
VP2 = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
LAYOUTS = {
    "DP2": DP2,
    "DP2 in bf16": {**DP2, "precision": "bf16"},
    "CP2": {"context_parallel_size": 2},
    "PP2 x DP2": {**DP2, "pipeline_model_parallel_size": 2},
    "virtual stages x DP2": {**DP2, **VP2},
    "DP2, everything recomputed": {**DP2, "recompute": "full"},
}
Ranks = list[tuple[Outcome, list[str]]]


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose output layer has weights of its own."""
    return make_model(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


def learn(folder: Path, policy: dict, num_micro_batches: int = 2, **parts: object) -> Ranks:
    """What every rank has after some updates of two mini-batches, gradients not clipped: the norm is added up by
    bucket, and would differ in its last bits."""
    config = make_config(**policy)
    config.policy.optim.clip_grad = 0.0
    replicas = config.policy.data_parallel_size or 1
    plans = tuple(make_plan(replicas, micro_batches=num_micro_batches, seed=seed) for seed in range(NUM_UPDATES))
    return run_ranks(config, play_in_buckets, Scenario(config, folder, plans=plans, **parts))


def assert_same(one: Ranks, other: Ranks) -> None:
    """Weights bit for bit, and metrics but for the norm's last bits."""
    for (mine, _), (theirs, _) in zip(one, other, strict=True):
        assert mine.checksum == theirs.checksum
        for got, expected in zip(mine.metrics, theirs.metrics, strict=True):
            assert got == pytest.approx(expected, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_weights_are_bit_for_bit_those_of_replicas_that_wait(layout: dict, untied: Path) -> None:
    assert_same(learn(untied, {**layout, **BOTH}), learn(untied, layout))


def test_so_are_those_of_tied_embeddings_and_of_gradients_that_overlap_alone(model_folder: Path) -> None:
    assert_same(learn(model_folder, {**DP2, "overlap_grad_reduce": True}), learn(model_folder, DP2))
    assert_same(learn(model_folder, {**DP2, **BOTH}), learn(model_folder, DP2))


def test_so_are_those_of_experts_that_no_other_replica_has(tmp_path: Path) -> None:
    folder = make_model(tmp_path, "qwen3_moe", tie_word_embeddings=False)
    layout = {**DP2, "expert_model_parallel_size": 2}
    assert_same(learn(folder, {**layout, **BOTH}), learn(folder, layout))


def test_a_row_that_predicts_nothing_may_come_last(untied: Path) -> None:
    """Virtual stages want an even number of micro-batches and get three."""
    assert_same(learn(untied, {**DP2, **VP2, **BOTH}, 3), learn(untied, {**DP2, **VP2}, 3))


def test_a_checkpoint_of_one_continues_under_the_other(untied: Path, tmp_path: Path) -> None:
    learn(untied, {**DP2, **BOTH}, save_to=tmp_path / "overlapped")
    learn(untied, DP2, save_to=tmp_path / "waited")
    overlapped = learn(untied, DP2, load_from=tmp_path / "overlapped")
    waited = learn(untied, {**DP2, **BOTH}, load_from=tmp_path / "waited")
    assert_same(overlapped, waited)


def test_gradients_are_sent_off_while_the_backward_pass_goes_on(untied: Path) -> None:
    """The first mini-batch teaches Megatron the order, so its gradients wait."""
    _, events = learn(untied, {**DP2, **BOTH})[0]
    mini_batches = "/".join(events).split("backward is over")[:-1]
    assert "reduce" not in mini_batches[0]
    assert len(mini_batches) == 2 * NUM_UPDATES
    for mini_batch in mini_batches[2:]:
        assert mini_batch.count("reduce") > 5


def test_weights_come_in_while_the_second_mini_batch_goes_on_and_are_whole_after_an_update(untied: Path) -> None:
    _, events = learn(untied, {**DP2, **BOTH})[0]
    assert events.count("gather") == events.count("gather at once") > 5 * NUM_UPDATES
    after_updates = "/".join(events).split("backward is over")[2::2]
    for after in after_updates:
        assert "gather at once" in after
