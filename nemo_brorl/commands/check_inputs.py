"""Check what a run is given, before Ray starts: settings are read, and questions are as many and as good as asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from brorl_graders import check_name, is_address
from brorl_graders.base.components import is_import_path
from brorl_graders.base.environment_values import hidden

from nemo_brorl.config.data import FILE_WORDS
from nemo_brorl.config.lengths import HELD_OUT
from nemo_brorl.config.load import CommandLine, given_by
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.unread import EVALUATE, TRAIN, late_steps, unread_settings
from nemo_brorl.core.console import get_logger
from nemo_brorl.core.errors import ConfigError, DataError, ModelError
from nemo_brorl.core.model_folder import local_model

if TYPE_CHECKING:
    from nemo_brorl.core.tokenizer import ChatTokenizer
    from nemo_brorl.evaluation.benchmarks import Benchmark
    from nemo_brorl.evaluation.input_checks import Finding
    from nemo_brorl.prompts.mixture import Mixture

log = get_logger(__name__)

NUM_SHOWN = 5  # settings without effect that are named
MAX_MIB = 64  # data files that a command reads which asks no question


def check_inputs(
    config: BroRLConfig, line: CommandLine, command: str = TRAIN, *, reads_files: bool = False
) -> list[str]:
    """Log and return what is wrong with the inputs of `command` (train, evaluate or sft), before anything starts.

    Named are settings of the command line or the user's file that are not read. The questions are checked by
    `check_questions` when a command has read them. A command that reads none (`reads_files`) has data files of up to
    MAX_MIB read and checked here, if the model is on this machine. Raises ConfigError for settings that contradict each
    other, and DataError for questions that cannot be trained on.
    """
    command_line, file = given_by(line)
    unread = [*unread_settings(config, command_line, file, command), *_unknown_timeouts(config)]
    unread += _given_twice(line.overrides)
    said = unread[:NUM_SHOWN]
    if len(unread) > NUM_SHOWN:
        said.append(f"{len(unread) - NUM_SHOWN} more settings are not read")
    said += late_steps(config, {**file, **command_line}, command) if command != EVALUATE else ()
    said = [hidden(text, config) for text in said]
    for text in said:
        log.warning("%s", text)
    return said + _check_files(config) if reads_files else said


def _given_twice(overrides: Sequence[str]) -> Iterator[str]:
    last = {override.partition("=")[0]: override for override in overrides}
    for override in overrides:
        read = last[override.partition("=")[0]]
        if override != read:
            yield f"{override} is not read: {read} comes after it"


def _unknown_timeouts(config: BroRLConfig) -> Iterator[str]:
    endpoints = {endpoint.name for endpoint in config.rewards.services.endpoints}
    for name, seconds in config.rewards.timeouts.items():
        if name in endpoints or is_import_path(name) or is_address(name):
            continue
        try:
            check_name(name)
        except ConfigError as error:
            yield f"rewards.timeouts.{name}={seconds:g} is not read: {error}"


def _check_files(config: BroRLConfig) -> list[str]:
    """Check the questions of a run that reads data files alone. Generated tasks take time and have no end."""
    sources = [source for _, source in config.data.sources()]
    if any(source.source not in FILE_WORDS or source.environment for source in sources):
        return []
    # Another check says that there is no such model.
    with contextlib.suppress(ModelError):
        folder = local_model(config.policy.model)
        if folder is not None:
            return _check_files_with(config, folder)
    return []


def _check_files_with(config: BroRLConfig, folder: Path) -> list[str]:
    try:
        from nemo_brorl.core.tokenizer import load_tokenizer
        from nemo_brorl.evaluation.benchmarks import EVALUATION_SEED, held_out_prompts
        from nemo_brorl.prompts.find_files import find_files
        from nemo_brorl.prompts.sources import Sources
        from nemo_brorl.scoring.grader_settings import configure
    except ImportError as error:  # a login node need not have all libraries
        log.info("the questions are not checked here: %s", error)
        return []
    num_bytes = 0
    for _, source in config.data.sources():
        for path, split in ((source.path, source.dataset_split), (source.held_out_path, None)):
            files = find_files(source.source, path, split) if path else []
            num_bytes += sum(file.stat().st_size for file in files)
    if num_bytes > MAX_MIB * 2**20:
        log.info("the questions are not checked here: their files have %.0f MiB", num_bytes / 2**20)
        return []
    configure(config)
    opened, tokenizer = Sources(config.data), load_tokenizer(folder)
    num_found = len(held_out_prompts(config.evaluation, config.data, tokenizer, opened))
    train, held_out = opened.split("train", config.trainer.seed), opened.split("held_out", EVALUATION_SEED)
    return check_questions(config, folder, tokenizer, train, held_out, num_found)


def check_questions(
    config: BroRLConfig, model_folder: Path, tokenizer: ChatTokenizer, train: Mixture, held_out: Mixture, num_found: int
) -> list[str]:
    """Log and return what is wrong with the questions of a run, of which `num_found` were found for validation.

    Raises DataError where a finding refuses the run.
    """
    from nemo_brorl.core.model_shape import read_model_shape
    from nemo_brorl.evaluation import input_checks as checks

    for text in checks.epochs_of(train, config.rollouts):
        log.info("%s", text)
    asked = checks.Questions(
        data=config.data,
        evaluation=config.evaluation,
        rollouts=config.rollouts,
        generation=config.generation,
        rewards=config.rewards,
        train=train,
        looked=checks.look_at(train, config.data, tokenizer),
        held_out=checks.look_at(held_out, config.data, tokenizer),
        num_held_out=num_found,
        max_positions=read_model_shape(model_folder).max_positions,
    )
    return _report(chain.from_iterable(check(asked) for check in checks.CHECKS), config)


def check_benchmarks(config: BroRLConfig, benchmarks: Iterable[Benchmark]) -> list[str]:
    """Log and return what is wrong with benchmarks: fewer questions than asked, references that earn nothing.

    Raises DataError where a finding refuses the evaluation.
    """
    from nemo_brorl.evaluation import input_checks as checks

    asked = {part.name: (f"{where}.num_prompts", part.num_prompts) for where, part in config.evaluation.selected()}
    asked = asked or {HELD_OUT: ("evaluation.num_prompts", config.evaluation.num_prompts)}
    wrong: list[checks.Finding] = []
    for benchmark in benchmarks:
        key, num_asked = asked[benchmark.name]
        if num_asked is not None and len(benchmark.prompts) < num_asked:
            wrong.append(checks.Finding(f"{benchmark.name} has {len(benchmark.prompts)} questions, {key}={num_asked}"))
        looked = checks.look_at_prompts(benchmark.prompts[: checks.NUM_QUESTIONS])
        wrong += checks.references_of(looked, config.data, config.rewards)
    return _report(wrong, config)


def _report(wrong: Iterable[Finding], config: BroRLConfig) -> list[str]:
    said, refused = [], []
    for finding in wrong:
        text = hidden(finding.text, config)
        if finding.is_refused:
            refused.append(text)
        else:
            log.warning("%s", text)
            said.append(text)
    if refused:
        raise DataError("; ".join(refused))
    return said
