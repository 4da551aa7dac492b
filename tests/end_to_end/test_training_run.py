"""Whole runs on the real stack: Ray, vLLM, Megatron, Reasoning Gym. One small base model is made once, and one
uninterrupted run that the others are compared with."""

from __future__ import annotations

import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from brorl_lab.metric_registry import undeclared_names
from safetensors.torch import load_file

from lab.tests.page.test_page import parts_of
from nemo_brorl.core.clock import INTERRUPTED
from nemo_brorl.core.processes import running_after
from tests.support.commands import Command, run

pytestmark = pytest.mark.end_to_end

SMALL = [
    "data.tasks=[{name: gcd, config: {max_value: 30}}]",
    "sft.new.hidden_size=64", "sft.new.num_layers=2", "sft.new.num_attention_heads=2", "sft.new.num_key_value_heads=1",
    "sft.new.intermediate_size=128",
    "sft.batch_size=32", "sft.max_steps=120", "sft.new.probe_interval=60", "sft.new.time_limit_s=1200",
    "sft.new.min_pass_at_1=0", "sft.new.target_pass_at_1=0.4", "sft.new.max_pass_at_1=1",
    "rollouts.num_per_prompt=32", "rollouts.prompts_per_step=3", "rollouts.chunk_size=8",
    "rollouts.max_response_tokens=12", "policy.data_parallel_size=2", "policy.tokens_per_micro_batch=8192",
    "evaluation.num_prompts=8", "evaluation.samples_per_prompt=4", "algorithm.num_mini_batches=2",
    "trainer.max_steps=4", "trainer.val_interval=0", "trainer.save_interval=2",
    "algorithm.reference_reset.interval=3", "algorithm.reference_reset.clear_optimizer=true",
]  # fmt: skip
EXPECTED_METRICS = (
    "dynamic_sampling/keep_rate", "generation/samples_per_s", "generation/prefix_cache_hit_rate",
    "policy/log_prob_mismatch", "reward/mean",
    "time/collect_s", "time/generate_s", "time/reward_s", "time/log_prob_s", "time/update_s", "time/sync_s",
)  # fmt: skip
ONE_OF_EACH = (
    "generation.num_engines=1",
    "rewards.num_workers=1",
    "parity.enabled=false",
    "trainer.rehearsal=false",
)  # what may differ in one run
ONE_RANK = "policy.data_parallel_size=1"
KEEPING_LESS = (
    *ONE_OF_EACH, "store.enabled=false", "timeline.enabled=false", "trainer.max_steps=50", "trainer.keep_checkpoints=4",
)  # fmt: skip
SECRET = secrets.token_hex(16)  # drawn: the run keeps a copy of source that is not committed
WITH_SECRET = "+data.verifier_options.note=${oc.env:PROBE_SECRET}"  # a setting that goes into every payload
VOLATILE = (
    "time/", "sync/seconds", "sync/gib_per_s",
    "generation/samples_per_s", "generation/tokens_per_s", "generation/prefix_cache",
)  # fmt: skip


def line(command: str, folder: Path, *overrides: str) -> list[str]:
    """Arguments of a command on a run folder, whose base model stands beside it."""
    base = folder.parent / "base"
    shared = [f"sft.new.output={base}", f"policy.model={base}", f"exp_manager.explicit_log_dir={folder}"]
    return [command, *SMALL, *shared, *overrides]


def rows(folder: Path, left_out: tuple[str, ...] = VOLATILE) -> list[dict[str, Any]]:
    """Metrics without those whose names begin so: timings."""
    kept: list[dict[str, Any]] = []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(text)
        kept.append({name: value for name, value in row.items() if not name.startswith(left_out)})
    return kept


def num_steps(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted run of four steps on two engines, whose settings hold a secret, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(*line("base", folder, *ONE_OF_EACH, ONE_RANK))
    command = Command(*line("train", folder, WITH_SECRET), variables={"PROBE_SECRET": SECRET})
    assert command.wait() == 0, command.output[-2000:] + command.errors[-4000:]
    return folder, command.output + command.errors


def test_a_run_leaves_metrics_checkpoints_and_a_hugging_face_folder(whole: tuple[Path, str]) -> None:
    folder, output = whole
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [0, 1, 2, 3, 4]
    assert set(EXPECTED_METRICS) <= metrics[1].keys()
    assert undeclared_names(sorted(set().union(*metrics) - {"step"})) == []
    assert "validation/pass_at_1" in metrics[4]
    assert metrics[3]["time/save_s"] > 0
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_2", "step_4"]
    assert (folder / "hf" / "model.safetensors").exists()
    assert list((folder / "nemo").rglob("events.out.tfevents*"))
    for name in ("config.yaml", "revision.txt", "machine.jsonl"):
        assert (folder / name).exists()
    for words in ("parity: HF-Megatron", "step 4/4", "held-out pass@1", "time by stage", "keep rate"):
        assert words in output


def content(path: Path) -> str:
    """What a file says, compressed parts included."""
    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pylist())
    text = path.read_bytes().decode("latin-1")
    return text + str(parts_of(text)) if path.suffix == ".html" else text


def test_a_secret_of_the_environment_is_in_no_file_of_a_run_nor_on_its_page_nor_in_its_log(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    folder, printed = whole
    page = tmp_path / "page.html"
    run("report", str(folder), "--output", str(page))
    files = [page, *(path for path in folder.rglob("*") if path.is_file())]
    written = "${oc.env:PROBE_SECRET}"
    saying = {path.name for path in files if written in content(path)}
    assert {"config.yaml", "page.html"} <= saying
    assert any(name.endswith(".parquet") for name in saying)
    assert [path for path in files if SECRET in content(path)] == []
    assert SECRET not in printed


def test_the_samplers_and_the_trainers_log_probs_agree_in_every_step(whole: tuple[Path, str]) -> None:
    assert all(row["policy/log_prob_mismatch"] < 1e-4 for row in rows(whole[0])[1:])


def check_steps(folder: Path, whole: Path) -> None:
    """Bit for bit, generation included, those of a run that goes on where the other one ends and is validated."""
    steps, expected = rows(folder), rows(whole)
    assert steps[:4] == expected[:4]
    assert steps[4].items() <= expected[4].items()
    reset = {"step": 3, "event": "reference_reset", "reason": "interval", "value": 3.0}
    assert json.loads((folder / "events.jsonl").read_text().splitlines()[0]) == reset
    state = "checkpoints/step_4/state.json"
    assert json.loads((folder / state).read_text())["sampling"] == json.loads((whole / state).read_text())["sampling"]
    for step in (1, 2, 3, 4):
        name = f"rollouts/step_{step}.jsonl"
        assert (folder / name).read_text() == (whole / name).read_text()


def killed_after_step_four(whole: Path) -> Path:
    """The folder of a run on another number of engines that keeps neither store nor timeline, killed once the
    checkpoint of step 4 is complete, which is then damaged."""
    folder = whole.parent / "killed"
    killed = Command(*line("train", folder, *KEEPING_LESS))
    checkpoint = folder / "checkpoints" / "step_4"
    killed.wait_for((checkpoint / "COMPLETE").exists)
    killed.kill()
    check_steps(folder, whole)
    victim = max((checkpoint / "policy").rglob("*.distcp"), key=lambda path: path.stat().st_size)
    victim.write_bytes(b"\0" * victim.stat().st_size)
    return folder


def test_a_run_killed_and_resumed_from_the_last_whole_checkpoint_equals_the_uninterrupted_one_and_can_be_interrupted(
    whole: tuple[Path, str],
) -> None:
    """From the beginning, and steps 3 and 4 once more from a checkpoint."""
    folder = killed_after_step_four(whole[0])
    command = Command(*line("train", folder, *KEEPING_LESS))
    command.wait_for(lambda: "step 4/50" in command.output)
    started = command.processes()
    command.send(signal.SIGINT)
    assert command.wait() == INTERRUPTED, command.output[-2000:]
    assert "step_4 cannot be read" in command.errors
    assert "resumed after step 2" in command.output
    assert "Run the same command to resume." in command.output
    check_steps(folder, whole[0])
    assert not (folder / "store").exists()
    assert not (folder / "timeline").exists()
    assert (folder / "checkpoints" / f"step_{num_steps(folder)}" / "COMPLETE").exists()
    assert running_after(started, 30.0) == []


def test_a_run_that_overlaps_and_cuts_rollouts_learns_from_what_is_resumed(
    whole: tuple[Path, str],
) -> None:
    folder = whole[0].parent / "broad"
    run(*line(
        "train", folder, *ONE_OF_EACH, ONE_RANK,
        "rollouts.overlap=true", "rollouts.min_fraction=0.5", "rollouts.deadline_s=0.02", "rollouts.unfinished=resume",
        "dynamic_sampling.max_sampled=100",  # groups that miss the deadline count
    ))  # fmt: skip
    steps = rows(folder)[1:]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert sum(row.get("rollouts/cut_share", 0.0) for row in steps) > 0
    assert sum(row["rollouts/late_groups"] + row["dynamic_sampling/postponed"] for row in steps) > 0
    tokens = [row["rollouts/generated_tokens"] for row in steps]
    assert tokens == sorted(tokens)
    assert tokens[0] > 0


def test_evaluation_reports_a_checkpoint_through_a_folder_that_is_made_once(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "evaluated"
    asked = line(
        "evaluate", folder, *ONE_OF_EACH, ONE_RANK, f"evaluation.checkpoint={whole[0]}", "policy.model=nowhere"
    )
    converted = whole[0] / "hf_step_4"
    output = run(*asked).output
    assert f"step_4 written to {converted}" in output
    assert "held_out" in output
    first = (folder / "evaluation.json").read_bytes()
    assert json.loads(first)["overall"]["pass_at_1"] == pytest.approx(rows(whole[0])[4]["validation/pass_at_1"])
    again = run(*asked).output
    assert f"step_4 was converted before: {converted}" in again
    assert "8 of 8 prompts were answered before" in again
    assert (folder / "evaluation.json").read_bytes() == first


def test_a_stored_step_learnt_again_is_the_same_update_bit_for_bit(whole: tuple[Path, str], tmp_path: Path) -> None:
    """From the checkpoint of step 2, through step 3 and the reset of the reference after it."""
    folder = whole[0]
    output = run("replay", str(folder), "--step", "4", "--export", str(tmp_path / "hf")).output
    assert "bit-identical" in output
    assert "differ" not in output
    trained, replayed = (load_file(path / "model.safetensors") for path in (folder / "hf", tmp_path / "hf"))
    assert all(torch.equal(trained[name], replayed[name]) for name in trained)


def test_a_checkpoint_converts_to_the_weights_that_training_exported(whole: tuple[Path, str], tmp_path: Path) -> None:
    layout = ["policy.data_parallel_size=1", "policy.pipeline_model_parallel_size=2"]  # another one than trained it
    asked = line("convert", whole[0], "--output", str(tmp_path / "hf"), *layout)
    assert "step_4 written to" in run(*asked).output
    exported, converted = (load_file(folder / "model.safetensors") for folder in (whole[0] / "hf", tmp_path / "hf"))
    assert exported.keys() == converted.keys()
    assert all(torch.equal(exported[name], converted[name]) for name in exported)
    again = Command(*asked)
    assert again.wait() == 2
    assert "this folder is not empty" in again.errors


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.tasks=[{name: chain_sums}]"], "chain_sum"),
        (["data.source=jsonl", "data.path=EMPTY"], "empty"),
        (["rollouts.num_per_promt=4"], "num_per_prompt"),
        (["policy.tensor_model_parallel_size=3", "trainer.max_steps=8"], "tensor_model_parallel_size=3"),
        (["algorithm.clip_high=0.5"], "the run in this folder has other settings"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_two(
    whole: tuple[Path, str], tmp_path: Path, overrides: list[str], message: str
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    command = Command(*line("train", whole[0], *(override.replace("EMPTY", str(empty)) for override in overrides)))
    assert command.wait(60.0) == 2, command.errors[-2000:]
    check_one_message(command.errors, message)


def check_one_message(errors: str, message: str) -> None:
    assert message in errors
    assert "Traceback" not in errors
    assert errors.count("error:") == 1
