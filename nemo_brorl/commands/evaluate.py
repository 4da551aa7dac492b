"""`brorl evaluate policy.model=FOLDER [KEY=VALUE ...]` measures pass@1, pass@k and majority@k on benchmarks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_brorl.commands.check_inputs import check_benchmarks, check_inputs
from nemo_brorl.commands.convert import write_converted
from nemo_brorl.commands.run import run_command, sized
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.same_run import RECORD, recorded_settings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.config.unread import EVALUATE
from nemo_brorl.core.clock import StopRequest
from nemo_brorl.core.console import Console
from nemo_brorl.core.errors import CheckpointError
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.core.start_report import StartReport
from nemo_brorl.core.tokenizer import load_tokenizer
from nemo_brorl.evaluation.answers import AnswerFile, nearest_other
from nemo_brorl.evaluation.asking import sample_prompts, unanswered_prompts
from nemo_brorl.evaluation.benchmarks import Benchmark, read_benchmarks
from nemo_brorl.evaluation.identity import identity_of, weights_digest
from nemo_brorl.evaluation.results import as_json, folder_of, results_of, write
from nemo_brorl.evaluation.sample_file import SampleFile
from nemo_brorl.evaluation.tables import markdown, score_table
from nemo_brorl.prompts.prompt_check import check_prompts
from nemo_brorl.scoring.preparation import prepare_sandbox
from nemo_brorl.training.export import is_converted, newest_checkpoint

STEP = re.compile(r"step_\d+")  # matches the name of a checkpoint folder


def main(argv: Sequence[str]) -> int:
    """Run `brorl evaluate` and return its exit code.

    0 done, 75 stopped and to be resumed later, 2 a mistake in the input, 1 a bug.
    """
    return run_command("evaluate", __doc__, argv, evaluate)


def evaluate(config: BroRLConfig, line: CommandLine) -> int:
    """Evaluate a model on the benchmarks, or on the held-out prompts, and return the exit code.

    Prints the table of results and writes it as JSON and Markdown. Prompts that an earlier evaluation answered with the
    same weights and settings are not sampled again, and no engine starts if no prompt is left. Returns the code SAVED
    if the process that asked the evaluation to stop (such as a Slurm job near its time limit) will start it again.
    """
    check_names(config, is_trained=False)
    check_inputs(config, line, EVALUATE)
    config = with_model_of_checkpoint(config)
    console = Console()
    config, model_folder = sized(config, console, with_policy=config.evaluation.checkpoint is not None)
    settings = config.evaluation
    stop = StopRequest(config.trainer.time_limit_s)
    tokenizer = load_tokenizer(model_folder, template=config.data.template)
    benchmarks = read_benchmarks(config.evaluation, config.data, config.rollouts, tokenizer)
    for benchmark in benchmarks:
        check_prompts(tokenizer, model_folder, benchmark.prompts, config.data, config.rollouts)
    prepare_sandbox(config.rewards, all_verifiers(benchmarks))
    check_benchmarks(config, benchmarks)
    if settings.checkpoint:
        model_folder = converted_checkpoint(config, Path(settings.checkpoint), console)
    output = Path(settings.output or config.exp_manager.explicit_log_dir)
    weights = weights_digest(model_folder)
    with contextlib.ExitStack() as stack:
        files = {}
        for benchmark in benchmarks:
            identity = identity_of(benchmark, config.rewards, weights, config.generation.precision, config.trainer.seed)
            files[benchmark.name] = stack.enter_context(answer_file(output, identity, console))
        folder = folder_of(output, model_folder, files)
        samples = None
        if settings.save_samples:
            samples = SampleFile(folder / "samples.jsonl", settings.save_samples, tokenizer.decode)
        if not sample_missing(config, model_folder, benchmarks, files, samples, stop, console):
            answers = output / "evaluations"
            console.line(f"stopped: the answers so far are in {answers}; the same command resumes")
            return stop.exit_code(is_over=False)
        model = settings.checkpoint or config.policy.model
        results = results_of(model, benchmarks, files, settings)
        record = as_json(results, benchmarks, files, settings)
    write(output, folder, record, markdown(results, record))
    header, *rows = score_table(results, settings.confidence)
    console.line(f"{results.model}:")
    console.table(header, rows)
    console.line()
    console.line(f"{output / 'evaluation.json'}, evaluation.md; a copy in {folder}")
    return 0


def with_model_of_checkpoint(config: BroRLConfig) -> BroRLConfig:
    """Return the settings with the model that the run of `evaluation.checkpoint` started with.

    The checkpoint has that model's layers and tokenizer. Raises CheckpointError when there is no checkpoint.
    """
    if config.evaluation.checkpoint is None:
        return config
    checkpoint = Path(config.evaluation.checkpoint)
    folder, has_checkpoint = checkpoint, checkpoint.is_dir()
    if not STEP.fullmatch(checkpoint.name):
        folder = run_of(checkpoint) / "checkpoints"
        has_checkpoint = any(STEP.fullmatch(path.name) for path in folder.glob("*"))
    if not has_checkpoint:
        raise CheckpointError(
            f"evaluation.checkpoint={checkpoint}: there is no checkpoint in {folder}; set a run folder or "
            "RUN/checkpoints/step_K, or policy.model=FOLDER for a Hugging Face model"
        )
    try:
        model = recorded_settings(run_of(checkpoint) / RECORD)["policy.model"]
    except (CheckpointError, KeyError):
        return config  # the checkpoint was moved away from its run, so policy.model names its model
    if "${" in str(model):
        return config  # the variable may have another value here, so policy.model names the model
    return replace(config, policy=replace(config.policy, model=model))


def run_of(checkpoint: Path) -> Path:
    """Return the run folder of a checkpoint path: RUN, RUN/checkpoints or RUN/checkpoints/step_K.

    For a checkpoint outside such a folder, return the folder that contains it.
    """
    checkpoint = checkpoint.absolute()
    if (checkpoint / "checkpoints").is_dir():
        return checkpoint
    folder = checkpoint.parent if STEP.fullmatch(checkpoint.name) else checkpoint
    return folder.parent if folder.name == "checkpoints" else folder


def all_verifiers(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Return the names of all verifiers that score the benchmarks."""
    names: set[str] = set()
    for benchmark in benchmarks:
        names.update(benchmark.verifiers)
    return sorted(names)


def sample_missing(
    config: BroRLConfig,
    model_folder: Path,
    benchmarks: Sequence[Benchmark],
    files: Mapping[str, AnswerFile],
    samples: SampleFile | None,
    stop: StopRequest,
    console: Console,
) -> bool:
    """Sample answers to the benchmarks' prompts that have none yet, and return False if a stop interrupted that."""
    is_complete = True
    for benchmark in benchmarks:
        file = files[benchmark.name]
        num_left = len(unanswered_prompts(benchmark, file))
        num_done = len(benchmark.prompts) - num_left
        if num_left:
            is_complete = False
        if num_done:
            console.line(
                f"{benchmark.name}: {num_done} of {len(benchmark.prompts)} prompts were answered before ({file.path})"
            )
    if is_complete:
        return True
    verifiers = all_verifiers(benchmarks)
    with contextlib.ExitStack() as stack:
        report = stack.enter_context(StartReport(console))
        with report.measure("imports"), quick_imports():
            from nemo_brorl.commands.wiring import make_sampler, ready_actors
        starting = ready_actors(config, model_folder, verifiers, with_policy=False, with_answers=True, watch=report)
        actors = stack.enter_context(starting)
        report.close()
        stop.install()
        sampler = make_sampler(config, actors, console)
        return sample_prompts(benchmarks, files, sampler, stop, samples)


def answer_file(
    output: Path,
    identity: Mapping[str, Any],
    console: Console,
) -> AnswerFile:
    """Return the file for a benchmark's answers, and say on the console if one exists for other settings."""
    folder = output / "evaluations" / "answers"
    file = AnswerFile(folder, identity)
    if not file.path.exists():
        difference = nearest_other(folder, identity)
        if difference:
            console.line(f"{identity['benchmark']}: {difference}: it is kept, and new answers go to {file.path.name}")
    return file


def converted_checkpoint(
    config: BroRLConfig,
    path: Path,
    console: Console,
) -> Path:
    """Return the Hugging Face folder of a checkpoint, or of a run's newest one, after exporting it if needed.

    The folder is kept in the run folder. Raises CheckpointError.
    """
    run_folder = run_of(path)
    is_checkpoint = STEP.fullmatch(path.name) is not None
    checkpoint = newest_checkpoint(path if is_checkpoint else run_folder / "checkpoints", "evaluation.checkpoint")
    output = run_folder / f"hf_{checkpoint.name}"
    if is_converted(checkpoint, output):
        console.line(f"{checkpoint} was converted before: {output}")
        return output
    if output.exists() and any(output.iterdir()):
        raise CheckpointError(
            f"{output} exists and was not made from the present {checkpoint}: delete it, or set policy.model={output}"
        )
    write_converted(config, checkpoint, output)
    console.line(f"{checkpoint} written to {output}")
    return output
