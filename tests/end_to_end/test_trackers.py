"""Trackers of experiments, offline: the loggers of NeMo and Lightning over stand-ins of the trackers' packages
(tests/support/fake_trackers), in a process of its own, as Lightning looks for packages once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.source_tree import CODE_PATH, ROOT

TRACKERS = ("mlflow", "dllogger", "clearml", "neptune", "swanlab", "trackio")
PROGRAM = """
import sys
from nemo_brorl.commands.nemo_app import open_experiment, open_sinks
from nemo_brorl.config.load import load_config
config = load_config("brorl_cpu", sys.argv[1:])
for sink in open_sinks(config, open_experiment(config)):
    sink.write(3, {"reward/mean": 0.5, "policy/loss": float("inf")})
    sink.close()
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    settings = [f"exp_manager.explicit_log_dir={folder}"]
    for tracker in TRACKERS:
        settings.append(f"exp_manager.create_{tracker}_logger=true")
    for tracker in ("clearml", "neptune", "swanlab", "trackio"):
        settings.append(f"exp_manager.{tracker}_logger_kwargs.project=brorl")
    settings.append("exp_manager.neptune_logger_kwargs.name=first")
    written = folder / "calls.jsonl"
    paths = [CODE_PATH, str(ROOT / "tests" / "support" / "fake_trackers")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "FAKE_TRACKERS": str(written),
        "NEPTUNE_API_TOKEN": "hidden",
    }
    subprocess.run([sys.executable, "-c", PROGRAM, *settings], env=environment, check=True, capture_output=True)
    return [json.loads(line) for line in written.read_text().splitlines()]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_gets_the_metrics_of_a_step(calls: list[dict[str, Any]], tracker: str) -> None:
    logged = [call for call in calls if call["tracker"] == tracker and call["call"] == "log"]
    name = "training/reward/mean" if tracker == "neptune" else "reward/mean"
    points = [(call["name"], call["value"], call["step"]) for call in logged]
    assert (name, 0.5, 3) in points


def test_projects_and_files_are_those_of_the_settings(calls: list[dict[str, Any]]) -> None:
    begun = {call["tracker"]: call for call in calls if call["call"] in ("init", "create_experiment")}
    for tracker in ("clearml", "neptune", "swanlab", "trackio"):
        assert begun[tracker]["project"] == "brorl"
    assert begun["mlflow"]["name"] == "brorl"
    assert begun["mlflow"]["uri"].endswith("/mlflow.db")
    assert begun["dllogger"]["files"][0].endswith("/nemo/dllogger.json")


def test_every_tracker_that_has_an_end_is_ended(calls: list[dict[str, Any]]) -> None:
    ended = {call["tracker"] for call in calls if call["call"] == "end"}
    assert ended >= {"mlflow", "clearml", "neptune", "swanlab", "trackio"}
