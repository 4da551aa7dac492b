"""A mixture of experts goes from expert-parallel policy ranks into a vLLM engine, and both give a token the same
probability."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.policy.layout import layout_of
from tests.support.engine_pool import prompt_of, requests_of, rollouts_of, start_pool, weights_of
from tests.support.model_factory import make_config, make_model, make_plan
from tests.support.policy_ranks import Scenario, run_scenario
from tests.support.tiny_model import EOS_ID, make_tokenizer

pytestmark = pytest.mark.end_to_end

EP2 = {"data_parallel_size": 2, "expert_model_parallel_size": 2}
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # vLLM's CPU attention has no kernel for less
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "tie_word_embeddings": False,
    "eos_token_id": EOS_ID,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("mixture"), "qwen3_moe", **SIZES)
    make_tokenizer(folder)
    return folder


@pytest.fixture
def pool(cluster: None, folder: Path) -> Iterator[VllmPool]:
    pool = start_pool(folder, 1)
    yield pool
    pool.close()


def test_an_engine_samples_from_the_mixture_that_expert_parallel_ranks_trained(
    folder: Path, pool: VllmPool, tmp_path: Path
) -> None:
    config = make_config(**EP2)
    config.rollouts.temperature = 0.8
    trained = tmp_path / "trained"
    run_scenario(Scenario(config, folder, plans=(make_plan(2),), export_to=trained))
    prompt = prompt_of(70)
    requests = requests_of(prompt, 8, 4)
    before = rollouts_of(list(pool.generate(requests)))
    manifest, buckets = weights_of(trained)
    pool.load_weights(manifest, iter(buckets), version=1)
    after = rollouts_of(list(pool.generate(requests)))
    for weights, rollouts in ((folder, before), (trained, after)):
        responses = [tokens for tokens, _, _ in rollouts.values()]
        scored = Scenario(config, weights, score=([prompt.token_ids] * len(responses), responses))
        own = run_scenario(scored)[layout_of(config).report_rank].log_probs
        assert own is not None
        for mine, (_, sampled, _) in zip(own, rollouts.values(), strict=True):
            np.testing.assert_allclose(mine, sampled, atol=1e-4)
    assert before != after
