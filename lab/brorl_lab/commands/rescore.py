"""`brorl rescore RUN [--verifier NAME] [--option KEY=VALUE ...]` scores stored responses again and shows the changes.

A run folder may come from another person. Its prompts may name verifiers of this package that run on this machine.
Other verifiers, services and what a sandbox lets through must stand on the command line: `rewards.verifiers=[{name:
a.b:c}]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import yaml
from brorl_graders import ENVIRONMENT, FULL_MARK_KEY, check_payload, full_mark, lowest_right, names_in
from brorl_graders.base.components import is_import_path

from brorl_lab.store_reader import chosen_steps, responses_of, sampled_groups, sampled_prompts
from nemo_brorl.commands.run import resolve_model
from nemo_brorl.config.load import load_config, load_run_config
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.rewards import OwnVerifierConfig
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig, as_yaml
from nemo_brorl.core.console import Console, setup_logging
from nemo_brorl.core.errors import ConfigError, DataError, NotAllowedError
from nemo_brorl.core.run_folders import run_folder
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.ports import ChunkScorer
from nemo_brorl.scoring.grader_settings import configure
from nemo_brorl.types import Float32, Prompt, RolloutChunk, ScoredGroup, is_right

Key = tuple[str, int]  # prompt uid and index of the rollout
MAX_SHOWN = 300  # characters of an example


@dataclass(frozen=True)
class RescoredGroup:
    """A group of rollouts with its stored rewards and those of another verifier."""

    scored: ScoredGroup
    rewards: Float32  # new raw rewards [N]; the stored ones where the verifier failed
    num_failed: int
    full_mark: float  # new reward from which a rollout is right

    @property
    def changed(self) -> np.ndarray:
        """Indices of the rollouts whose reward changed when they were scored again."""
        return np.flatnonzero(self.rewards != self.scored.rewards)


def prompt_for_verifier(prompt: Prompt, verifier: str | None, options: Mapping[str, Any]) -> Prompt:
    """Return a copy of a prompt for another verifier, or for its own verifier when `verifier` is None.

    `options` replace values of the payload, which the verifier reads. Raises DataError when the verifier cannot score
    the prompt, ConfigError for a name that is unknown or that the command line does not allow.
    """
    payload = dict(prompt.payload)
    if verifier not in (None, prompt.verifier):
        # The full mark is that of the run's own verifier.
        payload.pop(FULL_MARK_KEY, None)
    changed = replace(prompt, verifier=verifier or prompt.verifier, payload={**payload, **options})
    if changed.verifier == ENVIRONMENT:
        raise DataError(
            f"prompt {prompt.uid} was answered by an environment, which cannot be asked again: pass --verifier of "
            "one that reads the whole text"
        )
    try:
        check_payload(changed.verifier, changed.payload)
    except NotAllowedError as error:
        raise NotAllowedError(f"prompt {prompt.uid}: {error}, or --verifier for another one") from error
    return changed


def rescore(
    groups: Sequence[ScoredGroup],
    pool: ChunkScorer,
    verifier: str | None,
    options: Mapping[str, Any],
) -> list[RescoredGroup]:
    """Score the rollouts of groups again, and return the groups with their new rewards in the same order.

    No two groups may have the same prompt. Before anything is scored, raises DataError when the verifier cannot score a
    prompt, ConfigError for a name that is unknown or that the command line does not allow.
    """
    chunks: list[RolloutChunk] = []
    marks: dict[str, float] = {}
    for scored in groups:
        prompt = prompt_for_verifier(scored.prompt, verifier, options)
        marks[prompt.uid] = full_mark(prompt.payload)
        for chunk in scored.group.chunks:
            request = replace(chunk.request, prompt=prompt)
            chunks.append(replace(chunk, request=request))
    rewards: dict[Key, float] = {}
    num_failed: dict[str, int] = {}
    for scored_chunk in pool.score(chunks):
        uid = scored_chunk.chunk.request.prompt.uid
        for index, reward in zip(scored_chunk.chunk.indices.tolist(), scored_chunk.rewards.tolist(), strict=True):
            rewards[uid, index] = reward
        num_failed[uid] = num_failed.get(uid, 0) + scored_chunk.num_failed
    return list(_join_chunks(groups, rewards, num_failed, marks))


def _join_chunks(
    groups: Iterable[ScoredGroup],
    rewards: Mapping[Key, float],
    num_failed: Mapping[str, int],
    marks: Mapping[str, float],
) -> Iterator[RescoredGroup]:
    for scored in groups:
        uid = scored.prompt.uid
        stored = zip(scored.indices.tolist(), scored.rewards.tolist(), strict=True)
        now = [rewards.get((uid, index), reward) for index, reward in stored]
        yield RescoredGroup(scored, np.array(now, np.float32), num_failed[uid], marks[uid])


@dataclass
class Changes:
    """Counts of rollouts and groups whose rewards a second scoring changed."""

    num: int = 0
    num_changed: int = 0
    reward_before: float = 0.0  # sum over rollouts
    reward_now: float = 0.0
    num_groups: int = 0
    informative_before: int = 0
    informative_now: int = 0

    def add(self, rescored: RescoredGroup) -> None:
        """Add a group's rewards, and how many of them a second scoring changed, to these counts."""
        before = rescored.scored.rewards
        self.num += len(before)
        self.num_changed += len(rescored.changed)
        self.reward_before += float(before.sum())
        self.reward_now += float(rescored.rewards.sum())
        self.num_groups += 1
        self.informative_before += bool(np.ptp(before) > 0)
        self.informative_now += bool(np.ptp(rescored.rewards) > 0)


def confusion(groups: Iterable[RescoredGroup]) -> np.ndarray:
    """Return the counts [was right, was wrong] × [is right, is wrong] of rollouts that were scored again."""
    counts = np.zeros((2, 2), np.int64)
    for rescored in groups:
        was_wrong = ~is_right(rescored.scored)
        is_wrong = rescored.rewards < lowest_right(rescored.full_mark)
        np.add.at(counts, (was_wrong.astype(int), is_wrong.astype(int)), 1)
    return counts


def changes_by_task(groups: Iterable[RescoredGroup]) -> dict[str, Changes]:
    """Return how many rewards a second scoring changed, by task name in sorted order, and last over all tasks."""
    found: dict[str, Changes] = {}
    overall = Changes()
    for rescored in groups:
        task = rescored.scored.prompt.task
        found.setdefault(task, Changes()).add(rescored)
        overall.add(rescored)
    ordered = dict(sorted(found.items()))
    ordered["all"] = overall
    return ordered


def main(argv: Sequence[str]) -> int:
    """Score a run's responses again and print which rewards changed. Exit code: 0 done, 2 a mistake in the input."""
    parser = argparse.ArgumentParser(prog="brorl rescore", description=__doc__)
    parser.add_argument("run", type=run_folder, help="run folder")
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
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings of verifiers, services and sandbox: rewards.…"
    )
    options = parser.parse_intermixed_args(argv)
    setup_logging()
    payload: Mapping[str, Any] = parse_options(parser, options.option)
    trusted = load_config(overrides=options.overrides)
    trusted.data.verifier = options.verifier
    if options.verifier is not None and is_import_path(options.verifier):
        trusted.rewards.verifiers.append(OwnVerifierConfig(options.verifier, dict(payload)))
        payload = {}
    configure(trusted)
    check_names(trusted, is_trained=False)
    config = with_sandbox_of(trusted, load_run_config(options.run, options.overrides), options.overrides)
    steps = chosen_steps(options.run, options.steps)
    console = Console()
    verifiers: set[str] = set()
    for prompt in sampled_prompts(options.run, steps):  # find mistakes before anything starts
        changed = prompt_for_verifier(prompt, options.verifier, payload)
        verifiers.update(names_in(changed.verifier, changed.payload))
    with verifier_alone(config, sorted(verifiers)) as (pool, tokenizer):
        groups = [scored for _, scored in sampled_groups(options.run, steps)]
        rescored = rescore(groups, pool, options.verifier, payload)
        print_changes(rescored, console)
        print_examples(rescored, tokenizer, options.examples, console)
    return 0


@contextlib.contextmanager
def verifier_alone(config: BroRLConfig, verifiers: Sequence[str]) -> Iterator[tuple[ChunkScorer, ChatTokenizer]]:
    """Start a pool of processes on this machine that score with the given verifiers, and load the model's tokenizer."""
    # Import Ray only when there is something to score.
    from nemo_brorl.cluster.ray_cluster import RayCluster
    from nemo_brorl.cluster.ray_watch import start_limit
    from nemo_brorl.scoring.pool import VerifierPool
    from nemo_brorl.scoring.preparation import prepare_sandbox

    model_folder = resolve_model(config)
    tokenizer = load_tokenizer(model_folder, template=config.data.template)
    prepare_sandbox(config.rewards, verifiers)
    one_machine = replace(config.trainer, num_nodes=1, gpus_per_node=0)
    with contextlib.ExitStack() as stack:
        with start_limit(RunSizes.from_config(config).start_timeout_s):
            stack.enter_context(RayCluster(one_machine))
            pool = VerifierPool(config.rewards, model_folder, verifiers, template=config.data.template)
            stack.callback(pool.close)
            pool.wait_ready()
        yield pool, tokenizer


def parse_options(parser: argparse.ArgumentParser, given: Sequence[str]) -> dict[str, Any]:
    """Return KEY=VALUE arguments as a mapping, with each value parsed as YAML.

    Exits with 2 for an argument of another form.
    """
    parsed: dict[str, Any] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not key or not separator:
            parser.error(f"--option {text}: pass KEY=VALUE")
        parsed[key] = yaml.safe_load(value)
    return parsed


def with_sandbox_of(trusted: BroRLConfig, recorded: BroRLConfig, overrides: Sequence[str]) -> BroRLConfig:
    """Return a run's settings, with the code sandbox as the command line sets it.

    Raises ConfigError where the run had another sandbox and the command line does not say which one to use.
    """
    written = {override.partition("=")[0] for override in overrides}
    was, now = asdict(recorded.rewards.code), asdict(trusted.rewards.code)
    differing = []
    for name in was:
        setting = f"rewards.code.{name}"
        if was[name] != now[name] and setting not in written:
            differing.append(f"{setting}={as_yaml(was[name])}")
    if differing:
        raise ConfigError(
            f"the run was scored with {', '.join(differing)}. What programs may use is not taken from a run folder: "
            f"pass {' '.join(map(shlex.quote, differing))} after the command if you trust it, or other values"
        )
    return replace(recorded, rewards=replace(recorded.rewards, code=trusted.rewards.code))


def print_changes(rescored: Sequence[RescoredGroup], console: Console) -> None:
    """Print how many rewards changed when rollouts were scored again, by task, and how often right became wrong."""
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
        console.line(f"the verifier failed for {num_failed:,} responses, which keep their reward")


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


def print_examples(
    rescored: Sequence[RescoredGroup],
    tokenizer: ChatTokenizer,
    num: int,
    console: Console,
) -> None:
    """Print one response with a changed reward from each of the first `num` groups that have one.

    Texts are printed as JSON strings, because a model's output must not reach a terminal as it is.
    """
    changed = [one for one in rescored if len(one.changed)]
    for one in changed[:num]:
        place = int(one.changed[0])
        token_ids, _ = responses_of(one.scored)[place]
        text = tokenizer.decode(token_ids.tolist())
        console.line()
        uid = one.scored.prompt.uid
        console.line(f"{uid}, rollout {place}: {one.scored.rewards[place]:g}, now {one.rewards[place]:g}")
        console.line(f"  asked    {_escape_text(_question(one.scored))}")
        console.line(f"  answered {_escape_text(text)}")


def _question(scored: ScoredGroup) -> str:
    messages = scored.prompt.messages
    return messages[-1]["content"] if messages else ""


def _escape_text(text: str) -> str:
    """Return a text in ASCII on one line, without control characters.

    Only the end of a long text is returned.
    """
    tail = text if len(text) <= MAX_SHOWN else "..." + text[-MAX_SHOWN:]
    return json.dumps(tail)
