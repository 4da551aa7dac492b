"""j: the same steps by `brorl train` and by TRL with its colocated vLLM, one after the other on one card.

    python -m bench.gpu.peer [--pairs 3] [--steps 4] [--rollouts 512] [--prompts 2] [--micro-batch 64] [--tiny]

Both sides have the same random model of the 0.5B shape, the same questions, bf16, one update a step, no KL term, and
engines that sleep while the policy learns. Responses end by chance or at 256 tokens: both sample them from the same
distribution, and the table shows their mean length. Each side is a process of its own, and the order alternates from
pair to pair. The first step of a process is left out, because it compiles. `--micro-batch` is TRL's batch of a forward
pass: the fastest that fits is fair.

Hypothesis: TRL takes at least 1.2 times our seconds, most of the difference being padding and the prompt of each row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.record import Row
from bench.gpu.setting import Setting, open_setting
from bench.gpu.shapes import QWEN_0_5B, TINY
from bench.gpu.training_run import RANDOM_MODEL, character_model, overrides_for, write_rows
from bench.product import run
from nemo_brorl.core.step_time import step_seconds
from nemo_brorl.training.records import read_metrics

NUM_QUESTIONS = 64


@dataclass(frozen=True)
class Side:
    """One process: medians over its steps, the first left out."""

    seconds: float
    prompt_tokens: float
    response_tokens: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part to its parser."""
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each process; the first does not count")
    parser.add_argument("--rollouts", type=int, default=512, help="N of both sides")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--prompt-characters", type=int, default=256, help="a character is a token")
    parser.add_argument("--response-tokens", type=int, default=256, help="at most")
    parser.add_argument("--micro-batch", type=int, default=64, help="responses of a forward pass of TRL")


def write_questions(setting: Setting) -> Path:
    """Write sums, padded with dots to equal lengths, and return their file."""
    rows = []
    for number in range(NUM_QUESTIONS):
        question = f"{number} + 1 = ?".ljust(setting.extra.prompt_characters, ".")
        rows.append({"prompt": question, "answer": str(number + 1)})
    return write_rows(setting.work / "questions.jsonl", rows)


def max_prompt_tokens(setting: Setting) -> int:
    """Return room for a question: a character is a token, and the chat template adds a newline."""
    return int(setting.extra.prompt_characters) + 16


def max_model_len(setting: Setting) -> int:
    """Return room for a question and a response, in tokens."""
    return max_prompt_tokens(setting) + int(setting.extra.response_tokens)


def time_ours(setting: Setting, model: Path, questions: Path, folder: Path) -> Side:
    """Run `brorl train`."""
    extra = setting.extra
    run(
        "train",
        *overrides_for(setting),
        *RANDOM_MODEL,
        f"policy.model={model}",
        "policy.optim.lr=1e-6",
        "policy.tokens_per_micro_batch=16384",
        "algorithm.num_mini_batches=1",
        "algorithm.kl.coefficient=0",
        f"rollouts.num_per_prompt={extra.rollouts}",
        f"rollouts.prompts_per_step={extra.prompts}",
        f"rollouts.max_response_tokens={extra.response_tokens}",
        f"data.max_prompt_tokens={max_prompt_tokens(setting)}",
        f"generation.max_model_len={max_model_len(setting)}",
        "data.source=jsonl",
        f"data.path={questions}",
        "data.verifier=exact_match",
        "data.system_prompt=''",
        "data.answer_instruction=''",
        f"trainer.max_steps={extra.steps}",
        f"exp_manager.explicit_log_dir={folder}",
    )
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "policy/loss" in row][1:]
    seconds = [step_seconds(row, left_out=("validate", "save")) for row in rows]
    tokens = [row["rollouts/response_tokens"] for row in rows]
    return Side(statistics.median(seconds), rows[0]["rollouts/prompt_tokens"], statistics.median(tokens))


def time_trl(setting: Setting, model: Path, questions: Path, folder: Path) -> Side:
    """Run TRL's trainer."""
    extra = setting.extra
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "trl.json"
    arguments = {
        "model": model,
        "questions": questions,
        "output": output,
        "steps": extra.steps,
        "rollouts": extra.rollouts,
        "prompts": extra.prompts,
        "micro-batch": extra.micro_batch,
        "response-tokens": extra.response_tokens,
        "max-model-len": max_model_len(setting),
    }
    command = [sys.executable, "-m", "bench.gpu.peer_trl", *(f"--{name}={value}" for name, value in arguments.items())]
    if setting.is_tiny:
        command.append("--cpu")
    subprocess.run(command, check=True)
    found = json.loads(output.read_text())
    seconds, tokens = found["seconds"][1:], found["response_tokens"][1:]
    return Side(statistics.median(seconds), found["prompt_tokens"], statistics.median(tokens))


SIDES = {"ours": time_ours, "TRL": time_trl}


def main() -> None:
    """Run the pairs, and report seconds, lengths and their ratio."""
    setting = open_setting("peer", __doc__, add_arguments)
    if setting.is_tiny:
        extra = setting.extra
        extra.pairs, extra.steps, extra.rollouts, extra.micro_batch = 1, 2, 8, 8
        extra.prompt_characters, extra.response_tokens = 32, 8
    shape = TINY if setting.is_tiny else QWEN_0_5B
    model = character_model(setting, "tiny_characters" if setting.is_tiny else "0.5B_characters", shape)
    questions = write_questions(setting)
    found: dict[str, list[Side]] = {name: [] for name in SIDES}
    for pair in range(setting.extra.pairs):
        for name in list(SIDES)[:: -1 if pair % 2 else 1]:
            side = SIDES[name](setting, model, questions, setting.work / f"{name}_{pair}")
            found[name].append(side)
            note = f"prompts of {side.prompt_tokens:.0f} tokens, responses of {side.response_tokens:.1f}"
            setting.results.add(Row(f"{name}: a step, pair {pair + 1}", side.seconds, "s", note=note))
    ratios = [trl.seconds / ours.seconds for ours, trl in zip(found["ours"], found["TRL"], strict=True)]
    note = f"{min(ratios):.2f} to {max(ratios):.2f}"
    setting.results.add(Row("TRL over ours, median of pairs", statistics.median(ratios), "×", note=note))
    setting.results.finish()


if __name__ == "__main__":
    main()
