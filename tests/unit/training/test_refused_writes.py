"""A disk that refuses (full, read-only) is one message that names the path, and costs nothing that was there."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nemo_brorl.__main__ import main
from nemo_brorl.commands import train
from nemo_brorl.commands.run import run_command
from nemo_brorl.commands.trackers import MetricFan
from nemo_brorl.config.load import CommandLine
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import USER_ERROR, CheckpointError, ResourceError
from nemo_brorl.core.files import append_line, cannot_write
from nemo_brorl.core.stall_watch import Heartbeat, StallWatch
from nemo_brorl.rollouts.carried_groups import CarriedGroups
from nemo_brorl.training.checkpoint import Checkpoints, RunState
from nemo_brorl.training.records import JsonlSink
from nemo_brorl.training.run_folder import claim_run_folder
from nemo_brorl.training.run_observers import Events
from nemo_brorl.training.saver import Saver
from nemo_brorl.types import TensorInfo
from nemo_brorl.weights.hf_folder import write_hf_folder
from tests.support.fakes import FakePolicy
from tests.support.full_disk import full_disk

FULL = r"cannot be written \(File too large\): make room on that disk"


def test_a_row_that_does_not_fit_leaves_nothing_of_itself_and_ends_the_run_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    fan = MetricFan([JsonlSink(path, resume_step=None)])
    fan.write(1, {"reward/mean": 0.5})
    row = path.read_text()
    with full_disk(len(row) + 10), pytest.raises(ResourceError, match=f"{path} {FULL}"):
        fan.write(2, {"reward/mean": 0.5})
    assert path.read_text() == row
    fan.write(2, {"reward/mean": 0.5})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_line_that_fits_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:2]))
    append_line(tmp_path / "lines", "größer")
    append_line(tmp_path / "lines", "so")
    assert (tmp_path / "lines").read_text(encoding="utf-8") == "größer\nso\n"


def test_an_event_on_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(ResourceError, match=r"events.jsonl cannot be written \(No space left on device\)"):
        Events(tmp_path).event(1, "stall", "none moved", 3.0)


def test_a_full_disk_costs_the_heartbeat_and_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch(Heartbeat(), tmp_path, warning_s=60.0)
    with full_disk(0):
        for _ in range(3):
            watch.look()
    assert caplog.text.count("heartbeat.json cannot be written (File too large)") == 1
    watch.look()
    assert json.loads((tmp_path / "heartbeat.json").read_text())["state"] == "running"


def test_an_event_that_cannot_be_written_does_not_end_the_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat = Heartbeat()
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    events = Events(tmp_path)
    heartbeat.on_stall = lambda text, seconds: events.event(1, "stall", text, seconds)
    StallWatch(heartbeat, tmp_path, warning_s=0.0).look()
    assert "events.jsonl cannot be written" in caplog.text


def test_settings_that_do_not_fit_leave_no_half_of_themselves(tmp_path: Path) -> None:
    config = BroRLConfig()
    config.exp_manager.explicit_log_dir = str(tmp_path / "run")
    with full_disk(100), pytest.raises(ResourceError, match=f"run/config.yaml {FULL}"):
        claim_run_folder(config)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["revision.txt"]
    claim_run_folder(config)
    claim_run_folder(config)


def test_a_disk_that_runs_full_in_a_checkpoint_costs_that_one_and_gives_its_room_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints, policy = Checkpoints(tmp_path, keep=2), FakePolicy()
    saver = Saver(checkpoints, policy, in_background=False)
    saver.save(RunState(2, {}, CarriedGroups()), wait=True)
    with full_disk(16):
        saver.save(RunState(4, {}, CarriedGroups()), wait=False)
    assert "step_4.partial cannot be written (File too large): make room on that disk" in caplog.text
    assert "training continues without this one" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]
    with full_disk(16), pytest.raises(CheckpointError, match="step_6.partial cannot be written .*older checkpoints"):
        saver.save(RunState(6, {}, CarriedGroups()), wait=True)
    run = Checkpoints(tmp_path, keep=2).load_newest(policy.load)
    assert run is not None and run.step == 2


def test_a_marker_that_does_not_fit_makes_no_checkpoint(tmp_path: Path) -> None:
    checkpoints, policy = Checkpoints(tmp_path, keep=2), FakePolicy()
    folder = checkpoints.begin(RunState(2, {}, CarriedGroups()))
    policy.begin_save(folder)
    policy.finish_save(wait=True)
    with full_disk(16), pytest.raises(ResourceError, match="step_2 cannot be written"):
        checkpoints.commit(2)
    assert checkpoints.complete() == []


def test_best_weights_stay_where_better_ones_do_not_fit(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "hf"
    source.mkdir()
    (source / "config.json").write_text("{}")
    put_weights(source, folder, 1.0)
    before = (folder / "model.safetensors").read_bytes()
    with full_disk(64), pytest.raises(ResourceError, match="hf cannot be written"):
        put_weights(source, folder, 2.0)
    assert (folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    put_weights(source, folder, 2.0)
    assert (folder / "model.safetensors").read_bytes() != before


def put_weights(source: Path, folder: Path, value: float) -> None:
    manifest = [TensorInfo("weight", (64,), "float32")]
    stream = iter([("weight", torch.full((64,), value))])
    write_hf_folder(stream, manifest, source, folder, 2**20)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room on that disk"),
        (errno.EDQUOT, "make room on that disk"),
        (errno.EROFS, "make sure that this user may write there"),
    ],
)
def test_what_to_do_follows_from_the_cause(number: int, remedy: str) -> None:
    message = cannot_write(Path("runs/a/metrics.jsonl"), OSError(number, os.strerror(number)))
    assert message.startswith(f"runs/a/metrics.jsonl cannot be written ({os.strerror(number)}): {remedy}")
    assert message.endswith("the same command then resumes from the last checkpoint")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[OSError], int]:
    """What `brorl` returns whose command fails with an error. It may give standard output away."""

    def run(error: OSError) -> int:
        def fail(config: BroRLConfig, line: CommandLine) -> int:
            raise error

        monkeypatch.setattr(train, "main", lambda argv: run_command("train", "", argv, fail))
        monkeypatch.setattr(sys, "argv", ["brorl", "train"])
        return main()

    return run


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_refusing_disk_is_one_message_and_exit_code_two_whoever_writes(
    number: int, failing: Callable[[OSError], int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert failing(OSError(number, os.strerror(number), "runs/a/nemo/log")) == USER_ERROR
    assert f"error: runs/a/nemo/log cannot be written ({os.strerror(number)})" in capfd.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "x"),
        # A process that may not be signalled is no file.
        PermissionError(errno.EPERM, "Operation not permitted"),
    ],
)
def test_a_mistake_of_ours_stays_a_traceback(error: OSError, failing: Callable[[OSError], int]) -> None:
    with pytest.raises(type(error)):
        failing(error)


def test_a_file_that_this_user_may_not_touch_is_one_message(
    failing: Callable[[OSError], int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert failing(PermissionError(errno.EPERM, "Operation not permitted", "runs/a/evaluations")) == USER_ERROR
    message = (
        "error: runs/a/evaluations is forbidden (Operation not permitted): make sure that this user may read and write"
    )
    assert message in capfd.readouterr().err


def test_a_broken_pipe_is_the_exit_code_of_its_signal(failing: Callable[[OSError], int]) -> None:
    assert failing(BrokenPipeError(errno.EPIPE, "Broken pipe")) == 128 + signal.SIGPIPE
