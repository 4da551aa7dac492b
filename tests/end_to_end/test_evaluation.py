"""An evaluation on real engines and verifiers: killed and resumed it gives what an uninterrupted one gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Command, run
from tests.support.tiny_model import make_tiny_model

NUM_PROMPTS = 10  # of each benchmark


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    make_tiny_model(folder / "model")
    rows = [
        {"question": f"Which is {n}? A) {n} B) {n + 1}", "answer": "A", "kind": "even" if n % 2 == 0 else "odd"}
        for n in range(NUM_PROMPTS)
    ]
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def line(base: Path, output: Path) -> list[str]:
    choices = (
        f"{{name: choices, path: {base / 'choices.jsonl'}, verifier: multiple_choice, columns: {{prompt: question, "
        f"task: kind}}}}"
    )
    puzzles = (
        f"{{name: puzzles, source: reasoning_gym, tasks: [{{name: gcd}}], num_prompts: {NUM_PROMPTS}, "
        f"samples_per_prompt: 4}}"
    )
    return [
        "evaluate", f"policy.model={base / 'model'}",
        f"exp_manager.explicit_log_dir={output}",
        f"evaluation.benchmarks=[{choices}, {puzzles}]", "evaluation.samples_per_prompt=6",
        "evaluation.max_response_tokens=64",
        "data.max_prompt_tokens=300", "generation.max_model_len=512", "generation.num_engines=1",
        "rewards.num_workers=1",
        "generation.max_num_seqs=4", "rollouts.chunk_size=4",
    ]  # fmt: skip


def answers(output: Path) -> dict[str, list[str]]:
    """Lines by file, in an order of their own: prompts end in any."""
    return {
        path.name: sorted(path.read_text().splitlines())
        for path in (output / "evaluations" / "answers").glob("*.jsonl")
    }


def num_answered(output: Path) -> int:
    return sum(len(lines) - 1 for lines in answers(output).values())


def test_an_evaluation_killed_and_resumed_equals_the_uninterrupted_one(base: Path) -> None:
    killed, whole = base / "killed", base / "whole"
    command = Command(*line(base, killed))
    command.wait_for(lambda: num_answered(killed) >= 3)
    command.kill()
    before = num_answered(killed)
    assert 3 <= before < 2 * NUM_PROMPTS, "killed in the middle"
    assert not (killed / "evaluation.json").exists()
    assert "prompts were answered before" in run(*line(base, killed)).output
    run(*line(base, whole))
    assert num_answered(killed) == 2 * NUM_PROMPTS
    assert answers(killed) == answers(whole)
    assert (killed / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()
    record = json.loads((whole / "evaluation.json").read_text())
    assert set(record["benchmarks"]["choices"]["tasks"]) == {"even", "odd"}
    assert record["benchmarks"]["puzzles"]["settings"]["samples_per_prompt"] == 4
    assert record["overall"]["response_tokens"] > 1
