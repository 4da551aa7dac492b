"""b: log-probs of the same tokens from Hugging Face and from Megatron with Transformer Engine, in bf16 and FP8.

    python -m bench.gpu.parity [--tiny] [--results FOLDER]

Every family small, and the 1.5B shape. The yardstick is Hugging Face in fp32. *Noise* is how far Hugging Face's own
bf16 is from it: the known bf16 noise that Megatron's bf16 is held to, with a quarter for another order of sums. *FP8*
is Megatron's FP8 against its bf16. Weights are random, whose logits are sums of noise, so FP8 moves them far more than
those of a trained model: the alarm of training is held against a trained one, by `bench/gpu/fp8_learning.py`.
Differences are mean |log p| ones in nats. On CPU, FP8 is emulated.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu.one_rank import OneRank, config_for, open_rank
from bench.gpu.record import Row
from bench.gpu.setting import open_setting
from bench.gpu.shapes import FAMILIES, QWEN_1_5B, TINY, make_model
from nemo_brorl.config.schema import BroRLConfig

NOISE_FACTOR = 1.25
RECIPES: dict[str, dict[str, Any]] = {
    "tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "delayed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_amax_history": 16},
    "blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
}
Tokens = tuple[list[list[int]], list[list[int]]]  # prompts, responses


def draw_tokens(vocab_size: int, num: int, prompt: int, response: int) -> Tokens:
    """Random sequences of these lengths."""
    random = np.random.default_rng(0)
    prompts, responses = (random.integers(0, vocab_size, (num, length)).tolist() for length in (prompt, response))
    return prompts, responses


@torch.no_grad()
def hugging_face(folder: Path, dtype: torch.dtype, tokens: Tokens, device: torch.device) -> np.ndarray:
    """Log-probs of all response tokens, end to end."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval().to(device)
    found = []
    for prompt, response in zip(*tokens, strict=True):
        token_ids = torch.tensor([[*prompt, *response]], device=device)
        logits = model(token_ids).logits[0, len(prompt) - 1 : -1].float()
        found.append(logits.log_softmax(-1).gather(1, token_ids[0, len(prompt) :, None])[:, 0].cpu().numpy())
    del model
    gc.collect()
    return np.concatenate(found)


def megatron(rank: OneRank, folder: Path, config: BroRLConfig, tokens: Tokens) -> np.ndarray:
    """Return the policy's log-probs of all response tokens, concatenated."""
    with rank.learner(folder, config) as learner:
        log_probs = learner.log_probs(*tokens)
    assert log_probs is not None
    return np.concatenate(log_probs)


def mean_abs(difference: np.ndarray) -> float:
    """NaN stays NaN."""
    return float(np.abs(difference).mean())


def compare_bf16(rank: OneRank, name: str, shape: Mapping[str, Any], tokens: Tokens) -> None:
    """One model in bf16 against Hugging Face."""
    setting = rank.setting
    folder = make_model(setting.models / name.replace(" ", "_"), shape)
    exact = hugging_face(folder, torch.float32, tokens, setting.device)
    noise = mean_abs(hugging_face(folder, torch.bfloat16, tokens, setting.device) - exact)
    plain = megatron(rank, folder, config_for(setting), tokens)
    largest = float(np.abs(plain - exact).max())
    note = f"Hugging Face's bf16 noise {noise:.1e}, {NOISE_FACTOR:g} × it allowed; largest {largest:.1e}"
    setting.results.add(
        Row(f"{name}, bf16 to fp32", mean_abs(plain - exact), "nats", at_most=NOISE_FACTOR * noise, note=note)
    )


def compare_fp8(rank: OneRank, name: str, shape: Mapping[str, Any], tokens: Tokens) -> None:
    """Record how far the policy's log-probs in every FP8 recipe are from its log-probs in bf16."""
    setting = rank.setting
    folder = make_model(setting.models / name.replace(" ", "_"), shape)
    plain = megatron(rank, folder, config_for(setting), tokens)
    for recipe, policy in RECIPES.items():
        with setting.results.attempt(f"{name}, {recipe} to bf16"):
            scores = megatron(rank, folder, config_for(setting, **policy), tokens)
            note = f"largest {float(np.abs(scores - plain).max()):.1e}"
            setting.results.add(Row(f"{name}, {recipe} to bf16", mean_abs(scores - plain), "nats", note=note))


def main() -> None:
    """bf16 of all models before any FP8; small models first: they find what is wrong in seconds."""
    setting = open_setting("parity", __doc__)
    prompt, response = (8, 24) if setting.is_tiny else (64, 192)
    models = {"qwen2": TINY} if setting.is_tiny else {**FAMILIES, "1.5B shape": QWEN_1_5B}
    cases = [(compare, name) for compare in (compare_bf16, compare_fp8) for name in models]
    with open_rank(setting) as rank:
        for compare, name in cases:
            shape = models[name]
            num = 8 if shape is QWEN_1_5B else 4
            tokens = draw_tokens(shape["vocab_size"], num, prompt, response)
            with setting.results.attempt(f"{name}: {compare.__name__}"):
                compare(rank, name, shape, tokens)
    setting.results.finish()


if __name__ == "__main__":
    main()
