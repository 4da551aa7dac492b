"""`brorl rescore RUN [--verifier NAME] [--option KEY=VALUE ...]` scores stored responses again: who changed, how often,
examples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.schema import BroRLConfig, OwnVerifierConfig
from nemo_brorl.core.components import is_import_path
from nemo_brorl.core.console import Console
from nemo_brorl.core.logs import setup_logging
from nemo_brorl.core.tokenizer import ChatTokenizer
from nemo_brorl.tasks.verifiers.registry import configure, find, names_in
from nemo_brorl.training.store.reader import chosen_steps, responses_of, sampled_groups
from nemo_brorl.training.store.rescore import Changes, Rescored, asked_again, changes_by_task, confusion, rescore
from nemo_brorl.types import ScoredGroup

MAX_SHOWN = 300  # characters of an example


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input."""
    parser = argparse.ArgumentParser(prog="brorl rescore", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--steps", help="K or K-J; else all that are stored")
    parser.add_argument("--verifier", help="a verifier's name or package.module:function; else each prompt's own")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the verifier, over those of the prompts; a parameter of a function of your own",
    )
    parser.add_argument("--examples", type=int, default=5, help="changed responses that are shown")
    options = parser.parse_args(argv)
    setup_logging()
    given = parse_options(parser, options.option)
    config = load_run_config(options.run)
    payload: Mapping[str, Any] = given
    if options.verifier is not None and is_import_path(options.verifier):
        config = with_params(config, options.verifier, given)
        payload = {}
    steps = chosen_steps(options.run, options.steps)
    console = Console()
    _, first = next(sampled_groups(options.run, steps))
    changed = asked_again(first.prompt, options.verifier, payload)  # a mistake is found before anything starts
    from nemo_brorl.commands.wiring import verifier_alone  # Ray: only for what can be scored

    with verifier_alone(config, names_in(changed.verifier, changed.payload)) as (pool, tokenizer):
        groups = [scored for _, scored in sampled_groups(options.run, steps)]
        rescored = rescore(groups, pool, options.verifier, payload)
        show(rescored, console)
        show_examples(rescored, tokenizer, options.examples, console)
    return 0


def parse_options(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE as a mapping, values as in YAML. Exits with 2 for anything else."""
    parsed: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not key or not separator:
            parser.error(f"--option {text}: write KEY=VALUE")
        parsed[key] = yaml.safe_load(value)
    return parsed


def with_params(config: BroRLConfig, name: str, params: Mapping[str, Any]) -> BroRLConfig:
    """The settings with a user's own verifier. Raises ConfigError when it cannot be imported or refuses its
    parameters."""
    own = OwnVerifierConfig(name, dict(params))
    configure([own])
    find(name)
    rewards = replace(config.rewards, verifiers=[own])
    return replace(config, rewards=rewards)


def show(rescored: Sequence[Rescored], console: Console) -> None:
    """Who changed by task, and how often right became wrong."""
    rows: list[list[str]] = []
    for task, changes in changes_by_task(rescored).items():
        rows.append(_row(task, changes))
    console.table(
        ["task", "rollouts", "changed", "mean reward", "now", "groups", "informative", "now"],
        rows,
    )
    counts = confusion(rescored)
    console.line()
    console.table(
        ["rollouts", "right now", "wrong now"],
        [
            ["was right", f"{counts[0, 0]:,}", f"{counts[0, 1]:,}"],
            ["was wrong", f"{counts[1, 0]:,}", f"{counts[1, 1]:,}"],
        ],
    )
    num_failed = sum(one.num_failed for one in rescored)
    if num_failed:
        console.line(f"the verifier failed for {num_failed:,} responses: reward 0")


def _row(task: str, changes: Changes) -> list[str]:
    return [
        task,
        f"{changes.num:,}",
        f"{changes.num_changed / changes.num:.1%}",
        f"{changes.reward_before / changes.num:.3f}",
        f"{changes.reward_now / changes.num:.3f}",
        f"{changes.num_groups:,}",
        f"{changes.informative_before:,}",
        f"{changes.informative_now:,}",
    ]


def show_examples(
    rescored: Sequence[Rescored],
    tokenizer: ChatTokenizer,
    num: int,
    console: Console,
) -> None:
    """One changed response of each of the first `num` groups that have some, as JSON strings: what a model wrote must
    not reach a terminal as it is."""
    changed = [one for one in rescored if len(one.changed)]
    for one in changed[:num]:
        place = int(one.changed[0])
        token_ids, _ = responses_of(one.scored)[place]
        text = tokenizer.decode(token_ids.tolist())
        console.line()
        uid = one.scored.prompt.uid
        console.line(f"{uid}, rollout {place}: {one.scored.rewards[place]:g}, now {one.rewards[place]:g}")
        console.line(f"  asked    {_inert(_question(one.scored))}")
        console.line(f"  answered {_inert(text)}")


def _question(scored: ScoredGroup) -> str:
    messages = scored.prompt.messages
    return messages[-1]["content"] if messages else ""


def _inert(text: str) -> str:
    """Without control characters, on one line, in ASCII; the end of what is too long."""
    tail = text if len(text) <= MAX_SHOWN else "..." + text[-MAX_SHOWN:]
    return json.dumps(tail)
