"""`brorl sft [--config-name NAME] [KEY=VALUE ...]` warms up a small base model on generated demonstrations."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nemo_brorl.commands.run import run_command
from nemo_brorl.config.cross_rules import check_sft_rules
from nemo_brorl.config.derived import sft_precision
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.model_shape import read_model_shape
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.sizes import resolve_sizes, this_machine
from nemo_brorl.core.clock import Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.evaluation.validation import Evaluator, result_header, result_rows
from nemo_brorl.tasks.questions.sources import make_source
from nemo_brorl.training.warm_up.demonstrations import Demonstrations, tokenizer_texts
from nemo_brorl.training.warm_up.initial_model import write_initial_model
from nemo_brorl.training.warm_up.tokenizer import build_tokenizer
from nemo_brorl.training.warm_up.trainer import WarmUpResult, finish, is_cached, warm_up
from nemo_brorl.training.warm_up.worked_sums import Habits

TOKENIZER_QUESTIONS = 4000  # that the small tokenizer learns its merges from
DEMONSTRATION_SEED_OFFSET = 1000  # other questions than those that training begins with


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 done, 2 a mistake in the input, 1 a bug."""
    return run_command("sft", __doc__, argv, sft)


def sft(config: BroRLConfig, line: CommandLine) -> int:
    """Make the small base model, unless the output folder holds one made with the same settings."""
    check_sft_rules(config)
    console, start = Console(), time.monotonic()
    if is_cached(config):
        console.line(f"base model {config.sft.output} is there already, made with these settings")
        return 0
    with tempfile.TemporaryDirectory(prefix="brorl_sft_") as scratch:
        folder = Path(scratch) / "initial"
        num_parameters = prepare_initial_model(config, folder)
        console.line(f"warm-up of a {num_parameters / 1e6:.1f} M parameter Qwen2 on generated demonstrations")
        policy = replace(config.policy, model=str(folder), precision=sft_precision(config))
        output, outcome = warm_up_model(replace(config, policy=policy), folder, console)
    console.table(result_header(outcome.result), result_rows(outcome.result))
    console.line(f"base model {output}: {outcome.num_steps} steps, {time.monotonic() - start:.0f} s in all")
    return 0


def warm_up_model(
    config: BroRLConfig,
    model_folder: Path,
    console: Console,
) -> tuple[Path, WarmUpResult]:
    """Train the initial model in `model_folder`. Returns the finished model's folder, and how it went."""
    from nemo_brorl.commands import wiring  # Ray, Megatron: only where there is something to train

    inputs = wiring.read_inputs(config, model_folder)
    config, _ = resolve_sizes(config, read_model_shape(model_folder), this_machine())
    watch = Stopwatch()
    with wiring.start_actors(config, model_folder, inputs.verifiers, watch) as actors:
        wiring.wait_ready(actors, watch)
        policy = actors.trained_policy()
        sampler = wiring.make_sampler(config, actors, console)
        evaluator = Evaluator(config, inputs.held_out, sampler)
        source = make_source(config.data, "train", config.trainer.seed + DEMONSTRATION_SEED_OFFSET)
        habits = Habits(config.sft.dropped_carry_rate, config.sft.slip_rate) if config.sft.worked_sums else None
        demonstrations = Demonstrations(
            source,
            inputs.tokenizer,
            config.data.system_prompt,
            config.sft.tagged_fraction,
            habits,
        )
        outcome = warm_up(config, demonstrations, policy, actors.generator, evaluator, console)
        return finish(config, policy, outcome), outcome


def prepare_initial_model(config: BroRLConfig, folder: Path) -> int:
    """Write tokenizer and random weights as a Hugging Face folder. Returns the number of parameters."""
    source = make_source(config.data, "train", config.trainer.seed)
    texts = tokenizer_texts(source, TOKENIZER_QUESTIONS, config.data.system_prompt)
    tokenizer = build_tokenizer(texts, config.sft.vocab_size)
    tokenizer.save_pretrained(folder)
    return write_initial_model(
        folder,
        config.sft,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        seed=config.trainer.seed,
    )
