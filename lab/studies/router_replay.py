"""Measure what router replay removes: tokens that sampler and trainer send to different experts, and log-prob mismatch.

    python lab/studies/router_replay.py [--layers 12] [--experts 64] [--chosen 8] [--responses 32] [--json FILE]

No trained mixture is at hand, so a random Qwen3-MoE answers in vLLM's CPU engine in bf16. Its weights are drawn such
that the logits of its routers have a standard deviation of about `--spread`. The policy scores the responses in bf16,
once with routers that choose by themselves and once with the engine's routes. Shares are of tokens that have a route:
those that the policy's router would send to another set of experts in a layer, and in any of its layers, given the
hidden states that it gets. Mismatch: |log p of vLLM - log p of Megatron| in nats over the sampled tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.policy.process.device import open_device
from nemo_brorl.types import ChunkArrays, Prompt, RolloutRequest, Sampling

HIDDEN, PROMPT_TOKENS, RESPONSE_TOKENS = 256, 64, 64
LOGITS = 3.0  # standard deviation of the logits of tokens


def make_mixture(folder: Path, arguments: argparse.Namespace) -> int:
    """Write a random Qwen3-MoE model into a folder, and return the size of its vocabulary."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from tests.support.tiny_model import EOS_ID, VOCAB_SIZE, make_tokenizer

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE, hidden_size=HIDDEN, num_hidden_layers=arguments.layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=HIDDEN, moe_intermediate_size=64,
        num_experts=arguments.experts, num_experts_per_tok=arguments.chosen, norm_topk_prob=True,
        max_position_embeddings=256, tie_word_embeddings=False, eos_token_id=EOS_ID,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if "norm" not in name:
                scale = {"gate.weight": arguments.spread, "lm_head.weight": LOGITS}
                wanted = [value for ending, value in scale.items() if name.endswith(ending)]
                param.normal_(std=(wanted or [1.0])[0] / param.size(-1) ** 0.5)
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return VOCAB_SIZE


def replayed_config() -> BroRLConfig:
    config = BroRLConfig()
    config.policy.precision = config.generation.precision = "bf16"
    config.policy.moe.router_replay = True
    config.generation.num_engines = 1
    config.generation.max_model_len = PROMPT_TOKENS + RESPONSE_TOKENS
    return config


def sample(folder: Path, vocab_size: int, num_responses: int) -> tuple[Prompt, ChunkArrays]:
    """Sample responses to one random prompt with vLLM, and return the prompt and the responses.

    The responses hold their routes, the experts that vLLM chose for each token.
    """
    import ray

    from nemo_brorl.cluster.object_store import fetch
    from nemo_brorl.generation.pool import VllmPool

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    config = replayed_config()
    pool = VllmPool(config.generation, RunSizes.from_config(config), folder, records_routes=True)
    token_ids = np.random.default_rng(0).integers(3, vocab_size, PROMPT_TOKENS)
    prompt = Prompt("a", "task", "verifier", tuple(token_ids.tolist()), {})
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=RESPONSE_TOKENS)
    (chunk,) = pool.generate([RolloutRequest(prompt, 0, num_responses, 7, sampling)])
    arrays = fetch(chunk.data)
    pool.close()
    ray.shutdown()
    return prompt, arrays


class WatchedRouter:
    """A wrapper around a router's replay that records where the router would choose other experts.

    It replays the engine's routes only if `is_followed`.
    """

    def __init__(self, replay: Any, is_followed: bool) -> None:
        self.replay = replay
        self.is_followed = is_followed
        self.differs: list[Tensor] = []  # tokens of each pass that have a route

    def follow(self, routes: Tensor, is_training: bool) -> None:
        self.routes = routes
        self.replay.follow(routes, is_training)

    def get_replay_topk(self, scores: Tensor, topk: int, groups: Any, group_topk: Any, compute_topk: Any) -> Any:
        chosen = compute_topk(scores, topk, groups, group_topk)
        routes = self.routes[:, self.replay.layer].long()
        differs = (chosen[1].sort(1).values != routes.sort(1).values).any(1)
        self.differs.append(differs[routes[:, 0] >= 0])
        if self.is_followed:
            return self.replay.get_replay_topk(scores, topk, groups, group_topk, compute_topk)
        return chosen


def score(folder: Path, prompt: Prompt, arrays: ChunkArrays) -> list[tuple[float, float, float, float]]:
    """Score responses with the trainer's model, without and with replay of the experts that the engine chose.

    Returns for each the share of tokens with other experts in a layer and in any layer, and the mean and the largest
    log-prob mismatch in nats.
    """
    device = open_device(on_gpu=False, num_threads=torch.get_num_threads())
    from nemo_brorl.config.parallel_layout import layout_of
    from nemo_brorl.policy.process import process_groups
    from nemo_brorl.policy.rank.learner import Learner
    from nemo_brorl.policy.rank.pipeline import score_rows
    from nemo_brorl.policy.rows.packed_rows import GroupArrays, PackedGroup, Response

    config = replayed_config()
    process_groups.open_groups(layout_of(config), 0, dist.HashStore(), device, seed=1)
    learner = Learner(RankSettings.from_config(config), folder, device)
    group = GroupArrays([arrays])
    responses = []
    for rollout in range(len(arrays.offsets) - 1):
        token_ids, log_probs, _ = group.response(rollout)
        response = Response(0, rollout, token_ids, log_probs, 0.0, is_fresh=True, routes=group.routes(rollout))
        responses.append(response)
    prompt_ids = np.array(prompt.token_ids, np.int32)
    row = learner.state.row([PackedGroup(prompt_ids, tuple(responses), group.prompt_routes())], 1.0)
    (model,) = learner.state.models
    replays = model.router_replays
    found = []
    for is_followed in (False, True):
        model.router_replays = [WatchedRouter(replay, is_followed) for replay in replays]
        for layer, watched in zip(model.decoder.layers, model.router_replays, strict=True):
            layer.mlp.router.router_replay = watched
        (scores,) = score_rows(learner.state.chunks, [row])
        mismatch = (scores.log_probs - row.sampled_log_probs).abs()
        differs = torch.stack([watched.differs[0] for watched in model.router_replays]).float()
        shares = float(differs.mean()), float(differs.amax(0).mean())
        found.append((*shares, float(mismatch.mean()), float(mismatch.max())))
    process_groups.close_groups()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=8)
    parser.add_argument("--responses", type=int, default=32)
    parser.add_argument("--spread", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    open_device(on_gpu=False, num_threads=torch.get_num_threads())  # before anything imports megatron
    with tempfile.TemporaryDirectory() as name:
        vocab_size = make_mixture(Path(name), arguments)
        prompt, arrays = sample(Path(name), vocab_size, arguments.responses)
        found = score(Path(name), prompt, arrays)
    rows = []
    for side, (layer, model, mean, largest) in zip(("none", "replay"), found, strict=True):
        rows.append([side, f"{layer:.2%}", f"{model:.1%}", f"{mean:.5f}", f"{largest:.3f}"])
    print(f"{len(arrays.token_ids)} tokens of {arguments.responses} responses")
    print(*format_table(["", "another set, in a layer", "in any", "mean nats", "largest"], rows), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "settings": {**vars(arguments), "json": None}}, indent=1))


if __name__ == "__main__":
    main()
