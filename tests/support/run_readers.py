"""Files of a run folder, and whoever reads each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from brorl_lab.commands import diff
from brorl_lab.commands.replay import Replay, recorded_row
from brorl_lab.page import runs as page
from brorl_lab.page.groups import StoreTables
from brorl_lab.store_reader import read_step
from brorl_lab.trace_reader import read_spans
from brorl_launcher import runs, status
from brorl_launcher.find_run import Target
from brorl_launcher.run_state import read_run

from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.same_run import check_same_run, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.training.records import JsonlSink, drop_after
from nemo_brorl.training.trace_files import TraceFiles
from tests.support.run_folders import put_run, put_timeline


def put_healthy(parent: Path) -> Path:
    """A run whose every file can be read, in `parent`."""
    folder = put_run(parent / "run", num_steps=2, prompts=2, size=4)
    put_timeline(folder, 2)
    (folder / "events.jsonl").write_text('{"step": 1, "event": "stall", "reason": "late", "value": 1.0}\n')
    (folder / "launch").mkdir()
    (folder / "launch" / "jobs.jsonl").write_text('{"job": "1", "arguments": ["trainer.max_steps=4"]}\n')
    return folder


def config_of(folder: Path) -> BroRLConfig:
    config = BroRLConfig()
    config.exp_manager.explicit_log_dir = str(folder)
    return config


def show_curves(folder: Path) -> None:
    """What `report` and `watch` show of a run before anybody clicks."""
    json.dumps(page.overview(page.open_runs([folder])))


def summarise(folder: Path) -> None:
    """The line of `brorl runs`."""
    runs.table_cells(runs.summarize_run(folder, now=0.0))


def describe(folder: Path) -> None:
    """What `brorl status` prints."""
    status.describe(Target(run=folder), read_run(folder), now=0.0)


READERS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "config.yaml": (
        page.settings_of,
        summarise,
        describe,
        diff.read_settings,
        lambda folder: check_same_run(config_of(folder)),
        lambda folder: with_sizes_of_run(config_of(folder)),
        load_run_config,
    ),
    "metrics.jsonl": (
        show_curves,
        summarise,
        describe,
        diff.read_rows,
        lambda folder: recorded_row(folder, 2),
        lambda folder: JsonlSink(folder / "metrics.jsonl", 1),
    ),
    "heartbeat.json": (page.state_of, summarise, describe),
    "events.jsonl": (
        show_curves,
        lambda folder: Replay(folder, config_of(folder), config_of(folder)),
        lambda folder: drop_after(folder / "events.jsonl", 1),
    ),
    "validations/step_2.jsonl": (show_curves,),
    "launch/jobs.jsonl": (describe,),
    "store/groups/step_000002.parquet": (
        lambda folder: read_step(folder, 2),
        lambda folder: StoreTables(folder).by_step(),
    ),
    "store/rollouts/step_000002.parquet": (
        lambda folder: read_step(folder, 2),
        lambda folder: StoreTables(folder).by_step(),
    ),
    "timeline/step_000002.trace.json.gz": (
        lambda folder: read_spans(folder, 2),
        lambda folder: TraceFiles(folder, 10).drop_after(1),
    ),
}
