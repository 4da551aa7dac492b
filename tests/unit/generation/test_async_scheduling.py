"""Sessions, sleep, weights in mid-flight and cuts over vLLM's real engine core with asynchronous scheduling, as CUDA
has it and the CPU build has not. The executor is a fake (tests/support/fake_executor.py says what that cannot show)."""

from __future__ import annotations

import asyncio
import gc
import os
import zlib
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.device import EngineSettings
from nemo_brorl.generation.engine_actor import RolloutEngine
from nemo_brorl.types import Prompt, RolloutRequest, Sampling, TensorInfo, WeightBucket
from nemo_brorl.weights.incoming import read_shapes
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.slow

ARGUMENTS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 4,
    "block_size": 32,
    "logprobs_mode": "processed_logprobs",
    "disable_log_stats": True,
}
SCHEDULERS = {"vllm": None, "lean": "nemo_brorl.generation.lean_scheduler.make_scheduler"}
PROMPT = Prompt("a", "task", "verifier", tuple(range(3, 40)), {})  # one block of 32 tokens and 5 more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True, params=SCHEDULERS)
def vllm_without_a_model(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The process as an engine's actor has it, with either scheduler, and put back after the test."""
    monkeypatch.setitem(ARGUMENTS, "scheduler_cls", SCHEDULERS[request.param])
    monkeypatch.setattr(os, "environ", dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0"))
    from vllm import LLMEngine

    from tests.support.fake_executor import FakeExecutor, new_engine

    monkeypatch.setattr(LLMEngine, "from_engine_args", new_engine)
    monkeypatch.setattr(FakeExecutor, "made", [])
    yield
    # The end of an engine ends the process's default group with it: now, and not in a test of the policy.
    FakeExecutor.made.clear()
    gc.unfreeze()
    gc.collect()


def engine_of(folder: Path, sleep: str = "discard", **arguments: Any) -> RolloutEngine:
    """An engine for up to four rollouts."""
    from tests.support.fake_executor import FakeExecutor

    known = ARGUMENTS | {"model": str(folder), "distributed_executor_backend": FakeExecutor}
    settings = EngineSettings(
        0, str(folder), on_cpu=False, sleep=sleep, worker_environment={}, arguments=known | arguments
    )
    return RolloutEngine(settings)


def request_of(num: int = 4, num_tokens: int = 20) -> RolloutRequest:
    return RolloutRequest(PROMPT, 0, num, 7, Sampling(1.0, 1.0, num_tokens))


async def publish(engine: RolloutEngine, folder: Path, version: int) -> None:
    """A whole update in one bucket of zeros."""
    tensors = tuple(TensorInfo(name, shape, "float32") for name, shape in read_shapes(folder).items())
    data = np.zeros(sum(info.num_bytes for info in tensors), np.uint8)
    await engine.begin_weights(tensors)
    await engine.receive_weights(WeightBucket(tensors, data, zlib.crc32(data)))
    await engine.finish_weights(version)


async def in_mid_flight(work: Coroutine[Any, Any, Any]) -> None:
    """Ask for `work` while the gate holds the engine's sixth batch, and see it through."""
    gate = executor().gate
    while not gate.is_reached.is_set():
        await asyncio.sleep(0.001)
    asked = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    gate.may_go_on.set()
    await asked


def new_gate() -> Any:
    from tests.support.fake_executor import Gate

    return Gate(at_batch=6)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def executor() -> Any:
    from tests.support.fake_executor import FakeExecutor

    return FakeExecutor.made[-1]


@pytest.mark.parametrize("mode", ["cache", "offload", "discard"])
def test_an_engine_sleeps_after_it_has_sampled_and_samples_again(mode: str, folder: Path) -> None:
    """Without the steps that drain it vLLM refuses `cache`: what ended last is still told to the workers."""

    async def turns() -> None:
        engine = engine_of(folder, sleep=mode)
        for _ in range(2):
            meta, _, _ = await engine.generate(0, request_of(), None)
            assert meta.lengths.tolist() == [20] * 4
            await engine.sleep()
            assert executor().mapped == ({"weights"} if mode == "cache" else set())
            await engine.wake("weights")
            await engine.wake("kv_cache")

    run(turns())


def test_vllm_refuses_to_release_a_cache_that_was_not_drained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The behaviour that draining is for: if this fails, vLLM has changed."""

    async def turn() -> None:
        engine = engine_of(folder, sleep="cache")
        monkeypatch.setattr(engine._sleep_mode, "_drain", lambda: None)
        await engine.generate(0, request_of(), None)
        with pytest.raises(RuntimeError, match="requires a completed pause first"):
            await engine.sleep()

    run(turn())


def test_the_engine_is_built_and_used_on_one_thread(folder: Path) -> None:
    async def session() -> None:
        engine = engine_of(folder)
        await engine.generate(0, request_of(), None)
        await publish(engine, folder, 1)
        await engine.sleep()

    run(session())
    assert len(executor().threads) == 1


def test_tokens_are_of_the_version_that_sampled_them_across_a_load_in_mid_flight(folder: Path) -> None:
    async def session() -> None:
        engine = engine_of(folder)
        executor().gate = new_gate()
        sampling = asyncio.ensure_future(engine.generate(0, request_of(), None))
        await in_mid_flight(publish(engine, folder, 1))
        meta, arrays, _ = await sampling
        tokens = arrays.token_ids.reshape(4, 20)
        assert (meta.version, meta.newest_version) == (0, 1)
        assert set(tokens[0].tolist()) == {10, 11}
        assert (np.diff(tokens, axis=1) >= 0).all(), "no token of the old weights comes after one of the new"
        meta, arrays, _ = await engine.generate(1, request_of(), None)
        assert (meta.version, set(arrays.token_ids.tolist())) == (1, {11})

    run(session())


def test_a_chunk_that_is_cut_in_mid_flight_keeps_what_has_arrived_and_goes_on(folder: Path) -> None:
    async def session() -> None:
        engine = engine_of(folder)
        executor().gate = new_gate()
        sampling = asyncio.ensure_future(engine.generate(0, request_of(), None))
        await in_mid_flight(engine.cut([0]))
        meta, _, partial = await sampling
        assert len(meta.lengths) == 0
        assert (np.diff(partial.offsets) >= 5).all()
        rest = RolloutRequest(PROMPT, 0, 4, 7, Sampling(1.0, 1.0, 20), partial=meta.partial)
        meta, _, _ = await engine.generate(1, rest, partial)
        assert meta.lengths.tolist() == [20] * 4
        await engine.sleep()

    run(session())


def test_an_aborted_engine_sleeps_at_once(folder: Path) -> None:
    async def session() -> None:
        engine = engine_of(folder, sleep="cache")
        executor().gate = new_gate()
        sampling = asyncio.ensure_future(engine.generate(0, request_of(), None))
        with pytest.raises(GenerationError, match="while chunks are in flight"):
            await in_mid_flight(engine.sleep())
        await engine.abort([0])
        await sampling
        await engine.sleep()
        assert executor().mapped == {"weights"}

    run(session())


def test_prefix_cache_and_preemptions_are_counted_without_vllms_metrics(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.fake_executor import FakeExecutor

    monkeypatch.setattr(FakeExecutor, "num_blocks", 9)  # four rollouts of 37 + 60 tokens want 16, one is vLLM's own

    async def session() -> None:
        engine = engine_of(folder)
        await engine.generate(0, request_of(num_tokens=60), None)
        stats = await engine.stats()
        assert stats.num_preemptions > 0
        assert stats.prefix_cache_queries == 4 * 37
        assert stats.prefix_cache_hits == 3 * 32
        assert stats.generated_tokens == 240

    run(session())
