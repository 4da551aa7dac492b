"""`brorl base [--config-name NAME] [KEY=VALUE ...]` makes a small base model from generated demonstrations.

With sft.base=policy it fine-tunes `policy.model` on them instead.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from brorl_lab.bases.demonstrations import Calls, Demonstrations, Habits, tokenizer_texts
from brorl_lab.bases.initial_model import CHAT_TEMPLATE, TOOL_TEMPLATE, build_tokenizer, write_initial_model
from brorl_lab.bases.result_table import result_header, result_rows
from brorl_lab.bases.trainer import WarmUpResult, export_base, fingerprint, is_cached, warm_up
from nemo_brorl.commands.run import run_command
from nemo_brorl.commands.sft import fine_tune
from nemo_brorl.config.load import DEFAULT_CONFIG, CommandLine
from nemo_brorl.config.rules import check_demonstrations
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import resolve_sizes
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.machine import this_machine
from nemo_brorl.core.model_shape import read_model_shape
from nemo_brorl.core.tokenizer import ChatTokenizer, load_tokenizer
from nemo_brorl.evaluation.validation import Evaluator
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.training.supervised.examples import Example
from nemo_brorl.training.supervised.trainer import Lessons

TOKENIZER_QUESTIONS = 4000  # questions from which the small tokenizer learns its merges
DEMONSTRATION_SEED_OFFSET = 1000  # offset that gives other questions than those that training starts with


def main(argv: Sequence[str]) -> int:
    """Run `brorl base` and return the exit code.

    0: done, 75: saved to resume later, 69: a process or node was lost, 2: a mistake in the input, 1: a bug.
    """
    return run_command("base", __doc__, argv, make_or_fine_tune, DEFAULT_CONFIG)


def make_or_fine_tune(config: BroRLConfig, line: CommandLine) -> int:
    """Make a small base model, or fine-tune `policy.model`, as `sft.base` says, and return the exit code.

    Raises ConfigError when `data.source` does not generate questions.
    """
    check_demonstrations(config)
    if config.data.source != "reasoning_gym":
        raise ConfigError(
            f"`brorl base` learns from generated demonstrations and data.source={config.data.source} reads files: "
            "set data.source=reasoning_gym, or run `brorl sft` for conversations in files"
        )
    if config.sft.base == "policy":
        return fine_tune(config, line, generated_lessons)
    return make_base(config)


def generated_lessons(config: BroRLConfig, model_folder: Path) -> Lessons:
    """Return demonstrations of answers to generated questions, enough for all steps of supervised fine-tuning.

    Raises DataError for a question without a single written answer, ModelError when the model's tokenizer cannot be
    loaded.
    """
    tokenizer = load_tokenizer(model_folder, template=config.data.template)
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
    """Return demonstrations of answers to other generated questions than those that RL training starts with."""
    source = make_source(config.data, split, config.trainer.seed + DEMONSTRATION_SEED_OFFSET)
    asked = config.sft.demonstrations
    habits = None
    if asked.worked_sums:
        habits = Habits(asked.dropped_carry_rate, asked.slip_rate)
    calls = None
    if asked.calling_rate is not None:
        calls = Calls(asked.calling_rate, asked.slip_rate)
    return Demonstrations(
        source,
        tokenizer,
        config.data.system_prompt,
        asked.tagged_fraction,
        habits,
        calls,
    )


def check_base_is_long_enough(config: BroRLConfig) -> None:
    """Raise ConfigError when the base model's context is too short for the longest prompt and response together."""
    longest = config.data.max_prompt_tokens + config.rollouts.max_response_tokens
    positions = config.sft.new.max_position_embeddings
    if longest > positions:
        raise ConfigError(
            f"sft.new.max_position_embeddings={positions} is less than data.max_prompt_tokens + "
            f"rollouts.max_response_tokens = {longest}: set sft.new.max_position_embeddings={longest} or more"
        )


def make_base(config: BroRLConfig) -> int:
    """Train a small base model from random weights, unless the output folder holds one made with the same settings.

    Returns the exit code.
    """
    check_base_is_long_enough(config)
    console, start = Console(), time.monotonic()
    if is_cached(config):
        console.line(f"base model {config.sft.new.output} is there already, made with these settings")
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
    """Return the precision (bf16 or fp32) in which a small base model is trained on demonstrations.

    A processor without bf16 instructions emulates them, which is slower than fp32.
    """
    if config.sft.new.precision != "auto":
        return config.sft.new.precision
    if config.trainer.num_gpus > 0:
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
    """Train the initial model in `model_folder` on demonstrations, and return the trained model's folder and result."""
    from nemo_brorl.commands import wiring  # Ray, Megatron: imported only for training

    inputs = wiring.read_inputs(config, model_folder)
    config, _ = resolve_sizes(config, read_model_shape(model_folder), this_machine())
    with wiring.ready_actors(config, model_folder, inputs.verifiers) as actors:
        policy = actors.trained_policy()
        sampler = wiring.make_sampler(config, actors, console)
        evaluator = Evaluator(config.evaluation, config.rollouts, inputs.held_out, sampler)
        demonstrations = demonstrations_of(config, inputs.tokenizer, "train")
        outcome = warm_up(config, demonstrations, policy, actors.generator, evaluator, console)
        return export_base(config, policy, outcome), outcome


def prepare_initial_model(config: BroRLConfig, folder: Path) -> int:
    """Write a tokenizer and random weights as a Hugging Face folder, and return the number of parameters."""
    source = make_source(config.data, "train", config.trainer.seed)
    texts = tokenizer_texts(source, TOKENIZER_QUESTIONS, config.data.system_prompt)
    has_tools = bool(source.question(0).tools)
    template = TOOL_TEMPLATE if has_tools else CHAT_TEMPLATE
    tokenizer = build_tokenizer(texts, config.sft.new.vocab_size, template)
    tokenizer.save_pretrained(folder)
    return write_initial_model(
        folder,
        config.sft.new,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        seed=config.trainer.seed,
    )
