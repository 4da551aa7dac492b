"""Show what a run is doing, how far it is and what it waits for, from its folder and from Slurm: `brorl status`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from brorl_graders.base.foreign import VAST, inert_line, open_record

from brorl_launcher import slurm
from brorl_launcher.command_line import command_parser
from brorl_launcher.find_run import Target, find_target, newest_log
from brorl_launcher.run_state import SHOWN_PARTS, HeartbeatFile, Row, RunStatus, read_run
from nemo_brorl.core.best_weights import weights_line
from nemo_brorl.core.console import clear_screen, format_table, without_colours, write_out, write_words
from nemo_brorl.core.errors import ConfigError
from nemo_brorl.core.step_time import step_seconds

SHOWN_ROWS = 5
OLD_S = 60.0  # the driver writes its heartbeat every 5 s
EXAMPLES = """examples:
  brorl status /shared/runs/first
  brorl status 4711                 the run of a job
  brorl status /shared/runs/first --watch
  brorl status runs/brorl_cpu       a run without Slurm
"""

WAITS = {  # meaning of Slurm's reasons for a pending job
    "Resources": "it is the next one: waiting for nodes",
    "Priority": "other jobs go first",
    "Dependency": "waits for an earlier job of the chain",
    "BeginTime": "was requeued: Slurm lets it start again after a while",
    "ReqNodeNotAvail": "nodes that it may use are down, drained or reserved: `sinfo -R` says why",
    "PartitionTimeLimit": "its time is above the partition's limit: `scontrol show partition` has it; submit with a "
    "shorter --time",
    "PartitionNodeLimit": "it requests more nodes than the partition allows for a job",
    "JobHeldUser": "held: `scontrol release` releases it",
    "JobHeldAdmin": "held by the administrators",
    "DependencyNeverSatisfied": "will never start: cancel it",
    "Licenses": "waiting for a licence",
    "Reservation": "waiting for its reservation to start",
    "launch failed requeued held": "a node could not start it: `scontrol release` tries again",
}


def main(argv: Sequence[str]) -> int:
    """Print the status of a training run once, or repeatedly with --watch, and return the exit code.

    Raises BroRLError, for example when there is no such run or job.
    """
    parser = command_parser("status", "What a run is doing, how far it is, and how long it will take.", EXAMPLES)
    parser.add_argument("target", metavar="RUN|JOB", help="a run folder, or the number of a job")
    parser.add_argument(
        "--watch",
        nargs="?",
        const=10.0,
        type=float,
        metavar="S",
        help="print again every S seconds (default: 10), until it ends",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    options = parser.parse_args(list(argv))
    if options.watch is not None and options.watch < 1:
        raise ConfigError(f"--watch {options.watch:g}: pass a second or more")
    while True:
        target = find_target(options.target)
        run = read_run(target.run) if target.run is not None else None
        if options.watch and sys.stdout.isatty():
            clear_screen()
        if options.json:
            write_out(_as_json(target, run))
        else:
            write_words("".join(f"{line}\n" for line in describe(target, run, time.time())))
        if options.watch is None or not is_going_on(target, run, time.time()):
            return 0
        time.sleep(options.watch)


def is_going_on(target: Target, run: RunStatus | None, now: float) -> bool:
    """Return whether the run has a job in the queue or a fresh heartbeat."""
    if run is not None and _is_heartbeat_fresh(run, now):
        return True
    return any(not job.has_ended for job in target.jobs)


def _is_heartbeat_fresh(run: RunStatus, now: float) -> bool:
    """Return whether the run's driver has written its heartbeat within the last OLD_S seconds."""
    beat = run.heartbeat
    return beat is not None and beat.state in ("running", "stalled") and beat.is_fresh(now, OLD_S)


def describe(target: Target, run: RunStatus | None, now: float) -> list[str]:
    """Return the lines of text that describe the status of a training run.

    `run` is None when the run folder is unknown. `now`: seconds since 1970.
    """
    folder = "its folder is not known: it has not read its settings yet, or was not submitted from here"
    if target.run is not None:
        folder = str(target.run)
    lines = [_line("run", folder), *_job_lines(target)]
    if run is None:
        return lines
    lines += [_line("now", text) for text in _activity_lines(target, run, now)]
    lines += _progress_lines(run)
    if run.rows:
        lines += ["", *step_table(run.rows[-SHOWN_ROWS:])]
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:<11}{inert_line(text)}"


def _job_lines(target: Target) -> list[str]:
    lines = []
    name = "job"
    for job in target.jobs:
        lines.append(_line(name, job_text(job, target.restarts.get(job.id, 0))))
        name = ""  # only the first job gets a label
    for note in target.notes:
        lines.append(_line("slurm", note))
    return lines


def job_text(job: slurm.SlurmJob, restarts: int) -> str:
    """Return a job's state, nodes, times and number of requeues as one line."""
    text = f"{job.id} {job.state}"
    if job.is_running:
        text += f" on {job.nodes}, {job.elapsed} of {job.limit}"
    elif job.has_ended:
        text += f" after {job.elapsed}"
        if job.reason:
            text += f" ({job.reason})"
    else:
        text += f" ({why_it_waits(job)})"
        if job.start[:1].isdecimal():
            text += f", expected to start {job.start}"
    if restarts == 1:
        text += ", requeued once"
    elif restarts > 1:
        text += f", requeued {restarts} times"
    return text


def why_it_waits(job: slurm.SlurmJob) -> str:
    """Return Slurm's reason why a job is pending, followed by its meaning where that is known."""
    reason = job.reason.strip("()")
    for key, meaning in WAITS.items():
        if reason.startswith(key):
            return f"{reason}: {meaning}"
    return reason


def _activity_lines(target: Target, run: RunStatus, now: float) -> list[str]:
    """Return lines about the run's current activity, from its heartbeat or its log."""
    if run.is_finished:
        return [f"finished: step {run.checkpoint} has its checkpoint"]
    beat = run.heartbeat
    texts = []
    if beat is not None and _is_heartbeat_fresh(run, now):
        texts.append(_beat_text(beat))
        if beat.late:
            texts.append(f"late: {', '.join(beat.late)}")
        return texts
    if beat is not None:
        silence = format_duration(now - beat.written_at)
        if beat.state == "ended":
            texts.append(f"the driver ended {silence} ago")
        elif beat.state == "failed":
            texts.append(f"the driver ended with an error {silence} ago")
        else:
            lost = "the driver has exited, or its disk is lost"
            texts.append(f"no heartbeat for {silence}, last stage {beat.stage}: {lost}")
    log = newest_log(target)
    began = any(job.is_running for job in target.jobs)
    if log is not None and (began or beat is None):
        texts.append(f"the log's last line: {last_line(log)}")
    return texts or ["nothing runs in this folder"]


def _beat_text(beat: HeartbeatFile) -> str:
    detail = f" ({beat.detail})" if beat.detail else ""
    stalled = ", STALLED" if beat.state == "stalled" else ""
    progress = f"last progress {format_duration(beat.silent_s)} ago"
    return f"{beat.stage}{detail} for {format_duration(beat.stage_s)}, {progress}{stalled}"


def _progress_lines(run: RunStatus) -> list[str]:
    lines = []
    if run.step is not None:
        last = "?" if run.max_steps is None else f"{run.max_steps:,}"
        text = f"{run.step:,} of {last}"
        if run.step_s:
            text += f", {format_duration(run.step_s)} a step{largest_stage_shares(run.rows)}"
        lines.append(_line("step", text))
    validations = [row for row in run.rows if row.get("validation/pass_at_1") is not None]
    if validations:
        row = validations[-1]
        lines.append(_line("validation", f"pass@1 {row['validation/pass_at_1']:.1%} after step {row['step']}"))
    if weights := weights_line(run.folder):
        lines.append(_line("weights", weights))
    if run.remaining_s and not run.is_finished:
        lines.append(_line("remaining", f"about {format_duration(run.remaining_s)} of training at this pace"))
    saved = "none yet" if run.checkpoint is None else f"step {run.checkpoint:,}"
    if run.checkpoint_age_s is not None:
        saved += f", {format_duration(run.checkpoint_age_s)} ago"
    lines.append(_line("checkpoint", saved))
    return lines


def largest_stage_shares(rows: Sequence[Row]) -> str:
    """Return the three stages that took the largest shares of the step time in these rows of metrics, as text."""
    sums = dict.fromkeys(SHOWN_PARTS, 0.0)
    total = 0.0
    for row in rows:
        if row["step"] > 0:
            total += step_seconds(row)
            for part in SHOWN_PARTS:
                sums[part] += row.get(f"time/{part}_s") or 0.0
    if total == 0:
        return ""
    largest = sorted(SHOWN_PARTS, key=lambda part: sums[part], reverse=True)[:3]
    named = [f"{part} {sums[part] / total:.0%}" for part in largest if sums[part]]
    return f" ({', '.join(named)})"


def step_table(rows: Sequence[Row]) -> list[str]:
    """Return a table of training steps, one line for each row of metrics."""
    cells = []
    for row in rows:
        cells.append(
            [
                str(row["step"]),
                _number(row.get("reward/mean"), ".3f"),
                _number(row.get("dynamic_sampling/keep_rate"), ".0%"),
                _number(row.get("generation/samples_per_s"), ",.0f"),
                _number(row.get("validation/pass_at_1"), ".1%"),
                _number(step_seconds(row) or None, ",.1f"),
            ]
        )
    return format_table(["step", "reward", "informative", "samples/s", "pass@1", "seconds"], cells)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as text, such as 45 s, 3 h 20 min or 2 d 4 h."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours = minutes // 60
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min"


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty."""
    with open_record(path, VAST) as file:
        size = file.seek(0, 2)
        file.seek(max(size - 4096, 0))
        end = without_colours(file.read(4096).decode("utf-8", errors="replace")).rstrip()
    return end.splitlines()[-1].strip() if end else "(empty)"


def _as_json(target: Target, run: RunStatus | None) -> str:
    state = None
    if run is not None:
        state = {
            "step": run.step,
            "max_steps": run.max_steps,
            "checkpoint": run.checkpoint,
            "step_s": run.step_s,
            "remaining_s": run.remaining_s,
            "is_finished": run.is_finished,
            "weights": weights_line(run.folder),
            "heartbeat": asdict(run.heartbeat) if run.heartbeat else None,
            "last_row": dict(run.rows[-1]) if run.rows else None,
        }
    jobs = []
    for job in target.jobs:
        jobs.append({**asdict(job), "restarts": target.restarts.get(job.id, 0)})
    folder = str(target.run) if target.run else None
    return json.dumps({"run": folder, "jobs": jobs, "state": state}) + "\n"
