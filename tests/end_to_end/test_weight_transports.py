"""Weights from real Megatron ranks into real vLLM engines by broadcast over Gloo; sleeping engines; participants that
hang or die."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.errors import GenerationError
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.policy.driver.megatron_policy import MegatronPolicy
from nemo_brorl.ports import WeightTarget
from nemo_brorl.types import Prompt, RolloutRequest, Sampling, StreamedBucket, TensorInfo, WeightBucket
from nemo_brorl.weights.publication import publish
from tests.support.tiny_model import VOCAB_SIZE, make_tiny_model

PROMPT = Prompt("a", "task", "verifier", tuple(np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).tolist()), {})
REQUESTS = [RolloutRequest(PROMPT, first, 4, 11, Sampling(1.0, 1.0, 12)) for first in (0, 4)]
NUM_TENSORS = 26  # of the tiny model
Sampled = dict[int, tuple[list[int], list[float]]]  # by place in the group: tokens, log-probs


def transport_config(transport: str) -> BroRLConfig:
    """Two engines, two pipeline stages, a bucket for every few tensors."""
    config = BroRLConfig()
    config.generation.num_engines = 2
    config.generation.kv_cache_gib = 0.0625
    config.generation.weight_transport = transport
    config.generation.weight_bucket_mib = 0.0625
    config.generation.weight_timeout_s = 30.0
    config.generation.sleep = "discard"
    config.policy.pipeline_model_parallel_size = 2
    config.algorithm.kl.coefficient = 0.0
    return config


@pytest.fixture(scope="module")
def stack(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MegatronPolicy, VllmPool, Path]]:
    """A policy and engines that begin with other weights, and the folder of the policy's."""
    base = tmp_path_factory.mktemp("models")
    config, mine = transport_config("collective"), make_tiny_model(base / "policy", seed=1)
    pool = VllmPool(config.generation, RunSizes.from_config(config), make_tiny_model(base / "engines", seed=0))
    policy = MegatronPolicy(RankSettings.from_config(config), mine)
    policy.wait_ready()
    yield policy, pool, mine
    policy.close()
    pool.close()


def sample(pool: VllmPool, version: int) -> Sampled:
    sampled: Sampled = {}
    for chunk in pool.generate(REQUESTS):
        assert chunk.version == chunk.newest_version == version
        arrays = fetch(chunk.data)
        for row, index in enumerate(chunk.indices.tolist()):
            part = slice(arrays.offsets[row], arrays.offsets[row + 1])
            sampled[index] = (arrays.token_ids[part].tolist(), arrays.log_probs[part].tolist())
    return sampled


def from_object_store(folder: Path) -> tuple[list[TensorInfo], list[StreamedBucket]]:
    """The weights of a folder as the object store carries them: one bucket for everything."""
    state = load_file(folder / "model.safetensors")
    manifest = [TensorInfo(name, tuple(tensor.shape), "float32") for name, tensor in state.items()]
    data = np.concatenate([state[info.name].contiguous().view(-1).numpy().view(np.uint8) for info in manifest])
    return manifest, [StreamedBucket(ray.put(WeightBucket(tuple(manifest), data, zlib.crc32(data))), data.nbytes)]


def worst_difference(folder: Path, sampled: Sampled) -> float:
    """max |vLLM - Hugging Face| over all tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    worst = 0.0
    for tokens, log_probs in sampled.values():
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT.token_ids, *tokens]])).logits[0, len(PROMPT.token_ids) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        worst = max(worst, float((expected - torch.tensor(log_probs)).abs().max()))
    return worst


def test_a_broadcast_leaves_the_weights_that_the_object_store_leaves(
    stack: tuple[MegatronPolicy, VllmPool, Path],
) -> None:
    policy, pool, folder = stack
    before = sample(pool, version=0)
    report = publish(policy, pool, version=1)
    broadcast = sample(pool, version=1)
    assert broadcast != before
    assert worst_difference(folder, broadcast) < 1e-4
    pool.load_weights(*from_object_store(folder), version=2)
    assert sample(pool, version=2) == broadcast
    assert (report.transport, report.num_tensors, report.num_attempts) == ("collective", NUM_TENSORS, 1)
    assert report.num_bytes == sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())


def test_a_new_group_is_made_when_an_engine_was_replaced(stack: tuple[MegatronPolicy, VllmPool, Path]) -> None:
    policy, pool, _ = stack
    publish(policy, pool, version=3)
    expected = sample(pool, version=3)
    names = pool.weight_receivers()
    os.kill(pool.wait_ready()[1].process, signal.SIGKILL)
    report = publish(policy, pool, version=4)
    assert sample(pool, version=4) == expected
    assert pool.weight_receivers() != names
    assert report.num_attempts <= 2, "the death may be noticed before or while weights are sent"


def test_engines_that_are_all_lost_while_they_sample_get_the_weights_again_and_sample_the_same(
    stack: tuple[MegatronPolicy, VllmPool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, pool, _ = stack
    publish(policy, pool, version=5)
    expected = sample(pool, version=5)
    monkeypatch.setattr(pool, "_generation", replace(pool._generation, sleep="off"))
    sent_to = []

    def publish_again(target: WeightTarget) -> None:
        sent_to.extend(target.weight_receivers())
        publish(policy, target, version=5)

    pool.on_lost_weights(publish_again)
    for ready in pool.wait_ready():
        os.kill(ready.process, signal.SIGKILL)
    assert sample(pool, version=5) == expected
    assert set(sent_to) <= set(pool.weight_receivers())
    assert publish(policy, pool, version=6).num_attempts == 1
    assert sample(pool, version=6) == expected


def test_engines_sleep_in_stages_and_do_not_wake_without_weights(stack: tuple[MegatronPolicy, VllmPool, Path]) -> None:
    policy, pool, _ = stack
    publish(policy, pool, version=7)
    expected = sample(pool, version=7)
    metrics = pool.sleep()
    assert 0.05 < metrics["sleep/residual_gib_mean"] <= metrics["sleep/residual_gib_max"] < 4
    assert metrics["sleep/residual_growth_gib_max"] == 0
    with pytest.raises(GenerationError, match="while engines sleep"):
        pool.open_session()
    pool.wake_weights()
    with pytest.raises(GenerationError, match="publish between wake_weights and wake_cache"):
        pool.wake_cache()
    publish(policy, pool, version=8)
    pool.wake_cache()
    assert sample(pool, version=8) == expected
