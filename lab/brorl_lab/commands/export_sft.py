"""`brorl export-sft RUN [--best N] [--min-reward R]` writes the best stored responses of every prompt as chat JSONL."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from brorl_lab.prompt_pool import prompt_key
from brorl_lab.store_reader import chosen_steps, responses_of, sampled_groups
from nemo_brorl.config.load import load_run_config
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.files import replacing
from nemo_brorl.core.run_folders import run_folder
from nemo_brorl.core.template_files import DECODES
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.types import ScoredGroup, is_right

Line = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Export the best responses of an RL run as data for supervised fine-tuning, and return the exit code.

    0: done, 2: a mistake in the input.
    """
    parser = argparse.ArgumentParser(prog="brorl export-sft", description=__doc__)
    parser.add_argument("run", type=run_folder, help="run folder")
    parser.add_argument("--steps", help="K or K-J; else all that are stored")
    parser.add_argument("--best", type=int, default=1, help="different responses of a prompt at most (default: 1)")
    parser.add_argument(
        "--min-reward",
        type=float,
        help="raw reward of a response at least (default: right ones)",
    )
    parser.add_argument("--output", type=Path, help="file (default: sft.jsonl in the run folder)")
    options = parser.parse_args(argv)
    if options.best < 1:
        parser.error(f"--best {options.best}: pass 1 or more")
    setup_logging()
    steps = chosen_steps(options.run, options.steps)
    tokenizer = tokenizer_of(options.run)
    output = options.output or options.run / "sft.jsonl"
    chosen = BestOfPrompts(options.best)
    for step, scored in sampled_groups(options.run, steps):
        chosen.add(prompt_key(scored.prompt), best_lines(scored, step, options.best, options.min_reward, tokenizer))
    num_lines = 0
    with replacing(output) as aside, aside.open("w", encoding="utf-8") as file:
        for line in chosen.lines():
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            num_lines += 1
    Console().line(f"{num_lines:,} responses of {len(steps):,} steps in {output}")
    return 0


class BestOfPrompts:
    """The best different responses of each prompt, whatever steps they are of."""

    def __init__(self, best: int) -> None:
        self.best = best
        self._lines: dict[str, list[Line]] = {}  # examples by prompt, best first

    def add(self, prompt: str, lines: Iterable[Line]) -> None:
        """Add examples of a prompt's further group. Of equal rewards the shorter text comes first, then the older."""
        known = self._lines.setdefault(prompt, [])
        texts = {_text(line) for line in known}
        for line in lines:
            if _text(line) not in texts:
                known.append(line)
        known.sort(key=lambda line: (-line["reward"], len(_text(line))))
        del known[self.best :]

    def lines(self) -> Iterator[Line]:
        """Yield the examples of all prompts."""
        for of_prompt in self._lines.values():
            yield from of_prompt


def _text(line: Line) -> str:
    return str(line["messages"][-1]["content"])


def tokenizer_of(run_folder: Path) -> ChatTokenizer:
    """Return the tokenizer of the model that a run started with.

    Raises ConfigError when the run's settings cannot be used, ModelError when the model or tokenizer cannot be loaded.
    """
    from nemo_brorl.commands.wiring import resolve_model

    return load_tokenizer(resolve_model(load_run_config(run_folder)), template=DECODES)


def best_lines(
    scored: ScoredGroup,
    step: int,
    best: int,
    min_reward: float | None,
    tokenizer: ChatTokenizer,
) -> Iterator[Line]:
    """Yield training examples of a group's best distinct responses, the highest reward first.

    At equal rewards the shorter response comes first, then the one sampled first. Truncated responses are left out. So
    are trajectories of several turns, because their text is not the model's alone. Without a `min_reward` the right
    responses are exported.
    """
    responses = responses_of(scored)
    lengths = scored.group.lengths
    is_stopped = scored.group.is_stopped
    is_chosen = is_right(scored) if min_reward is None else scored.rewards >= min_reward
    order = sorted(range(len(responses)), key=lambda place: (-scored.rewards[place], lengths[place], place))
    num_turns = scored.num_turns
    texts: set[str] = set()
    for place in order:
        if len(texts) == best or not is_chosen[place]:
            return
        if num_turns[place] > 1:
            continue
        token_ids, _ = responses[place]
        text = tokenizer.decode(token_ids.tolist())
        if not is_stopped[place] or text in texts:
            continue
        texts.add(text)
        answer = {"role": "assistant", "content": text}
        yield {
            "messages": [*scored.prompt.messages, answer],
            "uid": scored.prompt.uid,
            "task": scored.prompt.task,
            "step": step,
            "place": place,
            "reward": float(scored.rewards[place]),
        }
