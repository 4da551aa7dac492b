"""Damaged files of a run folder: whoever reads one says so in one message, or goes on without it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nemo_brorl.commands import diff
from nemo_brorl.commands.run_page import runs as page
from nemo_brorl.commands.run_page.groups import StoreTables
from nemo_brorl.config.load import load_run_config
from nemo_brorl.config.same_run import check_same_run, recorded_settings, with_sizes_of_run
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import BroRLError, CheckpointError
from nemo_brorl.core.metric_sinks import EventLog, JsonlSink, read_metrics
from nemo_brorl.core.trace_file import TraceFiles, read_spans
from nemo_brorl.launcher import runs, status
from nemo_brorl.launcher.find_run import Target
from nemo_brorl.launcher.run_state import read_run
from nemo_brorl.training.store.files import StoreFiles
from nemo_brorl.training.store.reader import read_step
from nemo_brorl.training.store.replay import Replay, recorded_row
from tests.support.run_folders import put_run, put_timeline

SHAPES = ("[]", "null", "3", '"x"', "{}", '[1]\n{"a": 1}\n', '{"step": "x"}\n', '{"step": null}')


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every file can be read."""
    folder = put_run(tmp_path_factory.mktemp("runs") / "run", num_steps=2, prompts=2, size=4)
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
    runs.cells(runs.summary(folder, now=0.0))


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
        lambda folder: EventLog(folder / "events.jsonl").drop_after(1),
    ),
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


def damages(content: bytes, generator: random.Random) -> Iterator[bytes]:
    """Empty, cut, overwritten, with flipped bits, of another shape."""
    yield b""
    yield content[: len(content) // 2]
    yield content[:-3]
    yield bytes(len(content))
    yield generator.randbytes(len(content))
    yield b"\xff\xfe" + content
    for num_bits in (1, 1, 1, 20):
        flipped = bytearray(content)
        for _ in range(num_bits):
            flipped[generator.randrange(len(flipped))] ^= 1 << generator.randrange(8)
        yield bytes(flipped)
    for shape in SHAPES:
        yield shape.encode()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_one_message_or_left_out(
    name: str, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = healthy / name
    content = path.read_bytes()
    try:
        for damaged in damages(content, random.Random(name)):
            for read in READERS[name]:
                path.write_bytes(damaged)
                read_or_refuse(read, healthy)
    finally:
        path.write_bytes(content)


def read_or_refuse(read: Callable[[Path], object], folder: Path) -> None:
    """Anything but a message for the user is a mistake of ours, which the test shows."""
    try:
        read(folder)
    except BroRLError as error:
        assert str(error)
    except FileNotFoundError:
        assert read in READERS["timeline/step_000002.trace.json.gz"]


def test_damaged_settings_of_a_run_are_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "", "[1, 2]", "policy: {model: ${nowhere}}"):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"config.yaml is damaged \(.+\): delete that one file to go on"):
            recorded_settings(path)


def test_rows_around_a_damaged_one_are_kept_and_it_is_named_by_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 0.5}\n{"step": "\xff", "a": 1}\n[3]\n{"step": 2}\n{"st')
    assert read_metrics(path) == [{"step": 1, "a": 0.5}, {"step": 2}]
    assert "left out what is no row, half-written or damaged: line 2, 3, 5" in caplog.text


def test_files_of_the_store_that_are_no_steps_are_passed_over(healthy: Path) -> None:
    (healthy / "store" / "groups" / "step_x.parquet").touch()
    assert StoreFiles(healthy).steps() == [1, 2]
