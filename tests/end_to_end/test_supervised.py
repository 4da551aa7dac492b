"""`brorl sft` on conversations: as a plain loop of torch computes it, killed and resumed bit for bit, exported for
others to read. tests/documented_commands trains on what a run has stored, and samples from an export."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from brorl_lab.metric_registry import undeclared_names
from transformers import AutoModelForCausalLM, AutoTokenizer

from nemo_brorl.commands.sft import read_lessons
from nemo_brorl.config.load import load_config
from nemo_brorl.training.supervised.examples import learning_rate
from nemo_brorl.training.supervised.trainer import Lessons
from tests.support.commands import Command, run
from tests.support.tiny_model import EOS_ID, make_tiny_model

pytestmark = pytest.mark.end_to_end

NUM_STEPS = 6
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def settings(folder: Path, **others: Any) -> list[str]:
    given = {
        "data.path": folder.parent / "chat.jsonl",
        "data.held_out_fraction": 0.2,
        "policy.model": folder.parent / "model",
        "policy.data_parallel_size": 2,
        "policy.tokens_per_micro_batch": 256,
        "exp_manager.explicit_log_dir": folder,
        "sft.max_tokens": 256,
        "sft.batch_size": 8,
        "sft.max_steps": NUM_STEPS,
        "sft.lr": 1e-3,
        "sft.warmup_steps": 2,
        "trainer.val_interval": 3,
        "trainer.save_interval": 2,
    }
    return [f"{name}={value}" for name, value in (given | others).items()]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Metrics without timings."""
    found = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.append({name: value for name, value in row.items() if not name.startswith("time/")})
    return found


@dataclass(frozen=True)
class Resumed:
    """A run that was killed after its third step and gone on with."""

    folder: Path
    killed_rows: list[dict[str, Any]]  # of metrics, as they were then
    output: str  # of the command that went on


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Every third conversation has two turns."""
    base = tmp_path_factory.mktemp("sft")
    make_tiny_model(base / "model", scale=0.1)
    (base / "model" / "chat_template.jinja").write_text(TEMPLATE)
    with (base / "chat.jsonl").open("w") as file:
        for number in range(24):
            asked = {"role": "user", "content": f"after {number}?"}
            answered = {"role": "assistant", "content": str(number + 1)}
            thanks = [{"role": "user", "content": "thanks"}, {"role": "assistant", "content": "welcome" * (number % 4)}]
            turns = [asked, answered]
            if number % 3 == 1 and number % 4:
                turns += thanks
            file.write(json.dumps({"messages": turns}) + "\n")
    folder = base / "run"
    killed = Command("sft", *settings(folder))
    metrics, saved = folder / "metrics.jsonl", folder / "checkpoints" / "step_2" / "COMPLETE"
    killed.wait_for(lambda: saved.exists() and metrics.read_text().count("\n") > 3)
    killed.kill()
    killed_rows = rows(folder)
    return Resumed(folder, killed_rows, run("sft", *settings(folder)).output)


@pytest.fixture(scope="module")
def whole(resumed: Resumed) -> Path:
    """Its folder, which is to hold a whole run."""
    return resumed.folder


def reference_losses(model_folder: Path, lessons: Lessons, sft: Any) -> list[float]:
    """The same batches in a plain loop: one conversation at a time, torch's AdamW."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for step in range(lessons.num_steps):
        examples = lessons.batch(step)
        num_trained_tokens = sum(example.num_trained_tokens for example in examples)
        total = 0.0
        for example in examples:
            ids = torch.tensor([[*example.prompt_ids, *example.response_ids]], dtype=torch.int64)
            labels = ids.clone()
            labels[0, : len(example.prompt_ids)] = -100
            if example.has_loss is not None:
                labels[0, len(example.prompt_ids) :][torch.from_numpy(~example.has_loss)] = -100
            loss = model(input_ids=ids, labels=labels).loss * example.num_trained_tokens / num_trained_tokens
            loss.backward()
            total += float(loss)
        losses.append(total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(sft, step, lessons.num_steps)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def test_losses_are_those_of_a_plain_loop_on_the_same_batches(whole: Path) -> None:
    config = load_config("sft", settings(whole))
    lessons = read_lessons(config, whole.parent / "model")
    assert any(example.has_loss is not None for example in lessons.batch(0))
    expected = reference_losses(whole.parent / "model", lessons, config.sft)
    assert [row["policy/loss"] for row in rows(whole)[1:]] == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < expected[0]


def test_metrics_are_declared_and_the_validation_loss_falls(whole: Path) -> None:
    metrics = rows(whole)
    assert [row["step"] for row in metrics] == list(range(NUM_STEPS + 1))
    assert undeclared_names(sorted(set().union(*metrics) - {"step"})) == []
    losses = [row["sft/val_loss"] for row in metrics if "sft/val_loss" in row]
    assert len(losses) == 3 and losses[-1] < losses[0]


def test_a_run_killed_after_step_three_and_resumed_learns_it_again_bit_for_bit(resumed: Resumed) -> None:
    """The steps after it are those of the plain loop above."""
    assert "resumed after step 2" in resumed.output
    assert [row["step"] for row in resumed.killed_rows[:4]] == [0, 1, 2, 3]
    assert rows(resumed.folder)[:4] == resumed.killed_rows[:4]
    changed = Command("sft", *settings(resumed.folder, **{"sft.lr": 2e-3}))
    assert changed.wait() == 2
    assert "lr was 0.001, now 0.002" in changed.errors


def test_the_export_is_read_by_transformers_with_its_template(whole: Path) -> None:
    exported = whole / "hf"
    tokenizer = AutoTokenizer.from_pretrained(exported)
    talk = [{"role": "user", "content": "after 3?"}]
    text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert text == "user: after 3?<eos>\nassistant: "
    assert json.loads((exported / "generation_config.json").read_text())["eos_token_id"] == EOS_ID


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data.path": "nowhere.jsonl"}, "data.path=nowhere.jsonl: there is no such file"),
        ({"policy.model": "nowhere"}, "policy.model=nowhere: there is no such folder"),
        ({"sft.max_tokens": 600, "policy.tokens_per_micro_batch": 600}, "more than the model's 512 positions"),
        ({"sft.max_tokens": 300}, "policy.tokens_per_micro_batch × policy.context_parallel_size = 256"),
        ({"sft.max_tokens": 20}, "are longer than sft.max_tokens=20"),
    ],
)
def test_a_mistake_in_the_input_is_one_message(whole: Path, given: dict[str, Any], message: str) -> None:
    command = Command("sft", *settings(whole.parent / "wrong", **given))
    assert command.wait() == 2
    assert message in command.errors
    assert not (whole.parent / "wrong").exists()
