"""Weights into a colocated engine through memory of the GPU they share; what a sleeping engine holds; the GPU's
checksum.

No machine of this project has run these with vLLM so far.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import BucketNotice, Prompt, RolloutRequest, Sampling
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.gpu

PROMPT = Prompt("a", "task", "verifier", tuple(range(3, 43)), {})


def map_and_check(notice: BucketNotice, answers: Any) -> None:
    """In another process: the announced tensors, from the GPU's memory."""
    from nemo_brorl.weights.cuda_memory import map_memory
    from nemo_brorl.weights.flat import check_bytes, unflatten

    assert notice.handles is not None
    flat = map_memory(notice.handles, torch.device("cuda", 0))
    check_bytes(notice, flat)
    answers.put({name: tensor.cpu().tolist() for name, tensor in unflatten(notice.tensors, flat)})


def test_another_process_maps_what_a_rank_exports(gpu_device: Any) -> None:
    from nemo_brorl.weights.sender import WeightSender

    named = [("a", torch.arange(5.0, device="cuda")), ("b", torch.ones(3, dtype=torch.bfloat16, device="cuda"))]
    stream = WeightSender("cuda_ipc", is_first_rank=True).stream(named, limit=1 << 20)
    notice = next(stream)
    context = mp.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=map_and_check, args=(notice, answers))
    process.start()
    assert answers.get(timeout=120) == {"a": [0, 1, 2, 3, 4], "b": [1, 1, 1]}
    process.join()
    assert list(stream) == []


def test_the_checksum_is_the_same_on_both_devices() -> None:
    from nemo_brorl.weights.flat import checksum, word_checksum

    flat = torch.randint(0, 256, (10_000_019,), dtype=torch.uint8)
    assert checksum(flat.cuda()) == word_checksum(flat)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    pytest.importorskip("vllm")
    import ray

    ray.init(include_dashboard=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("mode", ["cache", "offload", "discard"])
def test_a_colocated_engine_sleeps_and_wakes_with_published_weights(cluster: None, tmp_path: Path, mode: str) -> None:
    from nemo_brorl.cluster.process_placement import Places, plan_roles
    from nemo_brorl.generation.pool import VllmPool
    from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
    from nemo_brorl.weights.publication import publish

    config = BroRLConfig()
    config.trainer.gpus_per_node = 1
    config.policy.data_parallel_size = None
    config.algorithm.kl.coefficient = 0.0
    config.generation.sleep, config.generation.gpu_memory_utilization = mode, 0.3
    if mode == "cache" and not has_cache_release():
        pytest.skip("this vLLM cannot release the KV cache alone")
    places = Places(plan_roles(RunSizes.from_config(config)))
    pool = VllmPool(
        config.generation, RunSizes.from_config(config), make_tiny_model(tmp_path / "engine", seed=0), places
    )
    policy = MegatronPolicy(
        RankSettings.from_config(config), make_tiny_model(tmp_path / "policy", seed=1), places=places
    )
    try:
        pool.wait_ready()  # first, as the two share a GPU
        policy.wait_ready()
        assert publish(policy, pool, version=1).transport == "cuda_ipc"
        before, free = sample(pool), torch.cuda.mem_get_info()[0]
        metrics = pool.sleep()
        cache = 0.2 * torch.cuda.get_device_properties(0).total_memory  # most of what the engine may use
        assert torch.cuda.mem_get_info()[0] - free > cache
        assert metrics["sleep/residual_gib_max"] > 0
        pool.wake_weights()
        publish(policy, pool, version=2)
        pool.wake_cache()
        assert sample(pool) == before
    finally:
        policy.close()
        pool.close()
        places.close()


def has_cache_release() -> bool:
    """Without importing vLLM here, which would see this process's GPU."""
    import importlib.metadata

    return tuple(map(int, importlib.metadata.version("vllm").split(".")[:2])) >= (0, 32)


def sample(pool: Any) -> list[int]:
    from nemo_brorl.cluster.object_store import fetch

    (chunk,) = pool.generate([RolloutRequest(PROMPT, 0, 4, 11, Sampling(1.0, 1.0, 12))])
    return fetch(chunk.data).token_ids.tolist()
