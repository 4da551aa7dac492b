"""Profiles of chosen ranks and steps, by torch's profiler on CPU; memory of a GPU that is full, by a stand-in."""

from __future__ import annotations

import gzip
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.records import ProfileConfig
from nemo_brorl.config.records_rules import profiles_are_of_something
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.policy.process.profiling import Profiling
from nemo_brorl.policy.process.rank_process import nsight_options, rank_process
from nemo_brorl.policy.rank.worker import PolicyWorker
from nemo_brorl.types import UpdatePlan
from tests.support.model_factory import make_config, make_plan


class FakeCuda:
    """torch.cuda of a machine with a GPU, as far as profiles need it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.profiler = SimpleNamespace(start=self.said("start"), stop=self.said("stop"))
        self.memory = SimpleNamespace(
            _record_memory_history=self.said("record"), _dump_snapshot=lambda path: Path(path).write_text("memory")
        )

    def is_available(self) -> bool:
        return True

    def said(self, name: str) -> Any:
        return lambda **_: self.calls.append(name)


class FullLearner:
    """One that never has the memory that it asks for."""

    def update(self, plan: UpdatePlan) -> None:
        raise torch.OutOfMemoryError("full")

    onload = update


def profiled(run_folder: Path, **settings: Any) -> BroRLConfig:
    """A run with these settings of profiles."""
    config = make_config()
    config.exp_manager.explicit_log_dir = str(run_folder)
    config.profile = ProfileConfig(**settings)
    return config


def test_the_update_of_a_chosen_rank_and_step_leaves_a_trace_of_its_operators(tmp_path: Path) -> None:
    profiling = Profiling(ProfileConfig(kind="torch", steps=[3], ranks=[1]), tmp_path, rank=1)
    with profiling.of_update(step=3):
        torch.ones(4, 4) @ torch.ones(4, 4)
    (path,) = tmp_path.iterdir()
    assert path.name == "step_000003_rank_1.json.gz"
    trace = json.loads(gzip.decompress(path.read_bytes()))
    assert "aten::mm" in {event["name"] for event in trace["traceEvents"]}


@pytest.mark.parametrize(("rank", "step", "kind"), [(0, 3, "torch"), (1, 2, "torch"), (1, 3, "off")])
def test_other_ranks_and_steps_leave_nothing(tmp_path: Path, rank: int, step: int, kind: str) -> None:
    profiling = Profiling(ProfileConfig(kind=kind, steps=[3], ranks=[1]), tmp_path, rank)
    with profiling.of_update(step):
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert list(tmp_path.iterdir()) == []


def test_nsys_records_from_the_update_to_its_end_even_if_that_fails(tmp_path: Path) -> None:
    cuda = FakeCuda()
    profiling = Profiling(ProfileConfig(kind="nsys", steps=[3]), tmp_path, 0, cuda)
    with pytest.raises(ValueError, match="broken"), profiling.of_update(3):
        raise ValueError("broken")
    assert cuda.calls == ["start", "stop"]


def test_only_the_chosen_ranks_run_under_nsys_which_writes_to_the_run_folder(tmp_path: Path) -> None:
    config = profiled(tmp_path / "a run", kind="nsys", ranks=[2])
    options = nsight_options(RankSettings.from_config(config), 2)
    assert options is not None
    assert options["capture-range"] == "cudaProfilerApi"
    assert shlex.split(options["o"]) == [f"{tmp_path}/a run/profiles/nsys_rank_2_%p"]
    assert nsight_options(RankSettings.from_config(config), 0) is None
    assert nsight_options(RankSettings.from_config(profiled(tmp_path, kind="torch", ranks=[2])), 2) is None


def test_behind_nsys_a_rank_is_started_by_the_python_of_the_driver(tmp_path: Path) -> None:
    config = profiled(tmp_path, kind="nsys", ranks=[1])
    process = rank_process(RankSettings.from_config(config), tmp_path, 1)
    assert process["env_vars"]["PATH"] == f"{Path(sys.executable).parent}:${{PATH}}"
    assert (tmp_path / "profiles").is_dir()
    other = rank_process(RankSettings.from_config(config), tmp_path, 0)
    assert "nsight" not in other
    assert "PATH" not in other["env_vars"]


def test_memory_that_ran_full_leaves_a_snapshot_and_the_error_goes_on(tmp_path: Path) -> None:
    cuda = FakeCuda()
    profiling = Profiling(ProfileConfig(memory_snapshot=True), tmp_path, 5, cuda)
    with pytest.raises(torch.OutOfMemoryError), profiling.of_memory():
        raise torch.OutOfMemoryError("full")
    assert cuda.calls == ["record"]
    assert (tmp_path / "out_of_memory_rank_5.pickle").read_text() == "memory"


@pytest.mark.parametrize("method", ["update", "onload"])
def test_whatever_a_rank_does_it_leaves_a_snapshot_when_it_runs_out_of_memory(tmp_path: Path, method: str) -> None:
    config = profiled(tmp_path, memory_snapshot=True)
    worker = PolicyWorker(RankSettings.from_config(config), tmp_path, rank=3)
    worker.profiling = Profiling(config.profile, RankSettings.from_config(config).profile_folder, 3, FakeCuda())
    worker.learner = FullLearner()  # type: ignore[assignment]
    with pytest.raises(torch.OutOfMemoryError):
        worker.call(method, make_plan())  # type: ignore[arg-type]
    assert (tmp_path / "profiles" / "out_of_memory_rank_3.pickle").read_text() == "memory"


def test_without_the_setting_nothing_is_remembered(tmp_path: Path) -> None:
    cuda = FakeCuda()
    profiling = Profiling(ProfileConfig(), tmp_path, 5, cuda)
    with pytest.raises(torch.OutOfMemoryError), profiling.of_memory():
        raise torch.OutOfMemoryError("full")
    assert cuda.calls == []
    assert list(tmp_path.iterdir()) == []


def test_nsys_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    (message,) = ProfileConfig(kind="nsys").violations()
    assert "nsys on the PATH" in message


def test_a_profile_of_no_rank_is_refused() -> None:
    config = BroRLConfig()
    config.profile = ProfileConfig(kind="torch", ranks=[])
    (message,) = profiles_are_of_something(config)
    assert message == (
        "profile.kind=torch is of some steps and ranks, and needs profile.ranks other than [] (now []): set that, or "
        "profile.kind='off'"
    )
