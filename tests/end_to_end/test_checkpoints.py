"""Checkpoints move between layouts bit for bit, are written while training goes on, and survive a crash in the
middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from tests.support.checkpoint_ranks import die_while_writing, lose_one_ranks_files, save_while_training
from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.policy_ranks import Outcome, Scenario, run_ranks, run_scenario

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

PIECES = 4  # micro-batches of a mini-batch, over all data-parallel ranks
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
DP2 = {"data_parallel_size": 2}
FP32, BF16 = {"precision": "fp32"}, {"precision": "bf16"}


def scenario(model_folder: Path, policy: dict, seeds: range = range(0), **parts: object) -> Scenario:
    config = make_config(**policy)
    data = layout_of(config).data
    plans = tuple(make_plan(data, micro_batches=PIECES // data, seed=seed) for seed in seeds)
    return Scenario(config, model_folder, plans=plans, **parts)


def last_metrics(case: Scenario, outcomes: list[Outcome]) -> dict[str, float]:
    return outcomes[layout_of(case.config).report_rank].metrics[-1]


@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_2x1_to_1x2_to_2x2_to_1x1_and_back_changes_no_bit(
    precision: dict, model_folder: Path, other_weights: Path, tmp_path: Path
) -> None:
    layouts = [TP2, PP2, {**TP2, **PP2}, {}]
    saved = [tmp_path / str(number) for number in range(len(layouts))]
    begun = run_scenario(scenario(model_folder, {**TP2, **precision}, range(2), save_to=saved[0]))
    for number, layout in enumerate(layouts[1:], start=1):
        moved = scenario(other_weights, {**layout, **precision}, load_from=saved[number - 1], save_to=saved[number])
        assert {outcome.checksum for outcome in run_scenario(moved)} == {begun[0].checksum}

    # The next two steps: where the run began, bit for bit those of a run that was never saved, which also proves the
    # optimizer.
    whole = run_scenario(scenario(model_folder, {**TP2, **precision}, range(4)))
    back = run_scenario(scenario(other_weights, {**TP2, **precision}, range(2, 4), load_from=saved[-1]))
    assert [outcome.metrics for outcome in back] == [outcome.metrics[2:] for outcome in whole]
    assert [outcome.checksum for outcome in back] == [outcome.checksum for outcome in whole]
    if precision is BF16:  # rounds differently under every layout
        return
    for layout in ({}, PP2):
        case = scenario(other_weights, layout, range(2, 4), load_from=saved[-1])
        expected, metrics = last_metrics(case, whole), last_metrics(case, run_scenario(case))
        for name in ("policy/loss", "policy/grad_norm", "policy/kl_to_reference"):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-5), (layout, name)


def test_data_parallel_ranks_come_and_go_with_bf16_weights_and_fp32_masters(
    model_folder: Path, other_weights: Path, tmp_path: Path
) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    begun = run_scenario(scenario(model_folder, {**DP2, **BF16}, range(2), save_to=two))
    alone = run_scenario(scenario(other_weights, BF16, load_from=two, save_to=one))
    assert alone[0].checksum == begun[0].checksum
    whole = run_scenario(scenario(model_folder, {**DP2, **BF16}, range(3)))
    back = run_scenario(scenario(other_weights, {**DP2, **BF16}, range(2, 3), load_from=one))
    assert [outcome.checksum for outcome in back] == [outcome.checksum for outcome in whole]
    assert [outcome.metrics[-1] for outcome in back] == [outcome.metrics[-1] for outcome in whole]


def test_experts_move_between_layouts_with_their_optimizer(tmp_path: Path) -> None:
    mixture, other = make_model(tmp_path / "model", "qwen3_moe"), make_model(tmp_path / "other", "qwen3_moe", seed=9)
    two, one = tmp_path / "two", tmp_path / "one"
    expert = {**DP2, "expert_model_parallel_size": 2}
    begun = run_scenario(scenario(mixture, expert, range(2), save_to=two))
    assert run_scenario(scenario(other, PP2, load_from=two, save_to=one))[0].checksum == begun[0].checksum
    whole = run_scenario(scenario(mixture, expert, range(4)))
    back = run_scenario(scenario(other, expert, range(2, 4), load_from=one))
    assert [outcome.metrics for outcome in back] == [outcome.metrics[2:] for outcome in whole]
    assert [outcome.checksum for outcome in back] == [outcome.checksum for outcome in whole]


@pytest.mark.parametrize("layout", [DP2, {**TP2, **PP2}], ids=["DP2", "TP2xPP2"])
def test_a_save_in_the_background_of_training_is_of_the_moment_it_began(
    layout: dict, model_folder: Path, other_weights: Path, tmp_path: Path
) -> None:
    case = scenario(model_folder, layout, range(3), save_to=tmp_path / "background")
    while_saving = run_ranks(case.config, save_while_training, case)
    resumed = run_scenario(scenario(other_weights, layout, range(1, 3), load_from=tmp_path / "background"))
    assert [outcome.metrics for outcome in resumed] == while_saving


def test_ranks_killed_while_writing_leave_the_checkpoint_before(
    model_folder: Path, other_weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    first = run_scenario(
        scenario(model_folder, TP2, range(1), save_to=checkpoints.begin(RunState(1, {}, CarriedGroups())))
    )
    checkpoints.commit(1)
    case = scenario(model_folder, TP2, range(2), save_to=checkpoints.begin(RunState(2, {}, CarriedGroups())))
    with pytest.raises(AssertionError, match=r"exit codes of the ranks: \[-9, -9\]"):
        run_ranks(case.config, die_while_writing, case)
    loaded: list[Outcome] = []
    run = Checkpoints(tmp_path, 2).load_newest(
        lambda folder: loaded.extend(run_scenario(scenario(other_weights, TP2, load_from=folder)))
    )
    assert run is not None and run.step == 1
    assert loaded[0].checksum == first[0].checksum
    assert "step_2.partial was not finished" in caplog.text


def test_every_rank_learns_that_one_ran_out_of_space(model_folder: Path, tmp_path: Path) -> None:
    case = scenario(model_folder, {**TP2}, save_to=tmp_path)
    messages = run_ranks(case.config, lose_one_ranks_files, case, 1)
    assert len(set(messages)) == 1
    assert (
        str(tmp_path / "lost") in messages[0] and "rank 1: OSError: [Errno 28] No space left on device" in messages[0]
    )
    assert (tmp_path / "next" / "metadata.json").exists() and not (tmp_path / "lost" / "metadata.json").exists()
