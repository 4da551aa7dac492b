"""Rules of evaluation: which benchmarks are asked, how often, and whether an engine holds them. Files are opened by
`evaluation/`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_brorl.config.schema import BenchmarkConfig, BroRLConfig
from nemo_brorl.core.errors import CheckpointError

STEP = re.compile(r"step_\d+")  # a checkpoint's folder
HELD_OUT = "held_out"  # what the held-out prompts of `data` are called among benchmarks


class Limits(NamedTuple):
    """What a benchmark asks of the engines, defaults filled in."""

    num_samples: int  # of each prompt
    max_prompt_tokens: int
    max_response_tokens: int


def selected(config: BroRLConfig) -> list[tuple[str, BenchmarkConfig]]:
    """(where it is set, benchmark) of those that are asked; empty: the held-out prompts of `data`."""
    only = config.evaluation.only
    named = [
        (f"evaluation.benchmarks.{index}", benchmark) for index, benchmark in enumerate(config.evaluation.benchmarks)
    ]
    return [(where, benchmark) for where, benchmark in named if not only or benchmark.name in only]


def limits(config: BroRLConfig, benchmark: BenchmarkConfig | None) -> Limits:
    """Of a benchmark, or of the held-out prompts (None)."""
    shared, own = config.evaluation, benchmark or BenchmarkConfig(name=HELD_OUT)
    return Limits(
        own.samples_per_prompt or shared.samples_per_prompt,
        own.max_prompt_tokens or config.data.max_prompt_tokens,
        own.max_response_tokens or shared.max_response_tokens or config.rollouts.max_response_tokens,
    )


def with_model_of_checkpoint(config: BroRLConfig) -> BroRLConfig:
    """The settings with the model that the run of `evaluation.checkpoint` began with: its layers and tokenizer are the
    checkpoint's.

    Raises CheckpointError where there is no checkpoint.
    """
    given = config.evaluation.checkpoint
    if given is None:
        return config
    folder = Path(given) if STEP.fullmatch(Path(given).name) else run_of(Path(given)) / "checkpoints"
    if not folder.is_dir() or (
        folder.name == "checkpoints" and not any(STEP.fullmatch(path.name) for path in folder.iterdir())
    ):
        raise CheckpointError(
            f"evaluation.checkpoint={given}: there is no checkpoint in {folder}; write a run folder or "
            f"RUN/checkpoints/step_K, or "
            "policy.model=FOLDER for a Hugging Face model"
        )
    try:
        model = str(OmegaConf.load(run_of(Path(given)) / "config.yaml").policy.model)
    except (OSError, OmegaConfBaseException):
        return config  # a checkpoint that was moved away from its run: policy.model says it
    return replace(config, policy=replace(config.policy, model=model))


def run_of(checkpoint: Path) -> Path:
    """The run folder of RUN, RUN/checkpoints or RUN/checkpoints/step_K; of a checkpoint somewhere else the folder that
    it is in."""
    checkpoint = checkpoint.absolute()
    if (checkpoint / "checkpoints").is_dir():
        return checkpoint
    folder = checkpoint.parent if STEP.fullmatch(checkpoint.name) else checkpoint
    return folder.parent if folder.name == "checkpoints" else folder


def benchmarks_can_be_told_apart(config: BroRLConfig) -> Iterator[str]:
    names = [benchmark.name for benchmark in config.evaluation.benchmarks]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"evaluation.benchmarks names {name} {names.count(name)} times: give each benchmark a name of its own"
    for index, name in enumerate(names):
        if not name or "/" in name or name.startswith("."):
            yield (
                f"evaluation.benchmarks.{index}.name={name!r}: write a name without a slash or a dot at its "
                f"beginning; a file carries it"
            )
    for name in config.evaluation.only:
        if name not in names:
            known = f"write one of {', '.join(names)}" if names else "evaluation.benchmarks lists none"
            yield f"evaluation.only names {name}, and there is no such benchmark: {known}"


def benchmarks_are_complete(config: BroRLConfig) -> Iterator[str]:
    for where, benchmark in selected(config):
        if benchmark.held_out_path is not None:
            yield (
                f"{where}.held_out_path={benchmark.held_out_path} is for training: name the file of the benchmark "
                f"in {where}.path"
            )
        if benchmark.source != "reasoning_gym":
            if benchmark.tasks:
                yield (
                    f"{where}.tasks is given and {where}.source is {benchmark.source}: write "
                    f"{where}.source=reasoning_gym"
                )
            elif benchmark.path is None:
                yield (
                    f"{where}.source={benchmark.source} needs {where}.path: write the path of the file of "
                    f"{benchmark.name}"
                )
            continue
        if not benchmark.tasks:
            yield (
                f"{where}.tasks is empty and {where}.source is reasoning_gym: write for example "
                f"{where}.tasks=[{{name: chain_sum}}]"
            )
        if benchmark.num_prompts is None:
            yield f"{where}.source=reasoning_gym has no end: write {where}.num_prompts, for example 100"
        if config.data.held_out_fraction == 0:
            yield (
                f"{where} asks questions held out of training, and data.held_out_fraction=0: write a share above "
                f"0, for example 0.1"
            )


def every_k_has_samples(config: BroRLConfig) -> Iterator[str]:
    evaluation = config.evaluation
    asked = [
        (f"{where} ({benchmark.name})", limits(config, benchmark).num_samples) for where, benchmark in selected(config)
    ]
    ks = [("pass_at_k", k) for k in evaluation.pass_at_k] + [("majority_at_k", k) for k in evaluation.majority_at_k]
    for (setting, k), (name, num_samples) in product(ks, asked or [("evaluation", evaluation.samples_per_prompt)]):
        if k < 1:
            yield f"evaluation.{setting} has {k}: write numbers from 1"
        elif k > num_samples:
            yield (
                f"evaluation.{setting} has {k} and {name} draws {num_samples} samples of a prompt: write "
                f"samples_per_prompt={k} "
                f"or more there, or leave {k} out"
            )


def benchmarks_fit_the_engines(config: BroRLConfig) -> Iterator[str]:
    room = config.generation.max_model_len
    for where, benchmark in selected(config):
        _, prompt, response = limits(config, benchmark)
        if prompt + response > room:
            yield (
                f"generation.max_model_len={room} is less than what {where} ({benchmark.name}) asks for, {prompt} "
                f"tokens for the prompt + "
                f"{response} for the response: write generation.max_model_len={prompt + response}, or shorten "
                f"{where}.max_prompt_tokens or {where}.max_response_tokens"
            )


EVALUATION_RULES: tuple[Callable[[BroRLConfig], Iterator[str]], ...] = (
    benchmarks_can_be_told_apart,
    benchmarks_are_complete,
    every_k_has_samples,
    benchmarks_fit_the_engines,
)
