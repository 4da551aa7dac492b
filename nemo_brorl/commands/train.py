"""`brorl train [--config-name NAME] [KEY=VALUE ...]` trains, validates and saves.

It prints a line for each step, and tables at the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brorl_graders import source_hashes

from nemo_brorl.algorithm.user_functions import check_functions
from nemo_brorl.commands.check_inputs import check_inputs
from nemo_brorl.commands.run import run_command, sized
from nemo_brorl.commands.trackers import MetricFan
from nemo_brorl.config.data import FILE_WORDS
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.named_code import check_names
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.same_run import check_same_run, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.best_weights import weights_line
from nemo_brorl.core.clock import StopRequest, grace_s
from nemo_brorl.core.console import Console
from nemo_brorl.core.lock import locked
from nemo_brorl.core.quick_imports import quick_imports
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.core.start_report import StageReport, StartReport
from nemo_brorl.core.timeline import Timeline
from nemo_brorl.rollouts.prompt_pool import find_pool
from nemo_brorl.training.finished_run import check_same_prompts, finished_line
from nemo_brorl.training.own_observers import find_observers
from nemo_brorl.training.records import JsonlSink, read_metrics
from nemo_brorl.training.run_folder import claim_run_folder, open_log
from nemo_brorl.training.tables import change_rows, curve_lines, sampling_line, time_rows
from nemo_brorl.training.trainer import BroRLTrainer

if TYPE_CHECKING:
    from nemo_brorl.commands.wiring import Actors, Inputs


def main(argv: Sequence[str]) -> int:
    """Run `brorl train` and return its exit code.

    0 done, 75 saved and to be resumed later, 130 ended by you before its last step, 69 a process or node was lost, 2 a
    mistake in the input, 1 a bug.
    """
    return run_command("train", __doc__, argv, train)


def train(config: BroRLConfig, line: CommandLine) -> int:
    """Train the policy until the last step, and return the exit code.

    With steps left, the code is SAVED if the run will be resumed by itself, and INTERRUPTED if a user ended it.
    """
    console = Console()
    if finished := finished_run(config):
        console.line(finished)
        return 0
    check_training(config, line)
    with StartReport(console) as report:
        config, model_folder = sized(config, console)
        with locked(Path(config.exp_manager.explicit_log_dir), "brorl train"):
            return train_alone(config, line, model_folder, report)


def finished_run(config: BroRLConfig) -> str | None:
    """Return what to say of a run that has made all its steps, or None for a run with steps left.

    Raises CheckpointError if it is a run of other settings, questions or code of rewards.
    """
    run_folder = Path(config.exp_manager.explicit_log_dir)
    finished = finished_line(run_folder, config.trainer.max_steps, "trainer.max_steps")
    if finished is None or not check_same_run(with_sizes_of_run(config)):
        return None
    from nemo_brorl.prompts.stream import changes_since

    questions, code = None, source_hashes([str(Path.cwd())])
    # Generated questions follow from the settings, and to load what makes them takes seconds.
    if any(source.source in FILE_WORDS for _, source in config.data.sources()):
        from nemo_brorl.prompts.sources import Sources

        questions = Sources(config.data).split("train", config.trainer.seed)
    check_same_prompts(run_folder, lambda state: changes_since(state, questions, code, config.data))
    return finished


def check_training(config: BroRLConfig, line: CommandLine) -> None:
    """Check what the settings of a training run name and give, before its model is read. Raises BroRLError."""
    check_names(config)
    check_inputs(config, line)
    check_functions(config.algorithm, config.rewards.shaping)
    find_pool(config.rollouts.prompt_pool)
    find_observers(config.trainer.observers)


def train_alone(config: BroRLConfig, line: CommandLine, model_folder: Path, watch: StartReport) -> int:
    """Train the policy in a run folder that the caller has locked, and return the exit code.

    The settings already have a number for every automatic size, such as ranks, engines and micro-batches.
    """
    start, console = time.monotonic(), watch.console
    run_folder = Path(config.exp_manager.explicit_log_dir)
    inputs = read_inputs(config, model_folder, watch)
    stop = StopRequest(config.trainer.time_limit_s, grace_s(os.environ))
    heartbeat = Heartbeat(Timeline(config.timeline.enabled))
    stalls = watch_over(heartbeat, run_folder, config, watch)
    with stalls, opened(config, line, inputs, watch, stop, heartbeat) as (actors, trainer):
        heartbeat.on_stall = lambda text, seconds: trainer.observers.event(
            trainer.step_number + 1, "stall", text, seconds
        )
        watch.close()
        stop.install()
        stalls.mark_started()
        console.line(f"ready after {time.monotonic() - start:.0f} s ({watch.summary()})")
        fit(config, inputs, actors, trainer)
    print_summary(console, run_folder, time.monotonic() - start)
    return stop.exit_code(is_over=trainer.step_number >= config.trainer.max_steps)


def read_inputs(config: BroRLConfig, model_folder: Path, watch: StageReport) -> Inputs:
    """Read and check tokenizer and questions, and claim the run folder."""
    with watch.measure("imports"), quick_imports():
        from nemo_brorl.commands import rehearse, wiring  # imports Ray and Megatron, so only for valid settings
    with watch.measure("inputs"):
        inputs = wiring.read_inputs(config, model_folder)
        run_folder = claim_run_folder(config, model_folder)
        check_same_prompts(run_folder, inputs.prompts.accept_changes)
        open_log(run_folder, watch.console)
    with watch.measure("constants"):
        rehearse.look_at_questions(config, inputs, watch.console)
    return inputs


@contextlib.contextmanager
def opened(
    config: BroRLConfig, line: CommandLine, inputs: Inputs, watch: StageReport, stop: StopRequest, heartbeat: Heartbeat
) -> Iterator[tuple[Actors, BroRLTrainer]]:
    """Start the processes of a run, which end with the context, and resume it from its newest checkpoint."""
    from nemo_brorl.commands import wiring

    console, run_folder = watch.console, Path(config.exp_manager.explicit_log_dir)
    starting = wiring.start_actors(config, inputs.model_folder, inputs.verifiers, watch, heartbeat=heartbeat)
    with starting as actors:
        with watch.measure("nemo"):
            from nemo_brorl.commands.nemo_app import (  # takes four seconds, while actors start
                open_experiment,
                open_sinks,
                run_with_nemo,
            )

            # NeMo's runner takes settings only from a command line, so it composes them a second time.
            experiment = run_with_nemo(line, open_experiment)
        wiring.wait_ready(actors, watch, heartbeat, engines_sleep=True)
        loggers = open_sinks(config, experiment)
        with contextlib.closing(MetricFan(loggers)) as sinks:
            sampler = wiring.make_sampler(config, actors, console, heartbeat)
            parts = wiring.trainer_parts(config, inputs, actors, sampler, sinks, run_folder, console)
            trainer = BroRLTrainer(config, parts, stop)
            with watch.measure("resume"):
                resume(trainer, sinks, run_folder, console)
            with watch.measure("rehearsal"):
                trainer.begin()
            yield actors, trainer


def fit(config: BroRLConfig, inputs: Inputs, actors: Actors, trainer: BroRLTrainer) -> None:
    """Show what the model answers, and train it up to the last step."""
    from nemo_brorl.commands import rehearse

    rehearse.rehearse_once(config, inputs, actors, trainer, trainer.parts.console)
    trainer.fit()


def watch_over(heartbeat: Heartbeat, run_folder: Path, config: BroRLConfig, report: StartReport) -> StallWatch:
    """Return the watchdog of a run, which warns of a stall and then ends the run after the limits in `trainer`.

    It notes in `heartbeat.json` if a signal ends the start that `report` shows.
    """
    limits, start_s = config.trainer, RunSizes.from_config(config).start_timeout_s
    stalls = StallWatch(heartbeat, run_folder, limits.stall_warning_s, limits.stall_timeout_s, start_s)
    report.on_cut = stalls.note_cut
    return stalls


def resume(
    trainer: BroRLTrainer,
    sinks: MetricFan,
    run_folder: Path,
    console: Console,
) -> None:
    """Resume the trainer from the newest checkpoint, if there is one, and open `metrics.jsonl` for the next steps.

    Rows of steps after the checkpoint are deleted, because the run repeats these steps. In a Slurm job the number of
    the attempt is recorded as an event.
    """
    is_resumed = trainer.resume()
    if is_resumed:
        console.line(f"resumed after step {trainer.step_number} of {run_folder}")
    resume_step = trainer.step_number if is_resumed else None
    metrics = JsonlSink(run_folder / "metrics.jsonl", resume_step)
    sinks.sinks.insert(0, metrics)
    attempt = os.environ.get("BRORL_TRY")
    if attempt is not None:
        reason = f"job {os.environ.get('SLURM_JOB_ID', '')}, try {attempt}"
        trainer.observers.event(trainer.step_number, "start", reason, float(attempt))


def print_summary(console: Console, run_folder: Path, seconds: float) -> None:
    """Print validation pass@1 by step and the time by stage at the end of a run.

    Nothing is printed if the run stopped before the first validation.
    """
    rows = read_metrics(run_folder / "metrics.jsonl")
    validations = [row for row in rows if "validation/pass_at_1" in row]
    if not validations:
        return
    console.line()
    console.line("held-out pass@1 by step")
    for line in curve_lines(validations):
        console.line(line)
    console.line()
    changes = change_rows(validations[0], validations[-1])
    console.table(["held-out pass@1", "before", "after", "change", "constant answer"], changes)
    console.line()
    console.table(["time by stage", "seconds", "share"], time_rows(rows))
    console.line()
    console.line(f"sampling: {sampling_line(rows)}")
    if weights := weights_line(run_folder):
        console.line(weights)
    console.line(
        f"run folder {run_folder}: metrics.jsonl, checkpoints/, hf/ (Hugging Face format); {seconds:.0f} "
        f"s in all; `brorl report {run_folder}` makes a page of it"
    )
