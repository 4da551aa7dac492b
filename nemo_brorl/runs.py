"""What each command does, from a checked configuration to the last table."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from nemo_brorl.checkpoint import Checkpoints
from nemo_brorl.clock import Stopwatch
from nemo_brorl.config.derived import sft_precision
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.console import Console
from nemo_brorl.errors import CheckpointError
from nemo_brorl.evaluation import Evaluator, result_header, result_rows
from nemo_brorl.prompts.sources import make_source
from nemo_brorl.report_tables import change_rows, sampling_line, time_rows
from nemo_brorl.sampling import Sampler
from nemo_brorl.sinks import read_metrics
from nemo_brorl.warm_up.demonstrations import Demonstrations, tokenizer_texts
from nemo_brorl.warm_up.initial_model import write_initial_model
from nemo_brorl.warm_up.tokenizer import build_tokenizer
from nemo_brorl.warm_up.trainer import finish, is_cached, warm_up
from nemo_brorl.wiring import Launch, converting, evaluating, launching, read_inputs, ready_trainer, start_actors, wait_ready

TOKENIZER_QUESTIONS = 4000  # that the small tokenizer learns its merges from
DEMONSTRATION_SEED_OFFSET = 1000  # other questions than those that training begins with


def train(config: BroRLConfig, line: CommandLine) -> None:
    """Train, validate, save; print a line per step and the tables at the end."""
    console, start = Console(), time.monotonic()
    with launching(config, console) as launch:
        with launch.watch.measure("nemo"):
            from nemo_brorl.nemo_app import run_with_nemo  # six seconds of imports, while the actors start

        run_with_nemo(line, lambda composed: fit(composed, launch, start))
    print_summary(console, launch.run_folder, time.monotonic() - start)


def fit(config: BroRLConfig, launch: Launch, start: float) -> None:
    """The part of a run inside NeMo's runner: loggers, then the trainer."""
    from nemo_brorl.nemo_app import open_experiment

    with launch.watch.measure("nemo"):
        experiment = open_experiment(config)
    with ready_trainer(config, launch, experiment.loggers) as trainer:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in launch.watch.seconds.items())
        launch.console.line(f"ready after {time.monotonic() - start:.1f} s ({parts})")
        trainer.fit()


def print_summary(console: Console, run_folder: Path, seconds: float) -> None:
    """The tables at the end of a run."""
    rows = read_metrics(run_folder / "metrics.jsonl")
    validations = [row for row in rows if "validation/pass_at_1" in row]
    console.line()
    console.table(["held-out pass@1", "before", "after", "change", "constant answer"], change_rows(validations[0], validations[-1]))
    console.line()
    console.table(["time by stage", "seconds", "share"], time_rows(rows))
    console.line()
    console.line(f"sampling: {sampling_line(rows)}")
    console.line(f"run folder {run_folder}: metrics.jsonl, checkpoints/, hf/ (best weights, Hugging Face format); {seconds:.0f} s in all")


def evaluate(config: BroRLConfig, line: CommandLine) -> None:
    """Print pass@1 by task of `policy.model`, and leave it as JSON in the run folder."""
    console = Console()
    with evaluating(config, console) as evaluator:
        result = evaluator.evaluate("evaluate")
    console.table(result_header(result), result_rows(result))
    folder = Path(config.exp_manager.explicit_log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps({"model": config.policy.model, **asdict(result)}, indent=1))


def convert(config: BroRLConfig, line: CommandLine) -> None:
    """Write the weights of a checkpoint as a Hugging Face folder."""
    console, start = Console(), time.monotonic()
    checkpoint, output = conversion(config)
    with converting(config) as policy:
        policy.load(checkpoint / "policy")
        policy.export(output)
    console.line(f"{checkpoint} written to {output} in {time.monotonic() - start:.0f} s")


def conversion(config: BroRLConfig) -> tuple[Path, Path]:
    """Which checkpoint is converted, and where to. Raises CheckpointError when it is not there, or when the output is."""
    run_folder = Path(config.exp_manager.explicit_log_dir)
    folder = Path(config.convert.checkpoint) if config.convert.checkpoint else run_folder / "checkpoints"
    if config.convert.checkpoint:
        complete = [found for found in Checkpoints(folder.parent, 1).complete() if found.name == folder.name]
    else:
        complete = Checkpoints(folder, 1).complete()
    if not complete:
        raise CheckpointError(f"{folder} holds no complete checkpoint: write convert.checkpoint=RUN/checkpoints/step_K")
    output = Path(config.convert.output) if config.convert.output else run_folder / f"hf_{complete[0].name}"
    if output.exists() and any(output.iterdir()):
        raise CheckpointError(f"convert.output={output} is there and not empty: delete it or write another folder")
    return complete[0], output


def sft(config: BroRLConfig, line: CommandLine) -> None:
    """Make the small base model, unless the output folder holds one made with the same settings."""
    console, start = Console(), time.monotonic()
    if is_cached(config):
        console.line(f"base model {config.sft.output} is there already, made with these settings")
        return
    with tempfile.TemporaryDirectory(prefix="brorl_sft_") as scratch:
        folder = Path(scratch) / "initial"
        num_parameters = prepare_initial_model(config, folder)
        console.line(f"warm-up of a {num_parameters / 1e6:.1f} M parameter Qwen2 on generated demonstrations")
        config = replace(config, policy=replace(config.policy, model=str(folder), precision=sft_precision(config)))
        inputs = read_inputs(config, folder)
        with start_actors(config, inputs, with_policy=True, watch=Stopwatch()) as actors:
            wait_ready(actors, Stopwatch())
            assert actors.policy is not None, "start_actors was asked for a policy"
            sampler = Sampler(actors.generator, actors.verifier, console, config.rollouts.chunk_size, config.trainer.seed)
            evaluator = Evaluator(config, inputs.held_out, sampler)
            source = make_source(config.data, "train", config.trainer.seed + DEMONSTRATION_SEED_OFFSET)
            demonstrations = Demonstrations(source, inputs.tokenizer, config.data.system_prompt, config.sft.tagged_fraction)
            outcome = warm_up(config, demonstrations, actors.policy, actors.generator, evaluator, console)
            output = finish(config, actors.policy, outcome)
    console.table(result_header(outcome.result), result_rows(outcome.result))
    console.line(f"base model {output}: {outcome.num_steps} steps, {time.monotonic() - start:.0f} s in all")


def prepare_initial_model(config: BroRLConfig, folder: Path) -> int:
    """Tokenizer and random weights as a Hugging Face folder. Returns the number of parameters."""
    source = make_source(config.data, "train", config.trainer.seed)
    tokenizer = build_tokenizer(tokenizer_texts(source, TOKENIZER_QUESTIONS, config.data.system_prompt), config.sft.vocab_size)
    tokenizer.save_pretrained(folder)
    eos_id, pad_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return write_initial_model(folder, config.sft, eos_id=eos_id, pad_id=pad_id, seed=config.trainer.seed)
