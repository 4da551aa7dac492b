"""NeMo's exp_manager and hydra_runner as the driver uses them: the real ones, in this process."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import pytest

from nemo_brorl.commands.trackers import MetricFan
from nemo_brorl.config.load import CommandLine, load_config
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import get_logger, setup_logging
from nemo_brorl.core.errors import ModelError, ResourceError


def line_for(folder: Path) -> CommandLine:
    return CommandLine("brorl_cpu", (f"exp_manager.explicit_log_dir={folder}", "rollouts.num_per_prompt=64"))


def test_exp_manager_leaves_the_files_of_a_continued_run_where_they_are(tmp_path: Path) -> None:
    from nemo_brorl.commands.nemo_app import open_experiment

    (tmp_path / "checkpoints" / "step_3").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("kept")
    for step in (1, 2):
        experiment = open_experiment(load_config(*line_for(tmp_path)))
        for logger in experiment.loggers:
            logger.log_metrics({"reward/mean": 0.5}, step=step)
            logger.finalize("success")
    assert experiment.log_dir == tmp_path
    assert (tmp_path / "metrics.jsonl").read_text() == "kept"
    assert (tmp_path / "checkpoints" / "step_3").is_dir()
    assert len(list(tmp_path.rglob("events.out.tfevents*"))) == 2


def test_a_folder_of_nemos_that_cannot_be_made_is_named_without_a_traceback(tmp_path: Path) -> None:
    from nemo_brorl.commands.nemo_app import open_experiment

    (tmp_path / "nemo").write_text("in the way")
    with pytest.raises(ResourceError, match=r"nemo cannot be written \(Not a directory\): make sure that"):
        open_experiment(load_config(*line_for(tmp_path)))


def test_tensorboards_writer_on_a_full_disk_is_a_warning_and_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tensorboard.compat.tensorflow_stub.io import gfile

    from nemo_brorl.commands.nemo_app import open_experiment, open_sinks

    setup_logging()
    config = load_config(*line_for(tmp_path))
    fan = MetricFan(open_sinks(config, open_experiment(config)))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gfile.LocalFileSystem, "append", refuse)
    monkeypatch.setattr(gfile.LocalFileSystem, "write", refuse)
    fan.write(1, {"reward/mean": 0.5})
    fan.close()
    # The thread that writes may still be about to say so
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("tensorboard"):
            thread.join(timeout=60)
    printed = capsys.readouterr().err
    assert "TensorBoard's events are no longer written: [Errno 28] No space left on device" in printed
    assert "Traceback" not in printed


def test_opening_an_experiment_leaves_our_logging_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nemo_brorl.commands.nemo_app import open_experiment

    setup_logging()
    open_experiment(load_config(*line_for(tmp_path)))
    get_logger("nemo_brorl.test").info("still here")
    printed = capsys.readouterr()
    assert "still here" in printed.err
    assert "NeMo" not in printed.err + printed.out


def test_hydra_runner_enters_main_with_the_checked_settings(tmp_path: Path) -> None:
    from nemo_brorl.commands.nemo_app import run_with_nemo

    argv = list(sys.argv)
    assert run_with_nemo(line_for(tmp_path), lambda config: config.rollouts.num_per_prompt) == 64
    assert sys.argv == argv


def test_hydra_runner_lets_our_errors_out_as_they_are(tmp_path: Path) -> None:
    from nemo_brorl.commands.nemo_app import run_with_nemo

    def main(config: BroRLConfig) -> None:
        raise ModelError(f"{config.policy.model} is not there")

    with pytest.raises(ModelError, match="runs/base_cpu is not there"):
        run_with_nemo(line_for(tmp_path), main)
