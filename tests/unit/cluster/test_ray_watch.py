"""The watch over Ray's processes, with processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray

from nemo_brorl.cluster import ray_cluster, ray_watch
from nemo_brorl.cluster.ray_cluster import RayCluster
from nemo_brorl.cluster.ray_watch import RayWatch, watched_start
from nemo_brorl.config.trainer import TrainerConfig
from nemo_brorl.core.errors import LOST, RayLostError, ResourceError
from nemo_brorl.core.processes import children_but, end_processes, is_running, with_descendants

pytestmark = pytest.mark.slow


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A shell with a child, both of which would sleep for a minute."""
    process = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    while not psutil.Process(process.pid).children():
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_the_first_process_that_is_gone_is_named_once(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_watch, "LOOK_S", 0.01)
    lost: list[str] = []
    watch = RayWatch([psutil.Process(), psutil.Process(sleeper.pid)], lost.append)
    assert watch.look() is None
    watch.start()
    end_processes(with_descendants([psutil.Process(sleeper.pid)]), 0.0)
    while not lost:
        time.sleep(0.01)
    watch.close()
    assert lost == ["sh"]


@pytest.mark.parametrize(("patience_s", "expected"), [(0.01, ["sleep"]), (60.0, [])])
def test_a_start_that_lost_a_process_is_ended_when_ray_is_silent_for_too_long(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, expected: list[str]
) -> None:
    monkeypatch.setattr(ray_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(ray_watch, "PATIENCE_S", patience_s)
    monkeypatch.setattr(ray_watch, "ESSENTIAL", ("sleep",))
    before = children_but([])
    lost: list[str] = []
    with watched_start(before, lost.append, lambda: lost.append("late")):
        store = subprocess.Popen(["sleep", "60"])
        time.sleep(0.5)  # Ray's start, in which the watch sees the store
        assert lost == []
        store.kill()
        store.wait()
        time.sleep(0.5)
    assert lost == expected


@pytest.mark.parametrize(("start_s", "expected"), [(0.05, ["late"]), (60.0, [])])
def test_a_start_that_lost_nothing_and_does_not_end_is_late(
    monkeypatch: pytest.MonkeyPatch, start_s: float, expected: list[str]
) -> None:
    monkeypatch.setattr(ray_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(ray_watch, "START_S", start_s)
    said: list[str] = []
    with watched_start(children_but([]), said.append, lambda: said.append("late")):
        time.sleep(0.5)
    assert said == expected


def test_ended_processes_leave_none_of_their_children(sleeper: subprocess.Popen[bytes]) -> None:
    everyone = with_descendants([psutil.Process(sleeper.pid)])
    assert [process.name() for process in sorted(everyone, key=lambda process: process.pid)] == ["sh", "sleep"]
    assert end_processes(everyone, 0.0) == 2
    psutil.wait_procs(everyone, timeout=10)
    assert not any(is_running(process) for process in everyone)


@pytest.mark.parametrize("text", ["The current node timed out during startup. This ...", "Failed to start GCS. ..."])
def test_a_ray_that_is_late_or_loses_a_process_is_started_again_and_then_refused(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes], text: str
) -> None:
    stores: list[subprocess.Popen[bytes]] = []  # stand-ins for the control store that each try leaves

    def slow_start(**options: Any) -> None:
        assert all(store.poll() is not None for store in stores), "the try before has left its control store"
        stores.append(subprocess.Popen(["sleep", "600"]))
        raise RuntimeError(text)

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", slow_start)
    with pytest.raises(RayLostError, match="not start within its 30 s, 3 times: is the machine overloaded") as caught:
        RayCluster(TrainerConfig()).__enter__()
    assert caught.value.exit_code == LOST
    assert len(stores) == 3
    assert all(store.poll() is not None for store in stores)
    assert sleeper.poll() is None, "what was there before Ray is none of its business"


@pytest.mark.parametrize(("gpus", "given", "seen"), [(0, None, "1"), (0, "4", "4"), (1, None, None)])
def test_ray_starts_with_one_heap_a_process_on_cpu_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, gpus: int, given: str | None, seen: str | None
) -> None:
    found: list[str | None] = []

    def refuse(**options: Any) -> None:
        found.append(os.environ.get("MALLOC_ARENA_MAX"))
        raise ConnectionError("no Ray today")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if given is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", given)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ResourceError, match="no Ray today"):
        RayCluster(TrainerConfig(gpus_per_node=gpus)).__enter__()
    assert found == [seen]
    assert os.environ.get("MALLOC_ARENA_MAX") == given, "what else this process starts is as it was"


def test_a_folder_that_ray_cannot_have_is_told_without_advice_about_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ResourceError("/tmp/brorl belongs to somebody else: set TMPDIR")

    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_cluster, "private_folder", refuse)
    with pytest.raises(ResourceError, match=r"^/tmp/brorl belongs to somebody else: set TMPDIR$"):
        RayCluster(TrainerConfig()).__enter__()


def test_an_error_that_comes_of_a_lost_process_of_rays_is_told_as_its_loss(
    monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(ray_watch, "LOOK_S", 0.2)
    monkeypatch.setattr(ray, "shutdown", lambda: None)

    def of_sleeper() -> RayCluster:
        cluster = RayCluster(TrainerConfig())
        cluster._watch = RayWatch([psutil.Process(sleeper.pid)], lambda name: None)
        return cluster

    engine_failed = ResourceError("engine 0 did not start")
    of_sleeper().__exit__(ResourceError, engine_failed, None)  # nothing is lost: the error stays what it is
    watched = of_sleeper()
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(RayLostError, match="Ray's sh is gone") as caught:
        watched.__exit__(ResourceError, engine_failed, None)
    assert (caught.value.exit_code, caught.value.__cause__) == (LOST, engine_failed)


LATE = """
import time
from nemo_brorl.cluster.ray_watch import start_limit
with start_limit(30.0):
    pass
with start_limit(0.2):
    time.sleep(60)
"""


def test_a_start_that_does_not_end_in_time_ends_the_process_with_a_message_and_no_other_does() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == LOST, done.stderr
    assert done.stderr.count("error: ") == 1
    assert "were not ready after trainer.start_timeout_s=0.2 s" in done.stderr
