"""Sleeping engines: the order of the stages, what they hold, and which are replaced. Handles are fakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nemo_brorl.config.generation import GenerationConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.sleep import StagedSleep
from nemo_brorl.generation.sleep_mode import SleepMode

GIB = 2**30


class Call:
    """What an actor's method is in these tests: `.remote` answers at once."""

    def __init__(self, answer: Any) -> None:
        self.remote = answer


class FakeHandle:
    """An engine that holds the given bytes, one number a sleep; an exception in their place is how it fails."""

    def __init__(self, index: int, *held: Any, has_copy: bool = True) -> None:
        self.index, self.starting, self.lacks_weights, self.has_copy = index, None, False, has_copy
        self.held: Iterator[Any] = iter(held)
        self.replaced: list[str] = []
        self.woken: list[str] = []
        self.actor = self
        self.sleep, self.wake = Call(lambda: next(self.held)), Call(self.woken.append)

    @property
    def name(self) -> str:
        return f"engine {self.index} ({len(self.replaced)})"

    def wait_or_replace(self) -> None:
        self.starting = None

    def replace(self, cause: object) -> None:
        self.replaced.append(str(cause))
        self.lacks_weights = not self.has_copy


class Answered:
    """The part of an ActorTransport that is used here: calls are their own results."""

    def results(self, answers: list[Any], timeout_s: float) -> list[Any]:
        return answers


def sleeping(*handles: FakeHandle, **settings: Any) -> StagedSleep:
    config = GenerationConfig(**{"sleep": "offload", **settings})
    return StagedSleep(handles, config, Answered())  # type: ignore[arg-type]


def test_nothing_happens_where_nobody_sleeps() -> None:
    handle = FakeHandle(0)
    stages = sleeping(handle, sleep="off")
    assert stages.sleep() == {}
    assert not stages.wake_weights()
    stages.wake_cache()
    assert handle.woken == []
    handle.replace("died while it sampled")
    assert not stages.wake_weights()
    handle.has_copy = False
    handle.replace("died while it sampled")
    assert stages.wake_weights(), "the next turn of the policy has to publish"


def test_memory_is_reported_against_the_first_time() -> None:
    stages = sleeping(FakeHandle(0, 2 * GIB, 3 * GIB), FakeHandle(1, GIB, GIB))
    assert stages.sleep() == {
        "sleep/residual_gib_max": 2.0,
        "sleep/residual_gib_mean": 1.5,
        "sleep/residual_growth_gib_max": 0.0,
    }
    stages.wake_weights()
    stages.wake_cache()
    assert stages.sleep()["sleep/residual_growth_gib_max"] == 1.0


def test_an_engine_that_does_not_fall_asleep_is_lost() -> None:
    handle = FakeHandle(0, RuntimeError("gone"))
    stages = sleeping(handle)
    assert stages.sleep() == {}
    stages.wake_weights()
    assert handle.replaced == ["gone"]


def test_stages_come_in_order() -> None:
    handle = FakeHandle(0, GIB)
    stages = sleeping(handle)
    with pytest.raises(
        GenerationError, match="engines are awake and can only be made weights awake when they are asleep"
    ):
        stages.wake_weights()
    held = stages.sleep()
    assert stages.sleep() == held, "engines that sleep already go on sleeping"
    for call in (
        lambda: stages.check_awake(),
        stages.check_has_room_for_weights,
        stages.wake_cache,
    ):
        with pytest.raises(GenerationError):
            call()
    stages.wake_weights()
    with pytest.raises(GenerationError):
        stages.sleep()
    stages.check_has_room_for_weights()
    stages.wake_cache()
    assert handle.woken == ["weights", "kv_cache"]
    stages.check_awake()


def test_engines_without_weights_wait_for_a_publication() -> None:
    stages = sleeping(FakeHandle(0, 3 * GIB), sleep="discard")
    stages.sleep()
    stages.wake_weights()
    with pytest.raises(GenerationError, match="publish between wake_weights and wake_cache"):
        stages.wake_cache()
    stages.note_loaded()
    stages.wake_cache()


def test_an_engine_that_was_replaced_without_a_copy_waits_for_a_publication() -> None:
    stages = sleeping(FakeHandle(0, RuntimeError("gone"), has_copy=False), sleep="offload")
    stages.sleep()
    stages.wake_weights()
    with pytest.raises(GenerationError, match="publish between wake_weights and wake_cache"):
        stages.wake_cache()


class FakeVllm:
    """Records what is asked of vLLM's engine; `num_left` steps are left of its last requests."""

    def __init__(self, num_left: int = 0) -> None:
        self.calls: list[Any] = []
        self.num_left = num_left
        self.engine_core = self.scheduler = self
        self.batch_queue = None

    def has_requests(self) -> bool:
        return self.num_left > 0

    def step(self) -> None:
        self.calls.append("step")
        self.num_left -= 1

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def release_kv_cache_memory(self) -> None:
        self.calls.append("release")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(("wake", *tags))

    def collective_rpc(self, method: str) -> list[int]:
        return [3, 5]


@pytest.mark.parametrize(
    ("mode", "on_cpu", "expected"),
    [
        ("cache", False, [("sleep", 0), "release", ("wake", "kv_cache")]),
        ("cache", True, [("sleep", 1), ("wake", "weights"), ("wake", "kv_cache")]),
        ("offload", False, [("sleep", 1), ("wake", "weights"), ("wake", "kv_cache")]),
        ("discard", False, [("sleep", 2), ("wake", "weights"), ("wake", "kv_cache")]),
    ],
)
def test_what_each_mode_asks_of_vllm(mode: str, on_cpu: bool, expected: list[Any]) -> None:
    engine = FakeVllm()
    sleep = SleepMode(engine, mode, on_cpu)
    assert sleep.sleep() == 5, "of the worker that holds most"
    for tag in ("weights", "kv_cache", "kv_cache"):
        sleep.wake(tag)
    assert engine.calls == expected


def test_what_is_left_of_the_last_requests_is_stepped_out_before_an_engine_sleeps() -> None:
    engine = FakeVllm(num_left=2)
    SleepMode(engine, "discard", on_cpu=False).sleep()
    assert engine.calls == ["step", "step", ("sleep", 2)]


def test_an_engine_that_never_becomes_idle_is_not_waited_for() -> None:
    engine = FakeVllm(num_left=1000)
    with pytest.raises(GenerationError, match="is not idle after 16 steps"):
        SleepMode(engine, "discard", on_cpu=False).sleep()
    assert engine.calls == ["step"] * 16
