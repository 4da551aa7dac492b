"""A pool of real engines on a tiny model, and what tests ask of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nemo_brorl.cluster.object_store import fetch
from nemo_brorl.config.run_sizes import RunSizes
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.generation.pool import VllmPool
from nemo_brorl.types import Prompt, RolloutChunk, RolloutRequest, Sampling, StreamedBucket, TensorInfo, WeightBucket
from tests.support.tiny_model import VOCAB_SIZE

SAMPLING = Sampling(temperature=0.8, top_p=1.0, max_tokens=12)
Rollouts = dict[
    tuple[str, int], tuple[list[int], list[float], bool]
]  # (prompt, index in group): tokens, log-probs, stopped


def start_pool(
    folder: Path,
    num_engines: int,
    max_num_seqs: int = 512,
    router_replay: bool = False,
    precision: str = "fp32",
    engine_args: dict[str, Any] | None = None,
    lean_scheduler: str = "auto",
) -> VllmPool:
    config = BroRLConfig()
    config.generation.lean_scheduler = lean_scheduler
    config.generation.engine_args = engine_args or {}
    config.generation.precision = precision
    config.generation.num_engines = num_engines
    config.generation.max_num_seqs = max_num_seqs
    config.generation.max_model_len = 256
    config.generation.kv_cache_gib = 0.0625
    config.generation.max_restarts = 2
    return VllmPool(config.generation, RunSizes.from_config(config), folder, records_routes=router_replay)


def prompt_of(length: int, uid: str = "a") -> Prompt:
    tokens = np.random.default_rng(zlib.crc32(uid.encode())).integers(3, VOCAB_SIZE, length)
    return Prompt(uid, "task", "verifier", tuple(tokens.tolist()), {})


def requests_of(
    prompt: Prompt, num: int, size: int, seed: int = 11, sampling: Sampling = SAMPLING
) -> list[RolloutRequest]:
    return [RolloutRequest(prompt, first, min(size, num - first), seed, sampling) for first in range(0, num, size)]


def rollouts_of(chunks: Sequence[RolloutChunk]) -> Rollouts:
    rollouts: Rollouts = {}
    for chunk in chunks:
        arrays = fetch(chunk.data)
        assert np.array_equal(np.diff(arrays.offsets), chunk.lengths)
        for row, index in enumerate(chunk.indices.tolist()):
            part = slice(arrays.offsets[row], arrays.offsets[row + 1])
            key = (chunk.request.prompt.uid, index)
            assert key not in rollouts, "every rollout comes once"
            rollouts[key] = (
                arrays.token_ids[part].tolist(),
                arrays.log_probs[part].tolist(),
                bool(chunk.is_stopped[row]),
            )
    return rollouts


def sample(pool: VllmPool, requests: Sequence[RolloutRequest]) -> Rollouts:
    chunks = list(pool.generate(requests))
    assert len(chunks) == len(requests)
    return rollouts_of(chunks)


def weights_of(folder: Path, tensors_per_bucket: int = 5) -> tuple[list[TensorInfo], list[StreamedBucket]]:
    state = load_file(folder / "model.safetensors")
    manifest = [
        TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in state.items()
    ]
    buckets = []
    for first in range(0, len(manifest), tensors_per_bucket):
        part = tuple(manifest[first : first + tensors_per_bucket])
        data = np.concatenate([state[info.name].contiguous().view(-1).numpy().view(np.uint8) for info in part])
        buckets.append(StreamedBucket(ray.put(WeightBucket(part, data, zlib.crc32(data))), data.nbytes))
    return manifest, buckets


def hf_log_probs(folder: Path, prompt: Prompt, response: Sequence[int], temperature: float) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.token_ids, *response]])).logits[0]
    log_probs = torch.log_softmax(logits[len(prompt.token_ids) - 1 : -1] / temperature, dim=-1)
    return log_probs.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


def worst_difference(folder: Path, prompt: Prompt, rollouts: Rollouts) -> float:
    """max |vLLM - Hugging Face| over all tokens of the prompt's rollouts."""
    picked = [(tokens, log_probs) for (uid, _), (tokens, log_probs, _) in rollouts.items() if uid == prompt.uid]
    return max(
        float(np.abs(hf_log_probs(folder, prompt, t, SAMPLING.temperature) - np.array(lp)).max()) for t, lp in picked
    )
