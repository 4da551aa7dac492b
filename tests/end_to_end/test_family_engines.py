"""Families that vLLM runs by its Transformers backend: an engine takes trained weights, and gives tokens the policy's
log-probs before and after."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.engine_pool import prompt_of, requests_of, rollouts_of, start_pool, weights_of
from tests.support.model_factory import make_config, make_model, make_plan, scale_matrices
from tests.support.policy_ranks import Scenario, run_scenario
from tests.support.tiny_model import EOS_ID, make_tokenizer

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # vLLM's CPU attention has no kernel for less
    "eos_token_id": EOS_ID,
}


@pytest.mark.parametrize("family", ["smollm3", "olmo2"])
def test_an_engine_samples_from_the_family_that_the_policy_trained(cluster: None, family: str, tmp_path: Path) -> None:
    folder = scale_matrices(make_model(tmp_path / "model", family, **SIZES), 0.3)
    make_tokenizer(folder)
    config = make_config()
    config.rollouts.temperature = 0.8
    trained = tmp_path / "trained"
    run_scenario(Scenario(config, folder, plans=(make_plan(learning_rate=1e-2),), export_to=trained))
    prompt = prompt_of(40)
    requests = requests_of(prompt, 8, 4)
    pool = start_pool(folder, 1)
    try:
        before = rollouts_of(list(pool.generate(requests)))
        manifest, buckets = weights_of(trained)
        pool.load_weights(manifest, iter(buckets), version=1)
        after = rollouts_of(list(pool.generate(requests)))
    finally:
        pool.close()
    responses = [tokens for tokens, _, _ in after.values()]
    sampled = np.concatenate([log_probs for _, log_probs, _ in after.values()])
    prompts = [prompt.token_ids] * len(responses)
    first, second = (
        np.concatenate(run_scenario(Scenario(config, weights, score=(prompts, responses)))[0].log_probs or [])
        for weights in (folder, trained)
    )
    np.testing.assert_allclose(second, sampled, atol=1e-5)
    assert np.abs(first - sampled).max() > 0.1
    assert before != after
