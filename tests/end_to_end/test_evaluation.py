"""An evaluation on real engines and verifiers: what it does not know any more when it goes on is answered as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import Command, run
from tests.support.tiny_model import make_tiny_model

NUM_PROMPTS = 6  # of each benchmark


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
        "evaluation.max_response_tokens=32",
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


def forget(output: Path) -> None:
    """All answers of a file but the first and the beginning of the second, as a crash would leave them."""
    for path in (output / "evaluations" / "answers").glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:2]) + "".join(lines[2:3])[:20])


def copy_backwards(output: Path, other: Path) -> None:
    """Another output that has the same answers, the last one first."""
    folder = other / "evaluations" / "answers"
    folder.mkdir(parents=True)
    for path in (output / "evaluations" / "answers").glob("*.jsonl"):
        identity, *lines = path.read_text().splitlines(keepends=True)
        (folder / path.name).write_text(identity + "".join(reversed(lines)))


def test_an_evaluation_killed_and_resumed_answers_again_as_before(base: Path) -> None:
    output, backwards = base / "killed", base / "backwards"
    command = Command(*line(base, output))
    command.wait_for(lambda: num_answered(output) >= 3)
    command.kill()
    before = answers(output)
    assert 3 <= num_answered(output) < 2 * NUM_PROMPTS, "killed in the middle"
    assert not (output / "evaluation.json").exists()
    forget(output)
    assert "1 of 6 prompts were answered before" in run(*line(base, output)).output
    after = answers(output)
    assert num_answered(output) == 2 * NUM_PROMPTS
    assert all(set(lines) <= set(after[name]) for name, lines in before.items())
    record = json.loads((output / "evaluation.json").read_text())
    assert set(record["benchmarks"]["choices"]["tasks"]) == {"even", "odd"}
    assert record["benchmarks"]["puzzles"]["settings"]["samples_per_prompt"] == 4
    assert record["overall"]["response_tokens"] > 1
    copy_backwards(output, backwards)
    run(*line(base, backwards))  # no engine starts
    assert (backwards / "evaluation.json").read_bytes() == (output / "evaluation.json").read_bytes()
