"""`brorl sft data.path=FILE policy.model=FOLDER [KEY=VALUE ...]` fine-tunes a model on conversations in files."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.commands.run import resolve_model, run_command, with_template_date
from nemo_brorl.commands.trackers import LoggerSink, MetricFan
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.memory import check_memory
from nemo_brorl.config.model_rules import check_policy_fits
from nemo_brorl.config.rules import check_demonstrations
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.same_run import check_same_run, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import resolve_sizes
from nemo_brorl.config.unread import SFT
from nemo_brorl.core.clock import StopRequest, grace_s
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.lock import locked
from nemo_brorl.core.machine import this_machine
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.core.start_report import StartReport
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.core.weight_files import check_model_files
from nemo_brorl.prompts.prompt_check import check_stop_tokens
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.finished_run import finished_line, saved_state
from nemo_brorl.training.records import JsonlSink
from nemo_brorl.training.run_folder import claim_run_folder, open_log
from nemo_brorl.training.supervised.chat_files import read_examples
from nemo_brorl.training.supervised.conversations import Conversations
from nemo_brorl.training.supervised.trainer import Lessons, SftParts, SftTrainer, check_same_lessons

FILES_CONFIG = "sft"  # the YAML for conversations in files

# Returns the training data for the settings, tokenised with the tokenizer in the model's folder.
ReadLessons = Callable[[BroRLConfig, Path], Lessons]


def main(argv: Sequence[str]) -> int:
    """Run `brorl sft` and return its exit code.

    0 done, 75 saved and to be resumed later, 130 ended by you before its last step, 69 a process or node was lost, 2 a
    mistake in the input, 1 a bug.
    """
    return run_command("sft", __doc__, argv, sft, FILES_CONFIG)


def sft(config: BroRLConfig, line: CommandLine) -> int:
    """Fine-tune `policy.model` on the conversations of `data.path`, and return the exit code.

    Raises ConfigError if the settings read no files.
    """
    check_demonstrations(config)
    if config.data.source == "reasoning_gym":
        raise ConfigError(
            "data.source=reasoning_gym has questions and `brorl sft` learns from conversations in files: set "
            "data.source=jsonl data.path=FILE; `brorl base` makes demonstrations of generated questions"
        )
    if config.sft.base == "new":
        raise ConfigError(
            "sft.base=new makes a model on generated demonstrations, which `brorl base` does; `brorl sft` fine-tunes "
            "policy.model: set sft.base=policy"
        )
    check_inputs(config, line, SFT)
    return fine_tune(config, line, read_lessons)


def fine_tune(config: BroRLConfig, line: CommandLine, read: ReadLessons) -> int:
    """Fine-tune `policy.model` on the examples that the function `read` returns, and return the exit code.

    With steps left, the code is SAVED if the run will be resumed by itself, and INTERRUPTED if a user ended it.
    """
    console = Console()
    run_folder = Path(config.exp_manager.explicit_log_dir)
    with StartReport(console) as report:
        config, model_folder = sized_for_fine_tuning(config, console)
        with locked(run_folder, "brorl sft"):
            with report.measure("inputs"):
                lessons = read(config, model_folder)
            finished = finished_line(run_folder, lessons.num_steps)
            if finished is not None and check_same_run(config):
                checkpoints = run_folder / "checkpoints"
                check_same_lessons(checkpoints, saved_state(checkpoints)["trained_on"], config, lessons)
                console.line(finished)
                return 0
            return fine_tune_alone(config, line, lessons, report)


def fine_tune_alone(config: BroRLConfig, line: CommandLine, lessons: Lessons, watch: StartReport) -> int:
    """Run supervised fine-tuning in a run folder that the caller has locked, and return the exit code.

    The settings already have a number for every automatic size, such as ranks and micro-batches.
    """
    start, console = time.monotonic(), watch.console
    with watch.measure("imports"), quick_imports():
        from nemo_brorl.commands import wiring  # imports Ray and Megatron, so only for valid settings
    run_folder = claim_run_folder(config, resolve_model(config))
    open_log(run_folder, console)
    stop = StopRequest(config.trainer.time_limit_s, grace_s(os.environ))
    heartbeat = Heartbeat()
    limits, start_s = config.trainer, RunSizes.from_config(config).start_timeout_s
    stalls = StallWatch(heartbeat, run_folder, limits.stall_warning_s, limits.stall_timeout_s, start_s)
    watch.on_cut = stalls.note_cut
    rollouts = replace(config.rollouts, temperature=1.0)  # temperature of the validation log-probs
    starting = wiring.policy_alone(replace(config, rollouts=rollouts), heartbeat=heartbeat, watch=watch)
    with stalls, starting as policy:
        with watch.measure("nemo"):
            from nemo_brorl.commands.nemo_app import open_experiment, run_with_nemo  # takes four seconds

            experiment = run_with_nemo(line, open_experiment)
        loggers = [LoggerSink(logger) for logger in experiment.loggers]
        with contextlib.closing(MetricFan(loggers)) as sinks:
            checkpoints = Checkpoints(run_folder / "checkpoints", config.trainer.keep_checkpoints)
            parts = SftParts(policy, sinks, checkpoints, console, run_folder)
            trainer = SftTrainer(config, parts, lessons, stop)
            with watch.measure("resume"):
                is_resumed = trainer.resume()
            if is_resumed:
                console.line(f"resumed after step {trainer.step_number} of {run_folder}")
            metrics = JsonlSink(run_folder / "metrics.jsonl", trainer.step_number if is_resumed else None)
            sinks.sinks.insert(0, metrics)
            watch.close()
            stop.install()
            stalls.mark_started()
            console.line(f"ready after {time.monotonic() - start:.0f} s ({watch.summary()})")
            trainer.fit()
    seconds = time.monotonic() - start
    console.line(f"run folder {run_folder}: metrics.jsonl, checkpoints/, hf/ (Hugging Face format); {seconds:.0f} s")
    return stop.exit_code(is_over=trainer.step_number >= lessons.num_steps)


def sized_for_fine_tuning(config: BroRLConfig, console: Console) -> tuple[BroRLConfig, Path]:
    """Return the settings with all automatic sizes of the policy (ranks, micro-batches) chosen, and the model's folder.

    Prints each chosen size. Raises ModelError, ConfigError or ResourceError when the settings do not fit the model or
    the machine.
    """
    if config.data.source == "mixture":
        raise ConfigError("data.source=mixture is for training: `brorl sft` reads one source, set data.source=jsonl")
    folder = resolve_model(config)
    check_model_files(folder)
    shape = check_policy_fits(config.policy, folder, config.trainer.num_gpus > 0)
    longest = config.sft.max_tokens
    if longest > shape.max_positions:
        raise ConfigError(
            f"sft.max_tokens={longest} is more than the model's {shape.max_positions} positions: set "
            f"sft.max_tokens={shape.max_positions}"
        )
    alone = replace(
        config,
        generation=replace(config.generation, num_engines=0),
        data=replace(config.data, max_prompt_tokens=1),
        rollouts=replace(config.rollouts, max_response_tokens=longest - 1),
    )
    alone, sizes = resolve_sizes(with_sizes_of_run(alone), shape, this_machine())
    for size in sizes:
        if size.setting.startswith("policy."):
            console.line(f"chosen: {size}")
    check_memory(alone, folder=folder)
    alone = with_template_date(alone, folder, console)
    written = replace(config.data, template_date=alone.data.template_date)
    config = replace(config, policy=alone.policy, trainer=alone.trainer, data=written)
    budget = RunSizes.from_config(config).row_tokens
    if longest > budget:
        raise ConfigError(
            f"sft.max_tokens={longest} is more than a micro-batch holds, policy.tokens_per_micro_batch × "
            f"policy.context_parallel_size = {budget}: raise the latter, or set sft.max_tokens={budget}"
        )
    return config, folder


def read_lessons(config: BroRLConfig, model_folder: Path) -> Lessons:
    """Read the conversations for supervised fine-tuning, and return each step's batch and the held-out examples.

    Raises DataError or ModelError.
    """
    tokenizer = load_tokenizer(model_folder, template=config.data.template)
    check_stop_tokens(tokenizer, model_folder)
    data, settings, seed = config.data, config.sft, config.trainer.seed
    conversations = Conversations(tokenizer, tokenizer.with_stops(config.rollouts.stop_tokens), data.system_prompt)
    examples = read_examples(data, settings, conversations)
    epoch_steps = len(examples.train) / settings.batch_size
    num_steps = min(settings.max_steps, math.ceil(settings.epochs * epoch_steps))
    num_tokens = sum(example.num_tokens for example in examples.train)
    num_trained_tokens = sum(example.num_trained_tokens for example in examples.train)
    Console().line(
        f"{examples.num_conversations:,} conversations ({len(examples.held_out):,} held out, "
        f"{examples.num_left_out:,} left out, {examples.num_cut:,} cut): {num_tokens:,} tokens, "
        f"{num_trained_tokens:,} of them trained on; {num_steps:,} steps of {settings.batch_size}"
    )
    return Lessons(
        batch=lambda step: examples.batch(step, settings.batch_size, seed),
        num_steps=num_steps,
        epoch_steps=epoch_steps,
        held_out=examples.held_out[: settings.val_examples],
        fingerprint=examples.fingerprint,
    )
