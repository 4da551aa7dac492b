"""What each command does, from a checked configuration to the last table."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_brorl.commands.wiring import (
    EvaluationInputs,
    Launch,
    converting,
    evaluating,
    launching,
    read_evaluation_inputs,
    read_inputs,
    ready_trainer,
    start_actors,
    wait_ready,
)
from nemo_brorl.config.derived import sft_precision, time_limit_s
from nemo_brorl.config.evaluation_rules import STEP, run_of
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.clock import SAVED, StopRequest, Stopwatch
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.metric_sinks import read_metrics
from nemo_brorl.evaluation.answers import AnswerFile, identity_of, nearest_other, weights_digest
from nemo_brorl.evaluation.asking import SampleFile, ask, missing
from nemo_brorl.evaluation.comparison import read_other
from nemo_brorl.evaluation.results import as_json, folder_of, results_of, write
from nemo_brorl.evaluation.tables import comparison_table, markdown, score_table
from nemo_brorl.evaluation.validation import Evaluator, result_header, result_rows
from nemo_brorl.rollouts.sampler import Sampler
from nemo_brorl.tasks.questions.sources import make_source
from nemo_brorl.training.export import convert_into, empty, is_converted, newest_checkpoint
from nemo_brorl.training.tables import change_rows, sampling_line, time_rows
from nemo_brorl.training.warm_up.demonstrations import Demonstrations, tokenizer_texts
from nemo_brorl.training.warm_up.initial_model import write_initial_model
from nemo_brorl.training.warm_up.tokenizer import build_tokenizer
from nemo_brorl.training.warm_up.trainer import finish, is_cached, warm_up

TOKENIZER_QUESTIONS = 4000  # that the small tokenizer learns its merges from
DEMONSTRATION_SEED_OFFSET = 1000  # other questions than those that training begins with


def train(config: BroRLConfig, line: CommandLine) -> int:
    """Train, validate, save; print a line per step and the tables at the end. Returns the exit code: SAVED when there
    is more to do."""
    console, start, codes = Console(), time.monotonic(), list[int]()
    with launching(config, console) as launch:
        with launch.watch.measure("nemo"):
            from nemo_brorl.commands.nemo_app import run_with_nemo  # six seconds of imports, while the actors start

        run_with_nemo(line, lambda composed: codes.append(fit(composed, launch, start)))
    print_summary(console, launch.run_folder, time.monotonic() - start)
    return codes[0]


def fit(config: BroRLConfig, launch: Launch, start: float) -> int:
    """The part of a run inside NeMo's runner: loggers, then the trainer. Returns the exit code."""
    from nemo_brorl.commands.nemo_app import open_experiment

    with launch.watch.measure("nemo"):
        experiment = open_experiment(config)
    with ready_trainer(config, launch, experiment.loggers) as trainer:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in launch.watch.seconds.items())
        launch.console.line(f"ready after {time.monotonic() - start:.1f} s ({parts})")
        trainer.fit()
        return SAVED if launch.stop.goes_on_later and trainer.step_number < config.trainer.max_steps else 0


def print_summary(console: Console, run_folder: Path, seconds: float) -> None:
    """The tables at the end of a run."""
    rows = read_metrics(run_folder / "metrics.jsonl")
    validations = [row for row in rows if "validation/pass_at_1" in row]
    if not validations:
        return  # stopped before the first one
    console.line()
    console.table(
        ["held-out pass@1", "before", "after", "change", "constant answer"],
        change_rows(validations[0], validations[-1]),
    )
    console.line()
    console.table(["time by stage", "seconds", "share"], time_rows(rows))
    console.line()
    console.line(f"sampling: {sampling_line(rows)}")
    console.line(
        f"run folder {run_folder}: metrics.jsonl, checkpoints/, hf/ (best weights, Hugging Face format); "
        f"{seconds:.0f} s in all"
    )


def evaluate(config: BroRLConfig, line: CommandLine) -> int:
    """Ask the benchmarks, or the held-out prompts; print the tables and leave them as JSON and Markdown in the run
    folder.

    What was answered before, under the same weights and settings, is not asked again; where nothing is left to ask, no
    engine starts. Returns the exit code: SAVED when who asked to stop will start it again.
    """
    console, settings, stop = Console(), config.evaluation, StopRequest(time_limit_s(config))
    inputs = read_evaluation_inputs(config)
    benchmarks = inputs.benchmarks
    other = read_other(Path(settings.compare_with), benchmarks) if settings.compare_with else None
    if settings.checkpoint:
        inputs = replace(inputs, model_folder=converted_checkpoint(config, Path(settings.checkpoint), console))
    output = Path(settings.output or config.exp_manager.explicit_log_dir)
    weights = weights_digest(inputs.model_folder)
    with contextlib.ExitStack() as stack:
        files = {
            benchmark.name: stack.enter_context(answer_file(output, identity_of(config, weights, benchmark), console))
            for benchmark in benchmarks
        }
        folder = folder_of(output, inputs.model_folder, files)
        if not sample_missing(config, inputs, files, folder, console, stop):
            console.line(
                f"stopped: what was answered is in {output / 'evaluations'}; the same command goes on from there"
            )
            if stop.goes_on_later:
                return SAVED
            raise KeyboardInterrupt
        results = results_of(settings.checkpoint or config.policy.model, benchmarks, files, settings, other)
        record = as_json(results, benchmarks, files, settings)
    write(output, folder, record, markdown(results, record))
    tables = {
        f"{results.model}:": score_table(results, settings.confidence),
        f"against {results.other}:": comparison_table(results.comparison),
    }
    for title, rows in tables.items():
        if rows:
            console.line(title)
            console.table(rows[0], rows[1:])
            console.line()
    console.line(f"{output / 'evaluation.json'}, evaluation.md; a copy in {folder}")
    return 0


def sample_missing(
    config: BroRLConfig,
    inputs: EvaluationInputs,
    files: Mapping[str, AnswerFile],
    folder: Path,
    console: Console,
    stop: StopRequest,
) -> bool:
    """Ask what has no answers yet. False: told to stop before all of it had."""
    left = {benchmark.name: len(missing(benchmark, files[benchmark.name])) for benchmark in inputs.benchmarks}
    for benchmark in inputs.benchmarks:
        if left[benchmark.name] < len(benchmark.prompts):
            done, path = len(benchmark.prompts) - left[benchmark.name], files[benchmark.name].path
            console.line(f"{benchmark.name}: {done} of {len(benchmark.prompts)} prompts were answered before ({path})")
    if not any(left.values()):
        return True
    num = config.evaluation.save_samples
    samples = SampleFile(folder / "samples.jsonl", num, inputs.tokenizer.decode) if num else None
    with evaluating(config, inputs, console) as sampler:
        stop.install()  # here: Ray's start puts handlers of its own in place
        return ask(inputs.benchmarks, files, sampler, stop, samples)


def answer_file(output: Path, identity: Mapping[str, Any], console: Console) -> AnswerFile:
    """Where the answers to a benchmark are kept; says so when those that are there are of other settings."""
    folder = output / "evaluations" / "answers"
    file = AnswerFile(folder, identity)
    if not file.path.exists() and (text := nearest_other(folder, identity)):
        console.line(f"{identity['benchmark']}: {text}: it stays as it is, and {file.path.name} is begun")
    return file


def converted_checkpoint(config: BroRLConfig, given: Path, console: Console) -> Path:
    """The Hugging Face folder of a checkpoint, or of a run's newest one; made once and kept in its run folder. Raises
    CheckpointError."""
    run_folder = run_of(given)
    checkpoint = newest_checkpoint(
        given if STEP.fullmatch(given.name) else run_folder / "checkpoints", "evaluation.checkpoint"
    )
    output = run_folder / f"hf_{checkpoint.name}"
    if is_converted(checkpoint, output):
        console.line(f"{checkpoint} was converted before: {output}")
        return output
    if output.exists() and any(output.iterdir()):
        raise CheckpointError(
            f"{output} is there and was not made of {checkpoint} as it is now: delete it, or write "
            f"policy.model={output}"
        )
    write_converted(config, checkpoint, output)
    console.line(f"{checkpoint} written to {output}")
    return output


def convert(config: BroRLConfig, line: CommandLine) -> None:
    """Write the weights of a checkpoint as a Hugging Face folder."""
    console, start = Console(), time.monotonic()
    checkpoint, output = conversion(config)
    write_converted(config, checkpoint, output)
    console.line(f"{checkpoint} written to {output} in {time.monotonic() - start:.0f} s")


def conversion(config: BroRLConfig) -> tuple[Path, Path]:
    """Which checkpoint is converted, and where to. Raises CheckpointError when it is not there, or when the output
    is."""
    run_folder = Path(config.exp_manager.explicit_log_dir)
    checkpoint = newest_checkpoint(Path(config.convert.checkpoint or run_folder / "checkpoints"), "convert.checkpoint")
    output = Path(config.convert.output) if config.convert.output else run_folder / f"hf_{checkpoint.name}"
    return checkpoint, empty(output, "convert.output")


def write_converted(config: BroRLConfig, checkpoint: Path, output: Path) -> None:
    """A checkpoint's weights as a Hugging Face folder, through the policy's ranks."""
    with converting(config) as policy:
        policy.load(checkpoint / "policy")
        convert_into(checkpoint, output, policy.export)


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
            sampler = Sampler(
                actors.generator, actors.verifier, console, config.rollouts.chunk_size, config.trainer.seed
            )
            evaluator = Evaluator(config, inputs.held_out, sampler)
            source = make_source(config.data, "train", config.trainer.seed + DEMONSTRATION_SEED_OFFSET)
            demonstrations = Demonstrations(
                source, inputs.tokenizer, config.data.system_prompt, config.sft.tagged_fraction
            )
            outcome = warm_up(config, demonstrations, actors.policy, actors.generator, evaluator, console)
            output = finish(config, actors.policy, outcome)
    console.table(result_header(outcome.result), result_rows(outcome.result))
    console.line(f"base model {output}: {outcome.num_steps} steps, {time.monotonic() - start:.0f} s in all")


def prepare_initial_model(config: BroRLConfig, folder: Path) -> int:
    """Tokenizer and random weights as a Hugging Face folder. Returns the number of parameters."""
    source = make_source(config.data, "train", config.trainer.seed)
    tokenizer = build_tokenizer(
        tokenizer_texts(source, TOKENIZER_QUESTIONS, config.data.system_prompt), config.sft.vocab_size
    )
    tokenizer.save_pretrained(folder)
    eos_id, pad_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return write_initial_model(folder, config.sft, eos_id=eos_id, pad_id=pad_id, seed=config.trainer.seed)
