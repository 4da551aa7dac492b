"""A mixture of experts goes from expert-parallel policy ranks into a vLLM engine, and both give a token the same
probability; routes go from the engine to the policy, which follows them under every layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.parallel_layout import layout_of
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.types import NO_ROUTE, ChunkArrays, PartialRollouts, PlannedGroup, Prompt, UpdatePlan
from tests.support.engine_pool import prompt_of, requests_of, rollouts_of, start_pool, weights_of
from tests.support.model_factory import make_config, make_model, make_plan, micro_batch
from tests.support.policy_ranks import Scenario, run_scenario
from tests.support.tiny_model import EOS_ID, make_tokenizer

pytestmark = [pytest.mark.end_to_end, pytest.mark.numbers]

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


@pytest.fixture(scope="module")
def started(cluster: None, folder: Path) -> Iterator[VllmPool]:
    pool = start_pool(folder, 1, router_replay=True)
    yield pool
    pool.close()


@pytest.fixture
def pool(started: VllmPool, folder: Path) -> VllmPool:
    """Whose rollouts say which experts their tokens went to, with the folder's weights, whatever a test has loaded."""
    manifest, buckets = weights_of(folder)
    started.load_weights(manifest, iter(buckets), version=0)
    return started


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


def routes_of_transformers(folder: Path, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """[tokens, layers, k] experts of each sequence's tokens, ascending."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits: list[Tensor] = []
    for layer in model.model.layers:
        gate = layer.mlp.gate
        gate.register_forward_hook(
            lambda gate, inputs, output: logits.append(inputs[0].reshape(-1, gate.weight.size(1)) @ gate.weight.T)
        )
    found = []
    for tokens in sequences:
        logits.clear()
        with torch.no_grad():
            model(torch.tensor([tokens]))
        chosen = [of_layer.topk(gate.top_k).indices.sort(1).values for of_layer in logits]
        found.append(torch.stack(chosen, dim=1).numpy())
    return found


def responses_of(arrays: ChunkArrays) -> list[tuple[list[int], np.ndarray]]:
    """Tokens and sorted routes of each response."""
    assert arrays.routes is not None
    found = []
    for start, end in zip(arrays.offsets[:-1], arrays.offsets[1:], strict=True):
        found.append((arrays.token_ids[start:end].tolist(), np.sort(arrays.routes[start:end], axis=2)))
    return found


def check_routes(folder: Path, prompt: Prompt, chunks: Sequence[ChunkArrays]) -> None:
    """Those of every chunk against transformers: all but the last token of each response have one."""
    for arrays in chunks:
        responses = responses_of(arrays)
        expected = routes_of_transformers(folder, [[*prompt.token_ids, *tokens] for tokens, _ in responses])
        num_prompt = len(prompt.token_ids)
        assert arrays.prompt_routes is not None
        assert np.array_equal(np.sort(arrays.prompt_routes, axis=2), expected[0][:num_prompt])
        for (_, routes), theirs in zip(responses, expected, strict=True):
            assert np.array_equal(routes[:-1], theirs[num_prompt:-1])
            assert (routes[-1] == NO_ROUTE).all()


def plan_of(prompt: Prompt, chunks: Sequence[ChunkArrays]) -> UpdatePlan:
    """One update on all their responses at a learning rate of 0."""
    num = sum(len(chunk.offsets) - 1 for chunk in chunks)
    group = PlannedGroup(np.array(prompt.token_ids, np.int32), tuple(chunks), np.ones(num, np.float32), staleness=0)
    micro = micro_batch([group], [(0, range(num))])
    return UpdatePlan(1, "ppo_clip", 0.0, (group,), (((micro,),),))


def metrics_of(folder: Path, plan: UpdatePlan, router_replay: bool, **policy: object) -> dict[str, float]:
    config = make_config(**policy)
    config.rollouts.temperature = 0.8
    config.policy.moe.router_replay = router_replay
    outcomes = run_scenario(Scenario(config, folder, plans=(plan,)))
    return outcomes[layout_of(config).report_rank].metrics[0]


def test_the_policy_routes_the_tokens_of_rollouts_as_their_engine_did(folder: Path, pool: VllmPool) -> None:
    prompt = prompt_of(70)  # two blocks of it are found in the cache by all but the first
    chunks = [fetch(chunk.data) for chunk in pool.generate(requests_of(prompt, 8, 4))]
    check_routes(folder, prompt, chunks)
    metrics = metrics_of(folder, plan_of(prompt, chunks), router_replay=True)
    num_tokens = len(prompt.token_ids) + sum(len(chunk.token_ids) for chunk in chunks)
    assert metrics["policy/router_replayed"] == pytest.approx(1 - 8 / num_tokens)
    assert metrics["policy/router_changed"] == 0
    assert metrics["policy/log_prob_mismatch_max"] < 1e-4


def test_a_rollout_that_is_gone_on_with_has_routes_from_its_beginning(folder: Path, pool: VllmPool) -> None:
    """Its first five tokens were sampled by an engine that recorded none."""
    prompt = prompt_of(40, uid="b")
    (request,) = requests_of(prompt, 3, 3)
    begun = ChunkArrays(
        token_ids=np.arange(5, 20, dtype=np.int32),
        log_probs=np.full(15, -1.0, np.float32),
        offsets=np.array([0, 5, 10, 15]),
    )
    lengths = np.full(3, 5, np.int32)
    partial = PartialRollouts(request.indices, lengths, version=0, data=ray.put(begun))
    (chunk,) = pool.generate([replace(request, partial=partial)])
    check_routes(folder, prompt, [fetch(chunk.data)])


def test_in_bf16_replay_takes_the_routers_part_of_the_mismatch_away(cluster: None, tmp_path: Path) -> None:
    """Many experts, so that some are close."""
    folder = make_model(tmp_path, "qwen3_moe", **(SIZES | {"num_experts": 32, "num_experts_per_tok": 4}))
    make_tokenizer(folder)
    pool = start_pool(folder, 1, router_replay=True, precision="bf16")
    prompt = prompt_of(70)
    chunks = [fetch(chunk.data) for chunk in pool.generate(requests_of(prompt, 16, 8))]
    pool.close()
    plan = plan_of(prompt, chunks)
    replayed = metrics_of(folder, plan, router_replay=True, precision="bf16")
    chosen = metrics_of(folder, plan, router_replay=False, precision="bf16")
    assert replayed["policy/router_changed"] > 0
    assert replayed["policy/log_prob_mismatch"] < chosen["policy/log_prob_mismatch"]


LAYOUTS = {
    "EP2": EP2,
    "TP2": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "CP2": {"context_parallel_size": 2},
    "PP2, full recompute": {"pipeline_model_parallel_size": 2, "recompute": "full"},
    "PP2 interleaved, selective recompute": {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "recompute": "selective",
    },
}


def with_random_routes(plan: UpdatePlan) -> UpdatePlan:
    """Two of eight experts for each token in each of four layers; none for last tokens."""
    random = np.random.default_rng(0)

    def drawn(num_tokens: int) -> np.ndarray:
        every = np.tile(np.arange(8, dtype=np.int8), (num_tokens, 4, 1))
        return random.permuted(every, axis=2)[..., :2]

    groups = []
    for group in plan.groups:
        chunks = []
        of_prompt = drawn(len(group.prompt_ids))
        for chunk in group.chunks:
            routes = drawn(len(chunk.token_ids))
            routes[chunk.offsets[1:] - 1] = NO_ROUTE
            chunks.append(replace(chunk, routes=routes, prompt_routes=of_prompt))
        groups.append(replace(group, chunks=tuple(chunks)))
    return replace(plan, groups=tuple(groups))


def test_routes_are_followed_alike_under_every_layout(tmp_path: Path) -> None:
    """A second update shows that gradients were alike."""
    folder = make_model(tmp_path, "qwen3_moe", tie_word_embeddings=False)

    def played(policy: dict) -> list[dict[str, float]]:
        config = make_config(**policy)
        config.policy.moe.router_replay = True
        num_ranks = layout_of(config).data
        plans = []
        for version in (1, 2):
            plan = make_plan(num_ranks, micro_batches=4 // num_ranks, seed=version, version=version)
            plans.append(with_random_routes(plan))
        outcomes = run_scenario(Scenario(config, folder, plans=tuple(plans)))
        metrics = outcomes[layout_of(config).report_rank].metrics
        for update in metrics:
            assert update.pop("policy/router_replayed") > 0.5, "of a row's padding, too"
        return metrics

    expected = played({})
    for name, layout in LAYOUTS.items():
        for mine, single in zip(played(layout), expected, strict=True):
            assert mine == pytest.approx(single, rel=1e-3, abs=1e-6), name
