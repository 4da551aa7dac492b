"""Small random Hugging Face models, configs and update plans for tests of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.types import ChunkArrays, GroupSlice, MicroBatch, PlannedGroup, UpdatePlan

VOCAB_SIZE = 131  # prime: padded under tensor parallelism

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
_MOE_SIZES = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "head_dim": 8,
}
# Some families' own special tokens lie outside the vocabulary of these models.
_NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
# What a family has beside these sizes.
_SIZES_OF: dict[str, dict[str, Any]] = {
    "qwen3_moe": _MOE_SIZES,
    "mistral": {"sliding_window": None},
    "seed_oss": {"head_dim": 16},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.25,
        "logits_scaling": 0.7,
    },
    "glm4": {"head_dim": 12},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
}


def make_model(folder: Path, architecture: str = "qwen2", seed: int = 0, **sizes: Any) -> Path:
    """A folder with a random model whose every tensor matters (norms and biases included)."""
    torch.manual_seed(seed)
    settings = _SIZES | _NO_TOKENS | _SIZES_OF.get(architecture, {}) | sizes
    config = transformers.AutoConfig.for_model(architecture, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, param in model.named_parameters():
            noise = torch.randn_like(param)
            param.copy_(1 + 0.2 * noise if "norm" in name else 0.2 * noise)
    model.save_pretrained(folder)
    return folder


def scale_matrices(folder: Path, factor: float) -> Path:
    """The model with matrices and biases multiplied: by 0.2 they have about the size of trained ones."""
    path = folder / "model.safetensors"
    weights = {name: tensor if "norm" in name else factor * tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def make_config(**policy: Any) -> BroRLConfig:
    """Defaults, fp32, with the given attributes of `policy` changed."""
    config = BroRLConfig()
    for name, value in policy.items():
        assert hasattr(config.policy, name), name
        setattr(config.policy, name, value)
    return config


def make_group(
    rng: np.random.Generator, prompt_length: int, lengths: Sequence[int], chunk_size: int = 3
) -> PlannedGroup:
    """A group of random tokens, cut into chunks, with random advantages and sampled log-probs."""
    chunks = []
    for start in range(0, len(lengths), chunk_size):
        part = lengths[start : start + chunk_size]
        offsets = np.cumsum([0, *part]).astype(np.int64)
        total = int(offsets[-1])
        token_ids = rng.integers(0, VOCAB_SIZE, total, dtype=np.int32)
        chunks.append(ChunkArrays(token_ids, rng.uniform(-6, -3, total).astype(np.float32), offsets))
    prompt = rng.integers(0, VOCAB_SIZE, prompt_length, dtype=np.int32)
    return PlannedGroup(prompt, tuple(chunks), rng.normal(size=len(lengths)).astype(np.float32), staleness=0)


def rollout_lengths(group: PlannedGroup) -> list[int]:
    """Response tokens of every rollout of a group."""
    return [int(length) for chunk in group.chunks for length in np.diff(chunk.offsets)]


def micro_batch(
    groups: Sequence[PlannedGroup], slices: Sequence[tuple[int, Sequence[int]]], shared: bool = True
) -> MicroBatch:
    """A micro-batch of (group, rollouts); unshared, every rollout gets a slice of its own."""
    cut = [(group, tuple(rollouts)) for group, rollouts in slices]
    if not shared:
        cut = [(group, (rollout,)) for group, rollouts in cut for rollout in rollouts]
    loss_tokens = sum(rollout_lengths(groups[group])[rollout] for group, rollouts in cut for rollout in rollouts)
    prompt_tokens = sum(len(groups[group].prompt_ids) for group, _ in cut)
    return MicroBatch(tuple(GroupSlice(*group_slice) for group_slice in cut), prompt_tokens + loss_tokens, loss_tokens)


def make_plan(
    data_parallel_size: int = 1,
    num_mini_batches: int = 2,
    micro_batches: int = 2,
    objective: str = "ppo_clip",
    shared: bool = True,
    seed: int = 0,
    learning_rate: float = 1e-3,
    version: int = 1,
) -> UpdatePlan:
    """Four groups of eight rollouts, the same mini-batches however they are cut into ranks and micro-batches."""
    rng = np.random.default_rng(seed)
    groups = tuple(make_group(rng, int(rng.integers(3, 12)), rng.integers(1, 9, 8).tolist()) for _ in range(4))
    mini_batches = []
    for mini in range(num_mini_batches):
        mine = [
            (group, rollout)
            for group in range(4)
            for rollout in range(8)
            if (group + rollout) % num_mini_batches == mini
        ]
        cuts = np.array_split(np.arange(len(mine)), data_parallel_size * micro_batches)
        micros = [micro_batch(groups, _by_group([mine[i] for i in cut]), shared) for cut in cuts]
        mini_batches.append(
            tuple(tuple(micros[r * micro_batches : (r + 1) * micro_batches]) for r in range(data_parallel_size))
        )
    return UpdatePlan(version, objective, learning_rate, groups, tuple(mini_batches))


def as_trajectories(plan: UpdatePlan) -> UpdatePlan:
    """The plan with tokens 0 and 1 only, so that responses share what they begin with; every fourth was observed, and
    every turn has an advantage of its own."""
    rng = np.random.default_rng(0)
    groups = []
    for group in plan.groups:
        num_turns = np.maximum(-(-np.array(rollout_lengths(group)) // 4), 1)
        advantages = rng.normal(size=(len(num_turns), num_turns.max())).astype(np.float32)
        chunks = []
        for chunk in group.chunks:
            lengths = np.diff(chunk.offsets)
            places = np.arange(len(chunk.token_ids)) - np.repeat(chunk.offsets[:-1], lengths)
            chunks.append(replace(chunk, token_ids=chunk.token_ids % 2, is_sampled=places % 4 != 3))
        groups.append(replace(group, chunks=tuple(chunks), advantages=advantages, num_turns=num_turns))

    def with_sampled_tokens(micro: MicroBatch) -> MicroBatch:
        num_sampled = 0
        for group_slice in micro.slices:
            lengths = np.array(rollout_lengths(plan.groups[group_slice.group]))[list(group_slice.rollouts)]
            num_sampled += int((lengths - lengths // 4).sum())
        return replace(micro, num_loss_tokens=num_sampled)

    mini_batches = []
    for ranks in plan.mini_batches:
        mini_batches.append(tuple(tuple(with_sampled_tokens(micro) for micro in rank) for rank in ranks))
    return replace(plan, groups=tuple(groups), mini_batches=tuple(mini_batches))


def _by_group(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    return [(group, [r for g, r in pairs if g == group]) for group in sorted({g for g, _ in pairs})]
