"""The planner's command line: tables, JSON, exit codes, and errors that say what to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brorl_lab.bases.initial_model import write_initial_model
from brorl_launcher.planner.command import main
from brorl_launcher.planner.cpu import make_cpu_plan

from nemo_brorl.config.load import load_config
from nemo_brorl.config.memory import cpu_memory, needed_gib
from nemo_brorl.config.sft import NewModelConfig
from nemo_brorl.config.sizes import resolve_sizes
from nemo_brorl.core.errors import BroRLError
from nemo_brorl.core.machine import Machine
from nemo_brorl.core.model_shape import read_model_shape

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_initial_model(tmp_path / "model", NewModelConfig(), eos_id=1, pad_id=0, seed=0)
    return tmp_path / "model"


def test_a_plan_that_fits_prints_its_tables_and_ends_with_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--config-name", "brorl_64gpu", "--propose", "0", "--json", str(tmp_path / "plan.json")]) == 0
    printed = capsys.readouterr().out
    for text in (
        "GiB of a GPU",
        "master weights, Adam",
        "KV cache",
        "GiB of the first node",
        "log_prob",
        "GPU-hours",
        "assumed:",
    ):
        assert text in printed
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["fits"]
    assert plan["devices"][0]["terms_gib"]["gradients"]["update"] == pytest.approx(4 * 1.777088 / 1.024**3, rel=1e-3)
    assert sum(plan["stages_s"].values()) == pytest.approx(plan["step_s"])


def test_a_plan_that_does_not_fit_ends_with_2_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config-name", "brorl_64gpu", "--propose", "0", "policy.tokens_per_micro_batch=32768"]) == 2
    printed = capsys.readouterr()
    assert (
        "does not fit: a GPU has 79.6 GiB and needs 84.9 at the moment 'update', most of it activations" in printed.err
    )
    assert "policy.tokens_per_micro_batch=16384" in printed.out


def test_hardware_and_lengths_are_taken_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kind", "h200", "--nodes", "2", "--response-tokens", "3000", "--keep-rate", "0.5", "--propose", "0"]
    assert main(["--config-name", "brorl_64gpu", *options]) == 0
    printed = capsys.readouterr().out
    assert "on 2 × 8 h200: policy DP 16, 16 engines of 1" in printed
    assert "responses of 3,000 ± 70% up to 14,336, 50% of groups informative" in printed
    assert "of 140.4" in printed


def test_an_engine_without_room_never_ends_in_json_too(tmp_path: Path) -> None:
    found = tmp_path / "plan.json"
    assert (
        main(
            [
                "--config-name",
                "brorl_64gpu",
                "--propose",
                "0",
                "generation.gpu_memory_utilization=0.02",
                "--json",
                str(found),
            ]
        )
        == 2
    )
    assert json.loads(found.read_text())["step_s"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep-rate", "1.5"], "--keep-rate 1.5: must be above 0 and at most 1"),
        (["--response-tokens", "0"], "--response-tokens 0: must be more than 0"),
        (
            ["--response-tokens", "20000"],
            "--response-tokens 20000: a mean cannot be above rollouts.max_response_tokens=14336",
        ),
        (["--propose", "-1"], "--propose -1: must be 0 or more"),
        (
            ["--gpus-per-node", "0", "--keep-rate", "0.5"],
            "--keep-rate is for GPUs, and trainer.gpus_per_node=0 is a run on CPU: leave it out",
        ),
        (
            ["policy.tensor_model_parallel_size=128"],
            "a policy replica needs TP × PP × CP = 128 GPUs and the run has 64",
        ),
        (["policy.model=nobody/knows"], "policy.model=nobody/knows is not downloaded"),
    ],
)
def test_wrong_input_is_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(BroRLError) as caught:
        main(["--config-name", "brorl_64gpu", *arguments])
    assert caught.value.exit_code == 2
    assert message in str(caught.value)


def test_a_plan_of_a_cpu_run_has_the_memory_of_its_processes_and_measures_no_step(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"policy.model={model}", "--json", str(tmp_path / "plan.json")]
    assert main([*arguments, "--host-memory", "20"]) == 0
    printed = capsys.readouterr().out
    for text in ("GiB of a policy rank", "GiB of an engine", "chosen: policy.num_threads=", "`brorl try`"):
        assert text in printed
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["fits"]
    assert plan["free_gib"] == 20
    assert main([*arguments, "--host-memory", "2"]) == 2
    refusal = capsys.readouterr().err
    assert "does not fit: this run needs about" in refusal
    assert "2.0 GiB are free: leave policy.data_parallel_size" in refusal


def test_the_start_up_check_and_the_planner_count_alike(model: Path) -> None:
    few = ["rollouts.num_per_prompt=8", "rollouts.prompts_per_step=4", "algorithm.num_mini_batches=1"]
    config, shape = load_config("brorl_cpu", [f"policy.model={model}", *few]), read_model_shape(model)
    sized, sizes = resolve_sizes(config, shape, Machine(2, 20.0))
    plan = make_cpu_plan(config, 2, 20.0)
    assert plan.memory.total == needed_gib(sized, shape)
    # 16 rollouts on each of two ranks: responses of 32 tokens, and five prompts of 160 at most
    assert plan.memory == cpu_memory(sized, shape, 16 * 32 + 5 * 160)
    assert plan.memory.num_ranks == plan.memory.num_engines == 2
    assert plan.sizes == sizes
    fewer = cpu_memory(sized, shape, 1000)
    assert {name for name, gib in plan.memory.rank.items() if gib != fewer.rank[name]} == {"activations"}


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_plan_of_a_run_with_a_misspelt_reward_is_refused(gpus: int, model: Path) -> None:
    arguments = [f"policy.model={model}", "--gpus-per-node", str(gpus), "data.verifier=no_rewards:score"]
    with pytest.raises(BroRLError, match="data.verifier=no_rewards:score: there is no module no_rewards") as refusal:
        main(arguments)
    assert refusal.value.exit_code == 2
