"""vLLM on CUDA behind the pool: whose log-probs it samples with, and that seeds decide what is sampled, not how work is
cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import Prompt, RolloutRequest, Sampling
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.gpu

PROMPT = Prompt("a", "task", "verifier", tuple(range(3, 63)), {})
LENGTH = 16


def engine_config(precision: str, eager: bool = True) -> BroRLConfig:
    config = BroRLConfig()
    config.trainer.gpus_per_node = 1
    config.generation.gpu_memory_utilization, config.generation.precision = 0.2, precision
    config.generation.enforce_eager = eager
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), seed=0)


@pytest.fixture(scope="module", params=["eager", "CUDA graphs"])
def pool(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    pytest.importorskip("vllm")
    import ray

    from nemo_brorl.cluster.process_placement import Places, plan_roles
    from nemo_brorl.generation.pool import VllmPool

    config = engine_config("fp32", eager=request.param == "eager")
    ray.init(include_dashboard=False, logging_level="ERROR")
    places = Places(plan_roles(RunSizes.from_config(config)))
    made = VllmPool(config.generation, RunSizes.from_config(config), folder, places)
    yield made
    made.close()
    places.close()
    ray.shutdown()


def sample(pool: Any, first: int, num: int, temperature: float = 1.0) -> Any:
    from nemo_brorl.cluster.object_store import fetch

    (chunk,) = pool.generate([RolloutRequest(PROMPT, first, num, 11, Sampling(temperature, 1.0, LENGTH))])
    return fetch(chunk.data)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_log_probs_are_those_of_transformers(pool: Any, folder: Path, temperature: float) -> None:
    from nemo_brorl.policy.rank.hf_log_probs import hf_log_probs

    arrays = sample(pool, 0, 8, temperature)
    responses = [part.tolist() for part in np.split(arrays.token_ids, arrays.offsets[1:-1])]
    expected = np.concatenate(hf_log_probs(folder, [PROMPT.token_ids] * len(responses), responses, temperature))
    np.testing.assert_allclose(arrays.log_probs, expected, atol=5e-3)  # products may be in TF32


def test_the_same_rollouts_come_however_they_are_cut_into_chunks(pool: Any) -> None:
    """Batches of another size sum in another order, so a few may take another token; most must not."""
    whole = sample(pool, 0, 16)
    parts = [sample(pool, first, 4) for first in range(0, 16, 4)]
    together = [part.tolist() for arrays in parts for part in np.split(arrays.token_ids, arrays.offsets[1:-1])]
    alone = [part.tolist() for part in np.split(whole.token_ids, whole.offsets[1:-1])]
    assert sum(one == other for one, other in zip(together, alone, strict=True)) >= 12
    assert len({tuple(tokens) for tokens in alone}) > 8


def test_the_prompt_is_computed_once_for_a_group(pool: Any) -> None:
    sample(pool, 0, 1)
    before = pool.stats()[0]
    sample(pool, 0, 16)
    after = pool.stats()[0]
    queries, hits = (
        after.prefix_cache_queries - before.prefix_cache_queries,
        after.prefix_cache_hits - before.prefix_cache_hits,
    )
    assert queries == 16 * 60
    assert hits == 16 * 48  # three of its four blocks are full
