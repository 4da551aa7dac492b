"""Whole runs on the real stack: Ray, vLLM, Megatron, Reasoning Gym. One small base model is made once and shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.end_to_end

SMALL = [
    "data.tasks=[{name: gcd, config: {max_value: 30}}]",
    "sft.hidden_size=64", "sft.num_layers=2", "sft.num_attention_heads=2", "sft.num_key_value_heads=1",
    "sft.intermediate_size=128",
    "sft.batch_size=32", "sft.max_steps=120", "sft.probe_interval=60",
    "sft.min_pass_at_1=0", "sft.target_pass_at_1=0.4", "sft.max_pass_at_1=1",
    "rollouts.num_per_prompt=32", "rollouts.prompts_per_step=3", "rollouts.chunk_size=8",
    "rollouts.max_response_tokens=12",
    "evaluation.num_prompts=8", "evaluation.samples_per_prompt=4", "algorithm.num_mini_batches=2",
    "trainer.max_steps=4", "trainer.val_interval=0", "trainer.save_interval=2",
    "algorithm.reference_reset.interval=3", "algorithm.reference_reset.clear_optimizer=true",
]  # fmt: skip
EXPECTED_METRICS = (
    "dynamic_sampling/keep_rate", "generation/samples_per_s", "generation/prefix_cache_hit_rate",
    "policy/log_prob_mismatch", "reward/mean",
    "time/collect_s", "time/generate_s", "time/reward_s", "time/log_prob_s", "time/update_s", "time/sync_s",
)  # fmt: skip
RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
VOLATILE = (
    "time/",
    "generation/samples_per_s",
    "generation/tokens_per_s",
    "generation/prefix_cache",
    "sync/seconds",
    "sync/gib_per_s",
)


def command(module: str, folder: Path, *overrides: str) -> list[str]:
    base = folder.parent / "base"
    shared = [f"sft.output={base}", f"policy.model={base}", f"exp_manager.explicit_log_dir={folder}"]
    return [sys.executable, "-m", "nemo_brorl", module, *SMALL, *shared, *overrides]


def run(module: str, folder: Path, *overrides: str) -> str:
    done = subprocess.run(command(module, folder, *overrides), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def rows(folder: Path) -> list[dict[str, Any]]:
    """Metrics without timings."""
    text = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not name.startswith(VOLATILE)} for line in text]


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended early with {process.returncode}"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def processes_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def num_steps(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") - 1 if path.exists() else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An uninterrupted run of four steps, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run("sft", folder)
    return folder, run("train", folder)


def test_a_run_leaves_metrics_checkpoints_and_a_hugging_face_folder(whole: tuple[Path, str]) -> None:
    folder, output = whole
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [0, 1, 2, 3, 4]
    assert set(EXPECTED_METRICS) <= metrics[1].keys()
    assert "validation/pass_at_1" in metrics[4]
    assert metrics[3]["time/save_s"] > 0
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step_2", "step_4"]
    assert (folder / "hf" / "model.safetensors").exists()
    assert list((folder / "nemo").rglob("events.out.tfevents*"))
    assert (folder / "config.yaml").exists() and (folder / "revision.txt").exists()
    for words in ("parity: HF-Megatron", "step 4/4", "held-out pass@1", "time by stage", "keep rate"):
        assert words in output


def test_the_samplers_and_the_trainers_log_probs_agree_in_every_step(whole: tuple[Path, str]) -> None:
    assert all(row["policy/log_prob_mismatch"] < 1e-4 for row in rows(whole[0])[1:])


def test_a_repeated_run_is_bit_identical_generation_included(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "again"
    run("train", folder, "trainer.max_steps=2", "generation.num_engines=1")
    assert [row for row in rows(folder)[1:] if "validation/pass_at_1" not in row] == rows(whole[0])[1:2]
    again, before = rows(folder)[2], rows(whole[0])[2]
    assert {name: again[name] for name in before} == before
    for step in (1, 2):
        name = f"rollouts/step_{step}.jsonl"
        assert (folder / name).read_text() == (whole[0] / name).read_text()


def test_a_run_killed_in_step_four_and_resumed_equals_the_uninterrupted_one(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "killed"
    process = subprocess.Popen(
        command("train", folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    wait_for(lambda: num_steps(folder) >= 3, process)
    left = processes_of(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(left, timeout=30)
    for one in alive:  # two small agents of Ray's own can outlive a killed driver; nothing of ours does
        assert one.name() in RAY_AGENTS
        one.kill()
    output = run("train", folder)
    assert "resumed after step 2" in output
    assert rows(folder) == rows(whole[0])
    assert json.loads((folder / "events.jsonl").read_text()) == {
        "step": 3,
        "event": "reference_reset",
        "reason": "interval",
        "value": 3.0,
    }
    state = "checkpoints/step_4/state.json"
    assert json.loads((folder / state).read_text())["prompts"] == json.loads((whole[0] / state).read_text())["prompts"]
    for step in (1, 2, 3, 4):
        name = f"rollouts/step_{step}.jsonl"
        assert (folder / name).read_text() == (whole[0] / name).read_text()


def test_interrupting_saves_ends_with_zero_and_leaves_no_process(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "interrupted"
    process = subprocess.Popen(
        command("train", folder, "trainer.max_steps=50"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(lambda: num_steps(folder) >= 1, process)
    left = processes_of(process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output[-2000:]
    assert "the same command goes on from here" in output
    assert list((folder / "checkpoints").glob("step_*/COMPLETE"))
    psutil.wait_procs(left, timeout=30)
    assert not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_run_that_overlaps_grows_groups_and_cuts_rollouts_learns_from_what_is_resumed(
    whole: tuple[Path, str],
) -> None:
    folder = whole[0].parent / "broad"
    run(
        "train", folder, "rollouts.overlap=true", "rollouts.allocation=waves", "rollouts.waves.first_wave=8",
        "rollouts.min_fraction=0.5",
        "rollouts.deadline_s=0.02", "rollouts.unfinished=resume", "dynamic_sampling.in_flight=resume",
        "dynamic_sampling.oversample=1.5",
    )  # fmt: skip
    steps = rows(folder)[1:]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert sum(row.get("rollouts/cut_share", 0.0) for row in steps) > 0
    assert sum(row["rollouts/late_groups"] + row["dynamic_sampling/held"] for row in steps) > 0
    tokens = [row["rollouts/generated_tokens"] for row in steps]
    assert tokens == sorted(tokens)
    assert tokens[0] > 0


def test_a_corrupt_checkpoint_falls_back_to_the_one_before_and_says_so(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "corrupt"
    os.system(f"cp -r {whole[0]} {folder}")
    victim = max((folder / "checkpoints" / "step_4" / "policy").rglob("*.distcp"), key=lambda path: path.stat().st_size)
    victim.write_bytes(b"\0" * victim.stat().st_size)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace(str(whole[0]), str(folder)))
    done = subprocess.run(command("train", folder), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step_4 cannot be read" in done.stderr
    assert "resumed after step 2" in done.stdout
    assert rows(folder) == rows(whole[0])


def test_evaluation_reports_the_exported_model(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "evaluation"
    output = run("evaluate", folder, f"policy.model={whole[0] / 'hf'}")
    assert "held_out" in output
    result = json.loads((folder / "evaluation.json").read_text())
    assert result["overall"]["pass_at_1"] == pytest.approx(rows(whole[0])[4]["validation/pass_at_1"])


def test_a_checkpoint_is_evaluated_through_a_folder_that_is_made_once(whole: tuple[Path, str]) -> None:
    folder = whole[0].parent / "evaluated"
    asked = (
        f"evaluation.checkpoint={whole[0]}",
        "policy.model=nowhere",
        "evaluation.num_prompts=3",
        "generation.num_engines=1",
    )
    converted = whole[0] / "hf_step_4"
    assert f"step_4 written to {converted}" in run("evaluate", folder, *asked)
    first = (folder / "evaluation.json").read_bytes()
    again = run("evaluate", folder, *asked)
    assert f"step_4 was converted before: {converted}" in again
    assert "3 of 3 prompts were answered before" in again
    assert (folder / "evaluation.json").read_bytes() == first


def test_a_checkpoint_converts_to_the_weights_that_training_exported(whole: tuple[Path, str], tmp_path: Path) -> None:
    layout = ["policy.data_parallel_size=1", "policy.pipeline_model_parallel_size=2"]  # another one than trained it
    output = run("convert", whole[0], f"convert.output={tmp_path / 'hf'}", *layout)
    assert "step_4 written to" in output
    exported, converted = (load_file(folder / "model.safetensors") for folder in (whole[0] / "hf", tmp_path / "hf"))
    assert exported.keys() == converted.keys()
    assert all(torch.equal(exported[name], converted[name]) for name in exported)
    again = subprocess.run(
        command("convert", whole[0], f"convert.output={tmp_path / 'hf'}"), capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert "is there and not empty" in again.stderr


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy.model=nowhere/at/all"], "policy.model=nowhere/at/all"),
        (["data.tasks=[{name: chain_sums}]"], "chain_sum"),
        (["data.source=jsonl", "data.path=EMPTY"], "empty"),
        (["rollouts.num_per_promt=4"], "num_per_prompt"),
        (["policy.tensor_model_parallel_size=3"], "tensor_model_parallel_size=3"),
        (["algorithm.clip_high=0.5"], "belongs to another configuration"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_two(
    whole: tuple[Path, str], tmp_path: Path, overrides: list[str], message: str
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    overrides = [override.replace("EMPTY", str(empty)) for override in overrides]
    done = subprocess.run(
        command("train", whole[0], *overrides), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error:") == 1
