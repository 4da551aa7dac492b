"""Profiles of chosen ranks and steps, by torch's profiler on CPU; memory of a GPU that is full, by a stand-in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_brorl.config.schema import ProfileConfig
from nemo_brorl.policy.layout import nsight_options
from nemo_brorl.policy.profiling import Profiling


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


def test_the_update_of_a_chosen_rank_and_step_leaves_a_trace_of_its_operators(tmp_path: Path) -> None:
    profiling = Profiling(ProfileConfig(kind="torch", steps=[3], ranks=[1]), tmp_path, rank=1)
    with profiling.of_update(step=3):
        torch.ones(4, 4) @ torch.ones(4, 4)
    (path,) = (tmp_path / "profiles").iterdir()
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


def test_only_the_chosen_ranks_run_under_nsys() -> None:
    settings = ProfileConfig(kind="nsys", ranks=[2])
    options = nsight_options(settings, 2)
    assert options is not None
    assert options["capture-range"] == "cudaProfilerApi"
    assert nsight_options(settings, 0) is None
    assert nsight_options(ProfileConfig(kind="torch", ranks=[2]), 2) is None


def test_memory_that_ran_full_leaves_a_snapshot_and_the_error_goes_on(tmp_path: Path) -> None:
    cuda = FakeCuda()
    profiling = Profiling(ProfileConfig(memory_snapshot=True), tmp_path, 5, cuda)
    with pytest.raises(torch.OutOfMemoryError), profiling.of_memory():
        raise torch.OutOfMemoryError("full")
    assert cuda.calls == ["record"]
    assert (tmp_path / "profiles" / "out_of_memory_rank_5.pickle").read_text() == "memory"


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
    (message,) = ProfileConfig(kind="torch", ranks=[]).violations()
    assert "profile.ranks" in message
