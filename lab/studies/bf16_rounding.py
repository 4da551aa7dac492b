"""Measure what rounding to bf16 costs between sampler and trainer, in nats of log-probs and in routed experts.

    python lab/studies/bf16_rounding.py MODEL_FOLDER [--responses 64] [--tokens 48] [--json FILE]

Heads: responses are drawn from the model in bf16 by `transformers`, the sampler here, and scored by the policy in bf16,
the trainer. Their layers compute the same in another order. Each side multiplies its last hidden states by the output
layer with logits in bf16 or in float32. The result is the mean |log p - log p| of the drawn tokens.

Routers: no trained mixture is at hand, so hidden states and weights are drawn, of Qwen3-30B-A3B's sizes, such that
logits have a standard deviation of `--spread`. A token is routed twice, with the sampler's bf16 logits and with the
trainer's, in float32 (before) or in bf16 (now). In both cases the trainer's hidden states are off by a rounding to bf16
of what they are made of. The result is the share of tokens that go to another set of experts, in a layer and in any of
48.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_brorl.config.rank_settings import RankSettings
from nemo_brorl.config.schema import BroRLConfig
from nemo_brorl.core.console import format_table
from nemo_brorl.policy.process.device import open_device

HIDDEN, EXPERTS, CHOSEN, LAYERS = 2048, 128, 8, 48
Product = Callable[[Tensor, Tensor], Tensor]


def in_float32(left: Tensor, right: Tensor) -> Tensor:
    return left.float() @ right.float()


def in_bf16(left: Tensor, right: Tensor) -> Tensor:
    return in_float32(left, right).bfloat16().float()


HEADS: dict[str, Product] = {"bf16": in_bf16, "fp32": in_float32}


def draw(folder: Path, num: int, num_tokens: int) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Sample responses and return tokens, log-probs with a bf16 and a float32 output layer, and largest |logit|.

    Shapes: tokens [num, 1 + T] with a prompt of one token, log-probs [num, T], largest |logit| of each token [num, T].
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    first = torch.randint(model.config.vocab_size, (num, 1))
    with torch.no_grad():
        tokens = model.generate(
            first, attention_mask=torch.ones_like(first), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=num_tokens, max_new_tokens=num_tokens, pad_token_id=0,
        )  # fmt: skip
        hidden = model.model(tokens).last_hidden_state[:, :-1].flatten(0, 1)
    targets = tokens[:, 1:].flatten()
    found = {}
    for name, product in HEADS.items():
        logits = product(hidden, model.lm_head.weight.T)
        found[name] = logits.log_softmax(-1).gather(1, targets[:, None]).view(num, num_tokens)
    return tokens, found, logits.abs().amax(1)


def score(folder: Path, tokens: Tensor) -> dict[str, Tensor]:
    """Return the policy's log-probs [num, T] of the tokens, with a bf16 and with a float32 output layer."""
    device = open_device(on_gpu=False, num_threads=torch.get_num_threads())
    from nemo_brorl.config.parallel_layout import layout_of
    from nemo_brorl.policy.model import log_probs
    from nemo_brorl.policy.process import process_groups
    from nemo_brorl.policy.rank.learner import Learner

    config = BroRLConfig()
    config.policy.precision = "bf16"
    process_groups.open_groups(layout_of(config), 0, dist.HashStore(), device, seed=1)
    learner = Learner(RankSettings.from_config(config), folder, device)
    found = {}
    for name, product in HEADS.items():
        log_probs.product = product
        scores = learner.log_probs(tokens[:, :1].tolist(), tokens[:, 1:].tolist())
        found[name] = torch.from_numpy(np.stack(scores))
    process_groups.close_groups()
    return found


def other_experts(num_tokens: int, spread: float) -> dict[str, tuple[float, float]]:
    """Return the shares of tokens that trainer and sampler route to different experts, by precision of the logits.

    One share is of a single layer, one of tokens that differ in any layer. Hidden states and weights are random, and
    the trainer's hidden states are off by a rounding to bf16.
    """
    generator = torch.Generator().manual_seed(0)
    differs = {name: torch.zeros(LAYERS, num_tokens, dtype=torch.bool) for name in HEADS}
    for layer in range(LAYERS):
        weight = torch.randn(EXPERTS, HIDDEN, generator=generator) * spread / HIDDEN**0.5
        exact = torch.randn(num_tokens, HIDDEN, generator=generator)
        rounding = torch.randn(num_tokens, HIDDEN, generator=generator) * exact.abs() * 2**-9 / 3**0.5
        sampled = chosen(in_bf16(exact.bfloat16(), weight.bfloat16().T))
        for name, product in HEADS.items():
            trained = chosen(product((exact + rounding).bfloat16(), weight.bfloat16().T))
            differs[name][layer] = (trained != sampled).any(1)
    return {name: (float(found.float().mean()), float(found.any(0).float().mean())) for name, found in differs.items()}


def chosen(logits: Tensor) -> Tensor:
    return logits.topk(CHOSEN, dim=1).indices.sort(1).values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--spread", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    open_device(on_gpu=False, num_threads=torch.get_num_threads())  # before anything imports megatron
    tokens, sampler, largest = draw(arguments.model, arguments.responses, arguments.tokens)
    trainer = score(arguments.model, tokens)
    rows = []
    for sampling, training in (("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "bf16"), ("fp32", "fp32")):
        difference = (sampler[sampling] - trainer[training]).abs()
        rows.append([sampling, training, f"{difference.mean():.5f}", f"{difference.max():.4f}"])
    print(f"{tokens.size(0)} x {tokens.size(1) - 1} tokens, median of the largest |logit| {largest.median():.1f}")
    print(*format_table(["sampler's head", "trainer's head", "mean nats", "largest"], rows), sep="\n")
    routed = other_experts(4096, arguments.spread)
    table = [[f"{name} logits", f"{layer:.3%}", f"{model:.1%}"] for name, (layer, model) in routed.items()]
    print(*format_table(["trainer's router", "another set, in a layer", "in any of 48"], table), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"heads": rows, "routers": routed}, indent=1))


if __name__ == "__main__":
    main()
