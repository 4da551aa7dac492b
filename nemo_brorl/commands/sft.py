"""`brorl sft data.path=FILE policy.model=FOLDER [--config-name NAME] [KEY=VALUE ...]` fine-tunes a model on
conversations, or makes a small base model on generated demonstrations."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nemo_brorl.cluster.fit.memory import check_memory, check_policy_fits
from nemo_brorl.cluster.fit.sizes import resolve_sizes, this_machine
from nemo_brorl.commands.run import resolve_model, run_command
from nemo_brorl.config.derived import micro_batch_tokens, num_gpus, time_limit_s
from nemo_brorl.config.load import DEFAULT_CONFIG, CommandLine
from nemo_brorl.config.rules import check_demonstrations
from nemo_brorl.config.same_run import with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import SAVED, StopRequest, grace_s
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.metric_sinks import JsonlSink, LoggerSink, MetricFan
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.evaluation.validation import Evaluator, result_header, result_rows
from nemo_brorl.tasks.questions.sources import make_source
from nemo_brorl.training.checkpoint import Checkpoints
from nemo_brorl.training.run_folder import claim_run_folder, locked
from nemo_brorl.training.supervised.chat_files import read_examples
from nemo_brorl.training.supervised.examples import Conversations, Example, stop_ids_of
from nemo_brorl.training.supervised.trainer import Lessons, SftParts, SftTrainer
from nemo_brorl.training.warm_up.demonstrations import Calls, Demonstrations, Habits, tokenizer_texts
from nemo_brorl.training.warm_up.initial_model import CHAT_TEMPLATE, TOOL_TEMPLATE, build_tokenizer, write_initial_model
from nemo_brorl.training.warm_up.trainer import WarmUpResult, fingerprint, finish, is_cached, warm_up

TOKENIZER_QUESTIONS = 4000  # that the small tokenizer learns its merges from
DEMONSTRATION_SEED_OFFSET = 1000  # other questions than those that training begins with
FILES_CONFIG = "sft"  # the YAML for conversations in files


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 75 saved to go on later, 69 something was lost on the way, 2 a mistake in the input, 1 a
    bug."""
    has_files = any(argument.startswith("data.path=") for argument in argv)
    return run_command("sft", __doc__, argv, sft, FILES_CONFIG if has_files else DEFAULT_CONFIG)


def sft(config: BroRLConfig, line: CommandLine) -> int:
    """Fine-tune `policy.model`, or make a small base model, as `sft.base` says."""
    is_generated = config.data.source == "reasoning_gym"
    check_demonstrations(config)
    base = config.sft.base
    if base == "auto":
        base = "new" if is_generated else "policy"
    if base == "policy":
        return fine_tune(config, line)
    if not is_generated:
        raise ConfigError(
            f"sft.base=new learns from generated demonstrations and data.source={config.data.source} reads files: "
            "write sft.base=policy, or data.source=reasoning_gym"
        )
    return make_base(config)


def fine_tune(config: BroRLConfig, line: CommandLine) -> int:
    """Fine-tune `policy.model` on conversations until the last step. Returns the exit code: SAVED when there is more to
    do."""
    console = Console()
    config, model_folder = sized_for_fine_tuning(config, console)
    with locked(Path(config.exp_manager.explicit_log_dir), "brorl sft"):
        return fine_tune_alone(config, line, console, model_folder)


def fine_tune_alone(config: BroRLConfig, line: CommandLine, console: Console, model_folder: Path) -> int:
    """`fine_tune`, with a number for every size, in a run folder that no other driver writes to."""
    from nemo_brorl.commands import wiring  # Ray, Megatron: only for settings that hold

    start = time.monotonic()
    lessons = read_lessons(config, model_folder)
    run_folder = claim_run_folder(config)
    stop = StopRequest(time_limit_s(config), grace_s(os.environ))
    stop.install()
    heartbeat = Heartbeat()
    stalls = StallWatch(heartbeat, run_folder, config.trainer.stall_warning_s, config.trainer.stall_timeout_s)
    rollouts = replace(config.rollouts, temperature=1.0)  # that log-probs of held-out answers are taken at
    with stalls, wiring.policy_alone(replace(config, rollouts=rollouts), heartbeat=heartbeat) as policy:
        from nemo_brorl.commands.nemo_app import open_experiment, run_with_nemo  # six seconds

        experiment = run_with_nemo(line, open_experiment)
        loggers = [LoggerSink(logger) for logger in experiment.loggers]
        with contextlib.closing(MetricFan(loggers)) as sinks:
            checkpoints = Checkpoints(run_folder / "checkpoints", config.trainer.keep_checkpoints)
            parts = SftParts(policy, sinks, checkpoints, console, run_folder)
            trainer = SftTrainer(config, parts, lessons, stop)
            is_resumed = trainer.resume()
            if is_resumed:
                console.line(f"resumed after step {trainer.step_number} of {run_folder}")
            metrics = JsonlSink(run_folder / "metrics.jsonl", trainer.step_number if is_resumed else None)
            sinks.sinks.insert(0, metrics)
            stop.install()  # again: Ray's start and NeMo's import put handlers of their own in place
            console.line(f"ready after {time.monotonic() - start:.1f} s")
            trainer.fit()
    seconds = time.monotonic() - start
    console.line(f"run folder {run_folder}: metrics.jsonl, checkpoints/, hf/ (Hugging Face format); {seconds:.0f} s")
    return SAVED if stop.goes_on_later and trainer.step_number < lessons.num_steps else 0


def sized_for_fine_tuning(config: BroRLConfig, console: Console) -> tuple[BroRLConfig, Path]:
    """The settings with a number for every size of the policy, said in a line each, and the model's folder. Raises
    ModelError, ConfigError or ResourceError where the settings do not fit the model or the machine."""
    if config.data.source == "mixture":
        raise ConfigError("data.source=mixture is for training: `brorl sft` reads one source, write data.source=jsonl")
    folder = resolve_model(config)
    shape = check_policy_fits(config, folder)
    longest = config.sft.max_tokens
    if longest > shape.max_positions:
        raise ConfigError(
            f"sft.max_tokens={longest} is more than the model's {shape.max_positions} positions: write "
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
    config = replace(config, policy=alone.policy)
    budget = micro_batch_tokens(config) * config.policy.context_parallel_size
    if longest > budget:
        raise ConfigError(
            f"sft.max_tokens={longest} is more than a micro-batch holds, policy.tokens_per_micro_batch × "
            f"policy.context_parallel_size = {budget}: raise the latter, or write sft.max_tokens={budget}"
        )
    return config, folder


def read_lessons(config: BroRLConfig, model_folder: Path) -> Lessons:
    """What is learnt in which step, and what is held out. Raises DataError, ModelError."""
    tokenizer = load_tokenizer(model_folder)
    if config.data.source == "reasoning_gym":
        return generated_lessons(config, tokenizer)
    data, settings, seed = config.data, config.sft, config.trainer.seed
    conversations = Conversations(tokenizer, stop_ids_of(tokenizer, model_folder), data.system_prompt)
    found = read_examples(data, settings, conversations)
    epoch_steps = len(found.train) / settings.batch_size
    num_steps = min(settings.max_steps, math.ceil(settings.epochs * epoch_steps))
    num_tokens = sum(example.num_tokens for example in found.train)
    num_learnt = sum(example.num_learnt for example in found.train)
    Console().line(
        f"{found.num_conversations:,} conversations ({len(found.held_out):,} held out, {found.num_left_out:,} left out,"
        f" {found.num_cut:,} cut): {num_tokens:,} tokens, {num_learnt:,} of them learnt; {num_steps:,} steps of "
        f"{settings.batch_size}"
    )
    return Lessons(
        batch=lambda step: found.batch(step, settings.batch_size, seed),
        num_steps=num_steps,
        epoch_steps=epoch_steps,
        held_out=found.held_out[: settings.val_examples],
        fingerprint=found.fingerprint,
    )


def generated_lessons(config: BroRLConfig, tokenizer: ChatTokenizer) -> Lessons:
    """Demonstrations, made without end of train questions. Raises DataError."""
    train = demonstrations_of(config, tokenizer, "train")
    held_out: tuple[Example, ...] = ()
    if config.data.held_out_fraction > 0:
        asked = demonstrations_of(config, tokenizer, "held_out")
        held_out = tuple(asked.batch(0, config.sft.val_examples))
    Console().line(f"demonstrations of generated questions, {config.sft.max_steps:,} steps of {config.sft.batch_size}")
    return Lessons(
        batch=lambda step: train.batch(step, config.sft.batch_size),
        num_steps=config.sft.max_steps,
        epoch_steps=None,
        held_out=held_out,
        fingerprint=fingerprint(config),
    )


def demonstrations_of(config: BroRLConfig, tokenizer: ChatTokenizer, split: str) -> Demonstrations:
    """Right answers to questions of a split, other ones than those that training begins with."""
    source = make_source(config.data, split, config.trainer.seed + DEMONSTRATION_SEED_OFFSET)
    sft = config.sft
    habits = None
    if sft.worked_sums:
        habits = Habits(sft.dropped_carry_rate, sft.slip_rate)
    calls = None
    if sft.calling_rate is not None:
        calls = Calls(sft.calling_rate, sft.slip_rate)
    return Demonstrations(
        source,
        tokenizer,
        config.data.system_prompt,
        sft.tagged_fraction,
        habits,
        calls,
    )


def check_base_is_long_enough(config: BroRLConfig) -> None:
    """The base must hold a prompt and a response. Raises ConfigError."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    if longest > config.sft.max_position_embeddings:
        raise ConfigError(
            f"sft.max_position_embeddings={config.sft.max_position_embeddings} is less than data.max_prompt_tokens + "
            f"rollouts.max_response_tokens = {longest}: write sft.max_position_embeddings={longest} or more"
        )


def make_base(config: BroRLConfig) -> int:
    """Make the small base model, unless the output folder holds one made with the same settings."""
    check_base_is_long_enough(config)
    console, start = Console(), time.monotonic()
    if is_cached(config):
        console.line(f"base model {config.sft.output} is there already, made with these settings")
        return 0
    with tempfile.TemporaryDirectory(prefix="brorl_sft_") as scratch:
        folder = Path(scratch) / "initial"
        num_parameters = prepare_initial_model(config, folder)
        console.line(f"warm-up of a {num_parameters / 1e6:.1f} M parameter Qwen2 on generated demonstrations")
        policy = replace(config.policy, model=str(folder), precision=warm_up_precision(config))
        output, outcome = warm_up_model(replace(config, policy=policy), folder, console)
    console.table(result_header(outcome.result), result_rows(outcome.result))
    console.line(f"base model {output}: {outcome.num_steps} steps, {time.monotonic() - start:.0f} s in all")
    return 0


def warm_up_precision(config: BroRLConfig) -> str:
    """The policy's precision in the warm-up. A processor without bf16 instructions emulates them, slower than fp32."""
    if config.sft.precision != "auto":
        return config.sft.precision
    if num_gpus(config) > 0:
        return "bf16"
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "fp32"
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32"


def warm_up_model(
    config: BroRLConfig,
    model_folder: Path,
    console: Console,
) -> tuple[Path, WarmUpResult]:
    """Train the initial model in `model_folder`. Returns the finished model's folder, and how it went."""
    from nemo_brorl.commands import wiring  # Ray, Megatron: only where there is something to train

    inputs = wiring.read_inputs(config, model_folder)
    config, _ = resolve_sizes(config, read_model_shape(model_folder), this_machine())
    with wiring.ready_actors(config, model_folder, inputs.verifiers) as actors:
        policy = actors.trained_policy()
        sampler = wiring.make_sampler(config, actors, console)
        evaluator = Evaluator(config, inputs.held_out, sampler)
        demonstrations = demonstrations_of(config, inputs.tokenizer, "train")
        outcome = warm_up(config, demonstrations, policy, actors.generator, evaluator, console)
        return finish(config, policy, outcome), outcome


def prepare_initial_model(config: BroRLConfig, folder: Path) -> int:
    """Write tokenizer and random weights as a Hugging Face folder. Returns the number of parameters."""
    source = make_source(config.data, "train", config.trainer.seed)
    texts = tokenizer_texts(source, TOKENIZER_QUESTIONS, config.data.system_prompt)
    has_tools = bool(source.question(0).tools)
    template = TOOL_TEMPLATE if has_tools else CHAT_TEMPLATE
    tokenizer = build_tokenizer(texts, config.sft.vocab_size, template)
    tokenizer.save_pretrained(folder)
    return write_initial_model(
        folder,
        config.sft,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        seed=config.trainer.seed,
    )
